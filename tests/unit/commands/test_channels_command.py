"""`deliveryd channels`: what a channel can be, without a configuration and with one."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.channels.registry import ADAPTERS
from support.presets import POSTBOX
from support.terminal import command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a preset of its own."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "postbox.toml").write_text(POSTBOX, encoding="utf-8")
    path = tmp_path / "config.toml"
    path.write_text(
        '[service]\nbase_url = "http://127.0.0.1:1"\n[channels]\npresets_dir = "presets"\n', encoding="utf-8"
    )
    return path


def test_adapters_and_presets_are_listed_without_a_configuration() -> None:
    listed = command("channels", "list")
    assert listed.status == 0
    names = [line.split()[0] for line in listed.out.splitlines()[1:]]
    assert set(names) >= {*ADAPTERS, *Catalogue().names()}
    rows = json.loads(command("channels", "list", "--json").out)
    assert [row["name"] for row in rows] == names


def test_a_configuration_adds_its_presets(config: Path) -> None:
    rows = json.loads(command("channels", "list", "--config", str(config), "--json").out)
    row = next(row for row in rows if row["name"] == "postbox")
    assert row == {
        "name": "postbox", "kind": "preset", "sends": ["sms", "messenger"], "title": "Postbox",
        "receipts": False, "repeats": "ignored", "doubts": "no",
    }  # fmt: skip


def test_presets_of_a_folder_are_used_without_a_configuration(config: Path, tmp_path: Path) -> None:
    folder = ("--presets-dir", str(config.parent / "presets"))
    assert "postbox" in command("channels", "list", *folder).out
    assert "postbox: Postbox" in command("channels", "show", "postbox", *folder).out
    secret, answer = tmp_path / "token", tmp_path / "answer.http"
    secret.touch(0o600)
    answer.write_bytes(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\n")
    options = ("--preset", "postbox", "--set", "account=A01", "--set", "sender=Acme")
    tried = ("channels", "test", *options, "--secret", f"token={secret}", "--answer", str(answer))
    assert command(*tried, *folder).status == 0
    missing = command(*tried)
    assert missing.status == 2
    assert "there is no preset postbox; --presets-dir names a folder of your own" in missing.err
    (config.parent / "presets" / "postbox.toml").write_text(
        POSTBOX.replace("title", "tilte"), encoding="utf-8"
    )
    broken = command(*tried, *folder)
    assert broken.status == 78
    assert "postbox.toml" in broken.err


@pytest.mark.parametrize("words", [("list",), ("show", "postbox")], ids=["list", "show"])
def test_a_folder_of_presets_that_is_not_there_is_an_error(tmp_path: Path, words: Sequence[str]) -> None:
    shown = command("channels", *words, "--presets-dir", tmp_path / "none")
    assert (shown.status, shown.err) == (78, f"--presets-dir: {tmp_path}/none isn't a folder\n")


def test_a_preset_is_shown_with_its_keys_an_example_its_tables_and_sources(config: Path) -> None:
    shown = command("channels", "show", "--config", str(config), "postbox")
    assert shown.status == 0
    for text in (
        "postbox: Postbox",
        "sends          sms, messenger",
        "account   required                       account",
        'url = "{key.base_url}/{key.account}/messages"',
        "# instead, for the block messenger",
        "everything: invented",
    ):
        assert text in shown.out
    example = shown.out.partition("to copy\n")[2].partition("the tables behind it")[0]
    assert tomllib.loads(example) == {
        "channels": {
            "sms": {
                "adapter": "postbox",
                "account": "A01",
                "secrets": {"token": "/run/credentials/deliveryd.service/postbox-token"},
            }
        }
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("whatsapp", "reports to PUBLIC_URL/receipts/CHANNEL: register it at the provider\n"),
        ("azure-sms", "reports to PUBLIC_URL/receipts/CHANNEL/RECEIPT_TOKEN: register it at the provider\n"),
        ("clickatell", "reports to PUBLIC_URL/receipts/CHANNEL/RECEIPT_TOKEN: register it at the provider\n"),
        ("twilio", None),  # a request carries the address
        ("webhook", None),  # reports nothing
    ],
)
def test_an_address_that_the_provider_must_be_told_is_shown(name: str, told: str | None) -> None:
    shown = command("channels", "show", name).out
    assert ("register it" in shown) == (told is not None)
    assert told is None or told in shown
    example = tomllib.loads(shown.partition("to copy\n")[2].partition("the tables behind it")[0])
    assert ("receipts" in example) == (name != "webhook")


def test_a_preset_as_json_has_all_of_its_file(config: Path) -> None:
    shown = json.loads(command("channels", "show", "--config", str(config), "postbox", "--json").out)
    assert shown["keys"]["account"]["required"] is True
    assert shown["table"]["on_in_doubt"] == "hold"
    assert tomllib.loads(shown["example"])["channels"]["sms"]["adapter"] == "postbox"


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_an_adapter_is_shown_with_its_keys(name: str) -> None:
    shown = command("channels", "show", name)
    assert shown.status == 0
    assert "required" in shown.out
    assert json.loads(command("channels", "show", name, "--json").out)["kind"] == "adapter"


def test_an_unknown_name_is_an_error_with_a_suggestion(config: Path) -> None:
    shown = command("channels", "show", "--config", str(config), "posbox")
    assert shown.status == 2
    assert shown.err == "deliveryd: unknown adapter 'posbox'; did you mean postbox?\n"
    shown = command("channels", "show", "--config", str(config), "nope")
    assert shown.status == 2
    assert shown.err.startswith("deliveryd: unknown adapter 'nope'; there are: http, smtp, ")
    assert "postbox" in shown.err


def test_a_mistake_in_a_preset_is_named(config: Path) -> None:
    preset = config.parent / "presets" / "postbox.toml"
    preset.write_text(POSTBOX.replace("title", "titel"), encoding="utf-8")
    shown = command("channels", "list", "--config", str(config))
    assert shown.status == 78
    assert "postbox.toml:titel: unknown key; did you mean title?" in shown.err


# channels test

OPTED_OUT = """\
HTTP/1.1 400 Bad Request
Content-Type: application/json

{"code": 21610, "message": "Attempt to send to unsubscribed recipient", "status": 400}"""


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    path = tmp_path / "answer.http"
    path.write_text(OPTED_OUT, encoding="utf-8")
    return path


@pytest.fixture
def twilio(tmp_path: Path) -> list[str]:
    """The options of a preset on the command line."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("tok123", encoding="utf-8")
    return ["--preset", "twilio", "--set", "account=AC0001", "--set", "from=+447700900999",
            "--secret", f"token={token}"]  # fmt: skip


def test_an_answer_is_read_by_a_preset(twilio: list[str], answer: Path) -> None:
    tried = command("channels", "test", *twilio, "--answer", str(answer), "--json")
    assert tried.status == 0
    assert tried.data == {
        "verdict": "stopped",
        "provider_id": None,
        "after": None,
        "reason": "Attempt to send to unsubscribed recipient",
        "decided_by": "row 1 of answers (4xx; /code is 21610)",
    }
    assert command("channels", "test", *twilio, "--answer", str(answer)).out == (
        "stopped: a message of the queue puts its recipient on the list: see deliveryd stopped\n"
        "  reported as     provider answered 400 (code 21610)\n"
        "  provider's own  Attempt to send to unsubscribed recipient\n"
        "  decided by      row 1 of answers (4xx; /code is 21610)\n"
    )


def test_an_answer_that_no_row_fits_is_said_to_be(twilio: list[str], tmp_path: Path) -> None:
    path = tmp_path / "answer.http"
    path.write_text("HTTP/1.1 408 Late\n\n", encoding="utf-8")
    tried = command("channels", "test", *twilio, "--answer", path)
    assert "  decided by      the status; no row of answers fits\n" in tried.out


def test_an_answer_is_read_from_standard_input(twilio: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.TextIOWrapper(io.BytesIO(b'HTTP/1.1 201 Created\n\n{"sid": "SM11"}'))
    monkeypatch.setattr("sys.stdin", given)
    tried = command("channels", "test", *twilio, "--answer", "-", "--json")
    assert (tried.data["verdict"], tried.data["provider_id"]) == ("accepted", "SM11")


def test_an_answer_is_read_by_a_configured_provider(tmp_path: Path, answer: Path) -> None:
    path = tmp_path / "config.toml"
    provider = 'adapter = "http"\nurl = "http://127.0.0.1:1"\njson = { text = "{content.text}" }\n'
    path.write_text(
        '[service]\nbase_url = "http://127.0.0.1:1"\n'
        f"[channels.sms.providers.one]\n{provider}[channels.sms.providers.two]\n{provider}",
        encoding="utf-8",
    )
    given = ["channels", "test", "--config", str(path), "--answer", str(answer), "--json", "--channel"]
    assert command(*given, "sms", "--provider", "two").data["verdict"] == "refused"
    assert command(*given, "sms/two").data["verdict"] == "refused"
    assert command(*given, "sms").err == (
        "deliveryd: name one of sms's providers with --provider: one, two\n"
    )
    assert "there is no channel smss; did you mean sms?" in command(*given, "smss").err
    assert "sms has no provider tow; did you mean two?" in command(*given, "sms", "--provider", "tow").err


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (["--preset", "twilio"], 78, "--secret token: is missing: a file that holds it (auth token"),
        (["--preset", "twillio"], 2, "there is no preset twillio; did you mean twilio?"),
        (["--preset", "twilio", "--set", "account"], 2, "--set account: expected NAME=VALUE"),
        (["--preset", "twilio", "--channel", "sms"], 2, "--preset can't be combined with --channel"),
        ([], 2, "name a provider with --channel, or a preset with --preset"),
    ],
)
def test_a_mistake_in_the_options_is_named(answer: Path, options: list[str], status: int, told: str) -> None:
    tried = command("channels", "test", *options, "--answer", str(answer))
    assert tried.status == status
    assert told in tried.err


def test_a_file_that_is_no_answer_is_an_error(twilio: list[str], tmp_path: Path) -> None:
    path = tmp_path / "no.http"
    path.write_text("hello", encoding="utf-8")
    tried = command("channels", "test", *twilio, "--answer", str(path))
    assert tried.err == f'deliveryd: {path}: line 1: expected a status line such as "HTTP/1.1 200 OK"\n'
    assert "can't be read" in command("channels", "test", *twilio, "--answer", str(tmp_path / "x")).err


def test_a_pause_until_an_instant_is_counted_from_the_instant_given(tmp_path: Path) -> None:
    """And what a status means by itself names the host that answered."""
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("k", encoding="utf-8")
    answer = tmp_path / "answer.http"
    answer.write_text("HTTP/2 429\nx-ratelimit-reset: 1795286402\n\n{}", encoding="utf-8")
    preset = ["--preset", "sendgrid", "--set", "from=news@example.com", "--secret", f"key={key}",
              "--secret", f"webhook_key={key}"]  # fmt: skip
    tried = command(
        "channels", "test", *preset, "--answer", str(answer), "--json", "--at", "2026-11-21T18:40:00Z",
        "--url", "https://api.eu.sendgrid.com/v3/mail/send",
    )  # fmt: skip
    assert (tried.status, tried.data["verdict"], tried.data["after"]) == (0, "try_again", 2.0)
    wrong = command("channels", "test", *preset, "--answer", str(answer), "--url", "nowhere")
    assert wrong.err == "deliveryd: nowhere is no address such as https://api.example.com/messages\n"
    late = command("channels", "test", *preset, "--answer", str(answer), "--at", "yesterday")
    assert late.status == 2
