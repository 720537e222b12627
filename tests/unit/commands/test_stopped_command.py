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


def test_a_national_number_without_its_zero_is_that_of_a_customer(config: Path) -> None:
    """It was put on the list as a number of another country; one that may be either is told."""
    config.write_text(f'{config.read_text(encoding="utf-8")}country = "US"\n', encoding="utf-8")
    lines = ("212-555-1234", "447911123456", "2015550123")
    assert imported(config, *lines) == (1, list(lines[:2]), ["2015550123"])
    for number in ("+12125551234", "+447911123456"):
        assert command("stopped", "lift", "--config", config, "--channel", "sms", number).status == 0


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


def mail_imported(config: Path, *lines: str) -> tuple[int, list[str], list[str]]:
    file = config.parent / "opted-out.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    answered = command("stopped", "import", "--config", config, "--channel", "email", "--json", file)
    return answered.status, answered.data["done"], sorted(answered.data["skipped"])


@pytest.fixture(params=["smtp", "mailgun"])
def mail_config(config: Path, request: pytest.FixtureRequest) -> Path:
    """A channel that sends mail, by SMTP or by a provider's preset."""
    tables = {
        "smtp": '[channels.email]\nadapter = "smtp"\nhost = "127.0.0.1"\nsender = "club@example.com"\n',
        "mailgun": '[channels.email]\nadapter = "mailgun"\ndomain = "mg.example.com"\n'
        'from = "club@example.com"\nsecrets = { key = "token", signing_key = "token" }\n',
    }
    head, _, _ = CONFIG.partition("[channels.sms]")
    config.write_text(head + tables[request.param], encoding="utf-8")
    return config


def test_what_is_no_mail_address_is_told_not_imported(mail_config: Path) -> None:
    """As of a spreadsheet with a head and further columns; quotes and names around an address don't count."""
    good = ("\ufeffann@example.com", '"ben@example.com"', "Cy <cy@example.com>", "\u00a0Dee@Example.com\t")
    bad = (
        "email",
        "eve@example.com;2026-01-01",
        "fay@example.com,gil@example.com",
        "+447700900101",
        "<>",
        "h@",
    )
    status, done, skipped = mail_imported(mail_config, *good, *bad, f"digest:{'0a' * 16}")
    assert (status, skipped) == (1, sorted(bad))
    names = ("ann@example.com", '"ben@example.com"', "Cy <cy@example.com>", "Dee@Example.com")
    assert done == [*names, f"digest:{'0a' * 16}"]
    spelled = ("ANN@example.com", "ben@example.com", "cy@example.com", '"Dee, D." <dee@EXAMPLE.com>')
    assert mail_imported(mail_config, *spelled) == (0, [], [])


def test_a_domain_has_one_digest_however_it_is_spelled(mail_config: Path) -> None:
    """A domain is compared as the DNS knows it (IDNA)."""
    assert mail_imported(mail_config, "ann@b\u00fccher.example")[0] == 0
    for spelled in ("ann@xn--bcher-kva.example", "Ann@B\u00dcCHER.example", "ann@bu\u0308cher.example"):
        assert mail_imported(mail_config, spelled) == (0, [], [])
    lifted = command(
        "stopped", "lift", "--config", mail_config, "--channel", "email", "ann@XN--BCHER-KVA.example"
    )
    assert lifted.status == 0
