"""`deliveryd send-test`: one real message, here to the sandbox, which speaks as the provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.channels.presets.catalogue import Catalogue, Preset
from deliveryd.commands.sandbox.sandbox_files import chosen_presets, impersonation, write_files
from deliveryd.sandbox.scenario import demo_scenario
from deliveryd.sandbox.server import Sandbox
from support.sandboxes import open_sandbox
from support.terminal import Answered, command

PLAYED = [name for name in Catalogue().names() if (found := Catalogue().find(name)) and found.file.sandbox]
GOOD = {
    "email": "ada@example.com",
    "sms": "+447700900123",
    "messenger": "+447700900123",
    "inApp": "+447700900123",
}
BAD = {"email": "permerror@example.com", "sms": "+15550100", "messenger": "+15550100", "inApp": "+15550100"}
OPTED_OUT = {"sms": "+15550105", "messenger": "+15550105", "inApp": "+15550105"}


@pytest.fixture
def presets() -> list[Preset]:
    return chosen_presets(",".join(PLAYED))


@pytest.fixture
def sandbox(presets: list[Preset]) -> Iterator[Sandbox]:
    impersonated = [impersonation(preset) for preset in presets]
    with open_sandbox(Sandbox(impersonated=impersonated)) as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, sandbox: Sandbox, presets: list[Preset]) -> Path:
    list(write_files(tmp_path, sandbox, demo_scenario(), 9471, presets))
    return tmp_path / "config.toml"


def sent(config: Path, name: str, to: dict[str, str], *more: str) -> Answered:
    block = chosen_presets(name)[0].file.channels[0]
    address = to[block].lstrip("+") if name == "telegram" else to[block]
    return command(
        "send-test", "--config", config, "--channel", block, "--provider", name, "--to", address,
        "--text", "Hi there", *more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_an_accepted_message_is_shown_with_request_and_answer(config: Path, name: str) -> None:
    answered = sent(config, name, GOOD)
    assert (answered.status, "accepted: the message is sent" in answered.out) == (0, True), answered
    assert "this sends a real message to" in answered.err
    assert "whsec_" not in answered.out
    assert "\n  decided by      " in answered.out
    assert answered.out.startswith(("request\n  POST http://127.0.0.1:", "request\n  GET http://127.0.0.1:"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLAYED if name != "webhook"])  # it has no recipient
def test_a_refused_message_is_shown_and_fails(config: Path, name: str) -> None:
    answered = sent(config, name, BAD, "--json")
    assert answered.status == 1
    assert answered.data["verdict"] == "refused"
    assert "of answers" in answered.data["decided_by"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twilio", "whatsapp", "infobip", "telegram"])
def test_an_opt_out_is_told_from_a_refusal(config: Path, name: str) -> None:
    answered = sent(config, name, OPTED_OUT, "--json")
    assert (answered.status, answered.data["verdict"]) == (1, "stopped")


def test_an_empty_text_is_not_sent(config: Path) -> None:
    """A forgotten text would reach a real phone."""
    common = ("--config", config, "--channel", "sms/twilio", "--to", "+447700900123")
    answered = command("send-test", *common, "--text", " ")
    assert (answered.status, "must not be empty" in answered.err) == (2, True)


@pytest.mark.slow
def test_a_provider_may_be_named_by_its_identity_alone(config: Path) -> None:
    common = ("--to", "+447700900123", "--text", "Hi", "--json")
    found = command("send-test", "--config", config, "--channel", "sms/twilio", *common)
    assert (found.status, found.data["verdict"]) == (0, "accepted")
    other = command("send-test", "--config", config, "--channel", "sms/twilio", "--provider", "mmg", *common)
    assert (other.status, other.err) == (
        2, "deliveryd: --channel sms/twilio and --provider mmg name two providers\n",
    )  # fmt: skip


@pytest.mark.slow
def test_without_an_answer_the_message_may_have_been_sent_or_not(config: Path, tmp_path: Path) -> None:
    text = config.read_text(encoding="utf-8")
    address = next(line for line in text.splitlines() if line.endswith('/twilio"'))
    config.write_text(text.replace(address, 'base_url = "http://127.0.0.1:1"'), encoding="utf-8")
    answered = sent(config, "twilio", GOOD)
    assert answered.status == 1
    assert (
        "answer\n  none that is complete\n\ntry again: a message of the queue is tried again" in answered.out
    )


@pytest.mark.slow
def test_a_number_that_cannot_be_read_is_not_sent(config: Path) -> None:
    answered = command(
        "send-test",
        "--config",
        config,
        "--channel",
        "sms",
        "--provider",
        "twilio",
        "--to",
        "nobody",
        "--text",
        "Hi",
    )
    assert answered.status == 1
    assert "sms/twilio: " in answered.err


def test_an_accepted_mail_is_not_said_to_lack_an_answer(sandbox: Sandbox, tmp_path: Path) -> None:
    """What a mail server answers isn't kept."""
    list(write_files(tmp_path, sandbox, demo_scenario(), 9471))
    config = tmp_path / "config.toml"
    answered = command(
        "send-test", "--config", config, "--channel", "email", "--to", "ann@example.com", "--text", "Hi"
    )
    assert answered.status == 0
    assert "none that is complete" not in answered.out
    assert "accepted: the message is sent" in answered.out
