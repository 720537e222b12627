"""What operators import to the list of stopped recipients, where the channel sends to phone numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.terminal import command

CONFIG = """[service]
base_url = "http://127.0.0.1:1"

[receipts]
public_url = "https://cb.example.com"

[journal]
url = "sqlite:///journal.db"

[channels.sms]
adapter = "twilio"
account = "AC0001"
from = "Acme"
secrets = { token = "token" }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "token").chmod(0o600)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def imported(config: Path, *lines: str) -> tuple[int, list[str], list[str]]:
    file = config.parent / "opted-out.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    answered = command("stopped", "import", "--config", config, "--channel", "sms", "--json", file)
    return answered.status, answered.data["done"], sorted(answered.data["skipped"])


def test_what_is_no_number_is_told_not_imported(config: Path) -> None:
    """Nobody's messages would stop, and the operator would believe that they do."""
    digest = f"digest:{'0a' * 16}"
    numbers = ("+44 7700 900101", "447700900102", "00447700900103", digest)
    assert imported(config, "phone", *numbers, "07700900104", "ann@example.com") == (
        1, list(numbers), ["07700900104", "ann@example.com", "phone"],
    )  # fmt: skip


def test_a_national_number_belongs_to_the_country_of_the_providers(config: Path) -> None:
    config.write_text(f'{config.read_text(encoding="utf-8")}country = "GB"\n', encoding="utf-8")
    assert imported(config, "07700 900104") == (0, ["07700 900104"], [])
    lifted = command("stopped", "lift", "--config", config, "--channel", "sms", "+447700900104")
    assert lifted.status == 0


def test_a_misspelt_channel_has_no_empty_list(config: Path) -> None:
    assert imported(config, "+447700900101")[0] == 0
    listed = command("stopped", "list", "--config", config, "--channel", "smss")
    assert (listed.status, "did you mean sms?" in listed.err) == (2, True)
    lifted = command("stopped", "lift", "--config", config, "--channel", "smss", "+447700900101")
    assert (lifted.status, "did you mean sms?" in lifted.err) == (2, True)


def test_a_provider_stands_for_its_channel(config: Path) -> None:
    """The list is that of the channel, whichever provider sends."""
    assert imported(config, "+447700900101")[0] == 0
    listed = command("stopped", "list", "--config", config, "--channel", "sms/sms", "--json")
    assert [each["channel"] for each in listed.data] == ["sms"]
    lifted = command("stopped", "lift", "--config", config, "--channel", "sms/sms", "+447700900101")
    assert lifted.status == 0
    unknown = command("stopped", "list", "--config", config, "--channel", "sms/other")
    assert (unknown.status, "sms has no provider other" in unknown.err) == (2, True)
