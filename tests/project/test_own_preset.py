"""The preset that docs/how-to/use-a-provider.md writes: templates of WhatsApp, from `presets_dir`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deliveryd.commands.sandbox.sandbox_files import aim_receipts, chosen_presets, impersonation, write_files
from deliveryd.sandbox.scenario import demo_scenario
from deliveryd.sandbox.server import Sandbox
from support.messages import message
from support.patience import PATIENCE
from support.places import ROOT
from support.ports import free_port
from support.sandboxes import open_sandbox
from support.terminal import command

PAGE = ROOT / "docs" / "how-to" / "use-a-provider.md"
NAME = "whatsapp-template"
REST = """
[service]
base_url = "https://queue.example.com"

[customers]
source = "file"
path = "c.jsonl"

[receipts]
public_url = "https://receipts.example.com"

[channels.sms]
adapter = "http"
url = "https://gateway.example.com"
json = { to = "{customer.phone}", text = "{content.text}" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The operator's folder, as the page tells."""
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(r"Save this as `presets/(?:.*?)`:\n\n```text\n(.*?)```", page, re.DOTALL)
    presets = tmp_path / "presets"
    presets.mkdir()
    presets.joinpath(f"{NAME}.toml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_message_goes_out_as_a_template_and_is_delivered(folder: Path) -> None:
    presets = chosen_presets(NAME, folder / "presets")
    port = free_port()
    with open_sandbox(Sandbox(impersonated=[impersonation(each) for each in presets])) as sandbox:
        customer = {"id": 1, "name": "Ann", "phone": "+447700900123"}
        folder.joinpath("customers.jsonl").write_text(json.dumps(customer), encoding="utf-8")
        list(write_files(folder, sandbox, demo_scenario(), port, presets))
        aim_receipts(sandbox, f"http://127.0.0.1:{port}")
        sandbox.state.settings[1] = {"content": {"en": {"messenger": {"text": "Your parcel is here"}}}}
        sandbox.state.enqueue(message(1, 1, 1))
        environ = {**os.environ, "DELIVERYD_ADMIN__LISTEN": "", "DELIVERYD_LOG__LEVEL": "warning"}
        arguments = ["run", "--config", str(folder / "config.toml")]
        with subprocess.Popen([sys.executable, "-m", "deliveryd", *arguments], env=environ) as process:
            sandbox.state.wait_for(lambda state: state.statuses(1)[-1:] == ["delivered"], PATIENCE)
            process.terminate()
            assert process.wait(PATIENCE) == 0
        (sent,) = sandbox.state.accepted()
        assert sent.payload["template"] == {
            "name": "parcel",
            "language": {"code": "en"},
            "components": [{"type": "body", "parameters": [{"type": "text", "text": "Your parcel is here"}]}],
        }


def test_the_configuration_of_the_page_is_accepted(folder: Path) -> None:
    """With the service's address, and the files of the secrets."""
    (table,) = re.findall(r"```text\n(\[channels\]\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    config = folder / "config.toml"
    config.touch(mode=0o600)
    config.write_text(f"{REST}\n{table}", encoding="utf-8")
    folder.joinpath("c.jsonl").write_text('{"id": 1, "phone": "+447700900123"}\n', encoding="utf-8")
    for name in ("token", "app-secret", "verify-token"):
        file = folder / f"whatsapp-{name}"
        file.touch(mode=0o600)
        file.write_text("secret", encoding="utf-8")
    checked = command("check", "--offline", "--config", config)
    assert checked.status == 0, checked
