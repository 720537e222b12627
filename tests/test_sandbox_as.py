"""`deliveryd sandbox --as`: a worker's messages and receipts in the forms of real providers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deliveryd.channels.preset_catalogue import Catalogue
from deliveryd.cli.impersonations import chosen_presets, impersonation
from deliveryd.cli.sandbox_files import aim_receipts, write_files
from deliveryd.sandbox.scenario import demo_scenario
from deliveryd.sandbox.thread import SandboxThread
from support.messages import message
from support.terminal import command, free_port

PATIENCE = 60.0
CUSTOMERS = [
    {"id": 1, "name": "Ann", "phone": "+447700900123", "email": "ann@example.com"},
    {"id": 2, "name": "Bob", "phone": "+15550103", "email": "failed@example.com"},
]
CONTENT = {"sms": {"text": "Hi"}, "messenger": {"text": "Hi"}, "email": {"subject": "Hi", "body": "Hi"}}


def reporting() -> list[str]:
    """The presets whose deliveries the sandbox reports."""
    found = (Catalogue().find(name) for name in Catalogue().names())
    return [each.name for each in found if each and each.file.sandbox and each.file.sandbox.delivered]


def reporting_sandbox(name: str, folder: Path) -> Iterator[SandboxThread]:
    """A sandbox that speaks as this provider, with a configuration in the folder."""
    presets = chosen_presets(name)
    port = free_port()
    with SandboxThread(impersonated=[impersonation(each) for each in presets]) as running:
        folder.joinpath("customers.jsonl").write_text("\n".join(map(json.dumps, CUSTOMERS)), encoding="utf-8")
        list(write_files(folder, running.sandbox, demo_scenario(), port, presets))
        aim_receipts(running.sandbox, f"http://127.0.0.1:{port}")
        block = presets[0].file.channels[0]
        running.state.settings[1] = {"content": {"en": {block: CONTENT[block]}}}
        yield running


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SandboxThread]:
    yield from reporting_sandbox(request.param, tmp_path)


@pytest.fixture
def worker(sandbox: SandboxThread, tmp_path: Path) -> Iterator[None]:
    """A worker with the configuration that the sandbox wrote."""
    environ = {**os.environ, "DELIVERYD_ADMIN__LISTEN": "", "DELIVERYD_LOG__LEVEL": "warning"}
    started = subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "run", "--config", str(tmp_path / "config.toml")], env=environ
    )
    with started as process:
        yield
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", reporting(), indirect=True)
@pytest.mark.usefixtures("worker")
def test_messages_are_sent_and_reports_in_the_providers_form_end_them(sandbox: SandboxThread) -> None:
    """One is delivered, one fails after all; each report passes the verification of its signature."""
    sandbox.state.enqueue(message(1, 1, 1), message(2, 1, 2))
    sandbox.wait_for(lambda state: state.statuses(1)[-1:] == ["delivered"], PATIENCE)
    sandbox.wait_for(lambda state: state.statuses(2)[-1:] == ["error"], PATIENCE)
    assert sandbox.state.statuses(1) == ["dequeued", "sent", "delivered"]
    assert {each.answered for each in sandbox.state.receipts} == {200}


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["twilio", "whatsapp", "mailgun"], indirect=True)
@pytest.mark.usefixtures("worker")
def test_a_report_with_another_secret_is_refused(sandbox: SandboxThread) -> None:
    """So that the signature of the test above is known to be looked at."""
    for voice in sandbox.sandbox.impersonated:
        object.__setattr__(voice, "secret", "whsec_AAAA")
    sandbox.state.enqueue(message(1, 1, 1))
    sandbox.wait_for(lambda state: bool(state.receipts), PATIENCE)
    assert {each.answered for each in sandbox.state.receipts} == {401}


def test_another_address_of_a_provider_is_refused(tmp_path: Path) -> None:
    for sandbox in reporting_sandbox("twilio", tmp_path):
        found = httpx.post(f"{sandbox.base_url}/twilio/2010-04-01/Other.json", trust_env=False)
        assert found.status_code == 404
        assert "twilio has no address 2010-04-01/Other.json" in found.text


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("twillio", "--as: there is no preset twillio; did you mean twilio?"),
        ("twilio,sendgrid", "--as: the sandbox can't speak as sendgrid; it can as "),
    ],
)
def test_a_name_that_the_sandbox_cannot_play_is_an_error(names: str, told: str) -> None:
    answered = command("sandbox", "--port", "0", "--smtp-port", "0", "--as", names)
    assert answered.status == 1
    assert answered.err.startswith(f"deliveryd: {told}")


@pytest.mark.parametrize("name", reporting())
def test_the_written_configuration_is_good(name: str, tmp_path: Path) -> None:
    for _ in reporting_sandbox(name, tmp_path):
        checked = command("check", "--offline", "--config", tmp_path / "config.toml")
        assert checked.status == 0, checked
        assert re.search(rf'adapter = "{name}"', tmp_path.joinpath("config.toml").read_text())
