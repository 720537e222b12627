"""`deliveryd sandbox --as`: a worker's messages and receipts in the forms of real providers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from deliveryd.channels.presets.catalogue import PACKAGED, Catalogue, Preset
from deliveryd.channels.presets.file import SANDBOX_VALUES, PresetSandbox
from deliveryd.commands.sandbox.sandbox_files import aim_receipts, chosen_presets, impersonation, write_files
from deliveryd.sandbox.impersonation import SigningForm, body_values, values_of
from deliveryd.sandbox.scenario import demo_scenario
from deliveryd.sandbox.server import Sandbox
from support.forked import start_deliveryd
from support.messages import message
from support.patience import PATIENCE
from support.plain_http import NO_TLS
from support.ports import free_port
from support.sandboxes import open_sandbox
from support.terminal import command

GOOD, REFUSED, FAILED, STOPPED, SILENT, TWICE = 7, 15550100, 15550103, 15550105, 15550106, 15550107
NAMES = {REFUSED: "permerror", FAILED: "failed", STOPPED: "stopped", SILENT: "silent", TWICE: "twice"}
PUSH = {"name": "Hi", "description": "Hi", "notification": {"title": "Hi", "body": "Hi"}}
CONTENT = {
    "sms": {"text": "Hi"},
    "messenger": {"text": "Hi"},
    "email": {"subject": "Hi", "body": "Hi"},
    "inApp": PUSH,
}


def customer(number: int) -> dict[str, Any]:
    """A customer whom the sandbox treats by this number, on whatever channel."""
    phone = "+447700900123" if number == GOOD else f"+{number}"
    others = dict.fromkeys(("telegram", "viber", "facebook", "fcm_tokens", "apns_tokens"), str(number))
    return {
        "id": number,
        "phone": phone,
        "email": f"{NAMES.get(number, 'ann')}@example.com",
        "messenger": NAMES.get(number, "ann"),
        **others,
    }


def presets() -> list[Preset]:
    """Return the presets of the package."""
    return [each for name in Catalogue().names() if (each := Catalogue().find(name)) is not None]


def played(preset: Preset) -> PresetSandbox:
    """Return how the sandbox plays a preset."""
    assert preset.file.sandbox is not None
    return preset.file.sandbox


def sandbox_as(name: str, folder: Path) -> Iterator[Sandbox]:
    """A sandbox that speaks as this provider, with a configuration in the folder."""
    chosen = chosen_presets(name)
    port = free_port()
    with open_sandbox(Sandbox(impersonated=[impersonation(each) for each in chosen])) as running:
        lines = [json.dumps(customer(number)) for number in (GOOD, *NAMES)]
        folder.joinpath("customers.jsonl").write_text("\n".join(lines), encoding="utf-8")
        list(write_files(folder, running, demo_scenario(), port, chosen))
        aim_receipts(running, f"http://127.0.0.1:{port}")
        block = chosen[0].file.channels[0]
        running.state.settings[1] = {"content": {"en": {block: CONTENT[block]}}}
        yield running


def test_a_preset_may_use_the_placeholders_that_the_sandbox_fills() -> None:
    at = datetime(2026, 11, 21, 18, 40, tzinfo=UTC)
    signed = body_values(SigningForm("mailgun"), "s", at)
    assert {*values_of("1", "2", None, at), *signed, "secret"} == set(SANDBOX_VALUES)


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sandbox]:
    yield from sandbox_as(request.param, tmp_path)


@pytest.fixture
def worker(sandbox: Sandbox, tmp_path: Path) -> Iterator[None]:
    """A worker with the configuration that the sandbox wrote."""
    environ = {**os.environ, "DELIVERYD_ADMIN__LISTEN": "", "DELIVERYD_LOG__LEVEL": "warning"}
    words = ["run", "--config", str(tmp_path / "config.toml")]
    with start_deliveryd(words, output=2, environ=environ) as process:
        yield
        process.terminate()
        assert process.wait(PATIENCE) == 0


def last(sandbox: Sandbox, number: int, status: str) -> list[str]:
    """Wait until the service was told this of a message; return all that it was told of it."""
    sandbox.state.wait_for(lambda state: state.statuses(number)[-1:] == [status], PATIENCE)
    return sandbox.state.statuses(number)


def test_every_preset_of_the_package_is_played() -> None:
    """With reports, unless the preset says that its provider sends none."""
    for preset in presets():
        assert (played(preset).delivered is not None) is preset.file.promises.receipts, preset.name


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", Catalogue().names(), indirect=True)
@pytest.mark.usefixtures("worker")
def test_a_worker_and_the_sandbox_understand_each_other(sandbox: Sandbox, tmp_path: Path) -> None:
    """For each preset: sent, delivered, refused, stopped, failed afterwards, reported twice; and send-test.

    All receipts pass the verification of their signatures. Where a provider has no such answer or report, the
    preset says so.
    """
    name = sandbox.impersonated[0].name
    preset = next(each for each in presets() if each.name == name)
    form = played(preset)
    numbers = (GOOD, *NAMES)
    sandbox.state.enqueue(*(message(number, 1, number) for number in numbers))
    end = "delivered" if form.delivered is not None else "sent"
    expected = ["dequeued", "sent", "delivered"] if form.delivered is not None else ["dequeued", "sent"]
    assert last(sandbox, GOOD, end) == expected
    assert last(sandbox, TWICE, end) == expected
    assert last(sandbox, REFUSED, "error") == ["dequeued", "error"]
    assert last(sandbox, STOPPED, "error") == ["dequeued", "error"]
    if form.failed is not None:
        assert last(sandbox, FAILED, "error") == ["dequeued", "sent", "error"]
    assert last(sandbox, SILENT, "sent") == ["dequeued", "sent"]
    assert {each.answered for each in sandbox.state.receipts} <= {200}

    identity = f"{preset.file.channels[0]}/{name}"
    own = {recipient: customer(number) for recipient, number in (("good", GOOD), ("refused", REFUSED))}
    for recipient, verdict in (("good", "accepted"), ("refused", "refused")):
        to = own[recipient]["email" if preset.file.channels[0] == "email" else "phone"]
        sent = command(
            "send-test", "--config", tmp_path / "config.toml", "--channel", identity, "--to", to,
            "--text", "Hi", "--json",
        )  # fmt: skip
        if name == "webhook":  # which is sent to the customer's id: a test message has none
            verdict = "accepted"  # noqa: PLW2901
        assert (sent.status, sent.data["verdict"]) == (int(verdict == "refused"), verdict), sent
        assert "whsec_" not in sent.out


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["twilio", "vonage", "sendgrid", "postmark", "clickatell"], indirect=True)
@pytest.mark.usefixtures("worker")
def test_a_report_with_another_secret_is_refused(sandbox: Sandbox) -> None:
    """So that the signature of the test above is known to be looked at."""
    for voice in sandbox.impersonated:
        object.__setattr__(voice, "secret", "whsec_AAAA")
    sandbox.state.enqueue(message(GOOD, 1, GOOD))
    sandbox.state.wait_for(lambda state: bool(state.receipts), PATIENCE)
    assert {each.answered for each in sandbox.state.receipts} == {401}


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in presets() if "probe" in each.file.table])
def test_a_question_about_the_account_is_answered_and_sends_nothing(name: str, tmp_path: Path) -> None:
    """What `check` asks each provider that can be asked; its sandbox has a good account."""
    for sandbox in sandbox_as(name, tmp_path):
        checked = command("check", "--config", tmp_path / "config.toml")
        (told,) = [each for each in checked.out.splitlines() if f".providers.{name} " in each]
        assert told.startswith("ok")
        assert told.endswith("can be reached, and accepts the account")
        assert sandbox.state.attempts == []


def test_the_account_is_asked_for_by_its_own_request_alone(tmp_path: Path) -> None:
    """SNS has one address for everything."""
    for sandbox in sandbox_as("sns", tmp_path):
        address = f"{sandbox.base_url}/sns/"
        asked = {"Action": "GetSMSAttributes", "Version": "2010-03-31"}
        sent = {"Action": "Publish", "PhoneNumber": "+447700900123"}
        with httpx.Client(trust_env=False, verify=NO_TLS) as client:
            assert client.get(address, params=asked).status_code == 200
            assert client.get(address, params={"Action": "Publish"}).status_code == 400
            assert "<MessageId>" in client.post(address, data=sent).text
        assert [each.to for each in sandbox.state.attempts] == ["+447700900123"]


def test_another_address_of_a_provider_is_refused(tmp_path: Path) -> None:
    for sandbox in sandbox_as("twilio", tmp_path):
        found = httpx.post(f"{sandbox.base_url}/twilio/2010-04-01/Other.json", trust_env=False, verify=NO_TLS)
        assert found.status_code == 404
        assert "twilio has no address 2010-04-01/Other.json" in found.text


def test_a_message_can_be_looked_up_where_its_provider_can_be_asked(tmp_path: Path) -> None:
    for sandbox in sandbox_as("sinch", tmp_path):
        address = f"{sandbox.base_url}/sinch/xms/v1/plan01/batches"
        sent = httpx.post(
            address, json={"to": ["447700900123"], "client_reference": "m-1"}, trust_env=False
        ).json()
        known, unknown = (
            httpx.get(address, params={"client_reference": each}, trust_env=False, verify=NO_TLS).json()
            for each in ("m-1", "m-2")
        )
        assert known["batches"] == [{"id": sent["id"], "client_reference": "m-1"}]
        assert unknown["count"] == 0
        assert len(sandbox.state.accepted()) == 1


def test_a_repeat_is_rejected_where_the_provider_rejects_repeats(tmp_path: Path) -> None:
    for sandbox in sandbox_as("infobip", tmp_path):
        request = {"messages": [{"destinations": [{"to": "447700900123", "messageId": "m-1"}]}]}
        answers = [
            httpx.post(
                f"{sandbox.base_url}/infobip/sms/3/messages", json=request, trust_env=False, verify=NO_TLS
            ).json()
            for _ in range(2)
        ]
        assert [each["messages"][0]["status"]["id"] for each in answers] == [26, 23]
        assert len(sandbox.state.received) == 1


def test_an_unknown_name_is_an_error() -> None:
    answered = command("sandbox", "--port", "0", "--smtp-port", "0", "--as", "twillio")
    assert answered.status == 2
    assert answered.err == "deliveryd: --as: there is no preset twillio; did you mean twilio?\n"


def test_a_preset_of_the_operator_needs_a_table_for_the_sandbox(tmp_path: Path) -> None:
    text = PACKAGED.joinpath("telegram.toml").read_text(encoding="utf-8")
    tmp_path.joinpath("own.toml").write_text(text.partition("[sandbox]")[0], encoding="utf-8")
    answered = command("sandbox", "--port", "0", "--smtp-port", "0", "--presets-dir", tmp_path, "--as", "own")
    assert answered.status == 1
    assert answered.err == (
        f"deliveryd: --as: {tmp_path}/own.toml has no table [sandbox], so own can't be played\n"
    )


@pytest.mark.parametrize("name", Catalogue().names())
def test_the_written_configuration_is_good(name: str, tmp_path: Path) -> None:
    for _ in sandbox_as(name, tmp_path):
        checked = command("check", "--offline", "--config", tmp_path / "config.toml")
        assert checked.status == 0, checked
        assert re.search(rf'adapter = "{name}"', tmp_path.joinpath("config.toml").read_text())
