"""What `check` says of channels that have no mistake, and yet won't do what is meant."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deliveryd.sandbox.amazon import certificate
from support.check_command import check, line
from support.messages import message, sms_settings
from support.terminal import command
from support.world import World, open_world

RECEIPT = 'receipt = { provider_id = "/id", status = "/status", delivered = ["ok"], failed = [] }\n'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101", "email": "ann@example.com"}])
        yield world


def two_providers(world: World, more: str = "", own: str = "") -> None:
    """A channel with two providers."""
    text = world.config.read_text(encoding="utf-8")
    providers = "".join(
        f'[channels.sms.providers.{name}]\nadapter = "http"\nurl = "{world.sandbox.base_url}/sms"\n'
        f'provider_id = "/id"\njson = {{ to = "{{customer.phone}}", text = "{{content.text}}" }}\n{own}'
        for name in ("one", "two")
    )
    text = text[: text.index("[channels.sms]")] + f"[channels.sms]\n{more}{providers}"
    world.config.write_text(
        text.replace('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"'), "utf-8"
    )


def test_a_deadline_on_the_last_channel_has_no_effect(world: World) -> None:
    two_providers(world, 'receipt_deadline = "10m"\n', RECEIPT)
    answered = check(world, "--offline")
    assert line(answered, "channels.sms.receipt_deadline").startswith("hint ")
    assert answered.status == 0


SNS = 'signature = { scheme = "sns", topics = ["arn:aws:sns:eu-west-1:1:t"], secret_file = "certificate" }'


def test_a_certificate_of_a_stand_in_is_checked_and_warned_of(world: World) -> None:
    """A start would refuse one that can't be read, in the same words."""
    file = world.config.parent / "certificate"
    file.touch(mode=0o600)
    file.write_text("AKIDEXAMPLE", encoding="utf-8")
    two_providers(world, own=RECEIPT.replace(" }\n", f", {SNS} }}\n"))
    answered = check(world, "--offline")
    assert answered.status == 78
    assert f"{file}: must be a certificate in PEM with an RSA key" in answered.out
    started = command("run", "--config", world.config, "--until-idle")
    assert started.status == 78
    assert f"channels.sms.providers.two.receipt.signature: {file}: must be a certificate" in started.err
    file.write_text(certificate("any"), encoding="utf-8")
    answered = check(world, "--offline")
    assert answered.status == 0
    warned = line(answered, "channels.sms.providers.one.receipt.signature")
    assert warned.startswith("warning ")
    assert f"only events that the certificate in {file} signs are taken in" in warned


def test_a_bad_key_file_of_a_preset_is_named_once(world: World) -> None:
    """At the key that the configuration has, not at the one that the preset makes of it."""
    files = {"access": "AKIA", "secret": "s" * 40}
    for name, text in files.items():
        (world.folder / name).touch(mode=0o600)
        (world.folder / name).write_text(text, encoding="utf-8")
    text = world.config.read_text(encoding="utf-8")
    text = text[: text.index("[channels.sms]")] + (
        '[channels.sms]\nadapter = "sns"\nsender_id = "Acme"\nregion = "eu-west-1"\n'
        'access_key_file = "access"\nsecret_key_file = "secret"\n'
    )
    world.config.write_text(text, encoding="utf-8")
    answered = check(world, "--offline")
    (told,) = [each for each in answered.err.splitlines() if str(world.folder / "access") in each]
    assert told.startswith(f"{world.config}:channels.sms.access_key_file: ")


@pytest.mark.parametrize(
    ("adapter", "own"),
    [
        ("infobip", 'base_url = "https://x.example"\nfrom = "Acme"\n'),
        ("azure-sms", 'base_url = "https://x.example"\nfrom = "Acme"\nkey_file = "key"\n'),
    ],
    ids=["infobip", "azure-sms"],
)
def test_a_short_token_of_a_preset_for_reports_is_refused_and_named_once(
    world: World, adapter: str, own: str
) -> None:
    """It can be guessed, and then reports can be forged."""
    for name, text in (("token", "c2hvcnQ"), ("key", "c2VjcmV0")):
        (world.folder / name).touch(mode=0o600)
        (world.folder / name).write_text(text, encoding="utf-8")
    text = world.config.read_text(encoding="utf-8")
    receipts = '[receipts]\nlisten = "127.0.0.1:0"\npublic_url = "https://cb.example.com"\n'
    text = text[: text.index("[channels.sms]")].replace('[receipts]\nlisten = ""\n', receipts)
    secrets = (
        '{ receipt_token = "token" }' if "key_file" in own else '{ key = "key", receipt_token = "token" }'
    )
    text += f'[channels.sms]\nadapter = "{adapter}"\n{own}secrets = {secrets}\n'
    world.config.write_text(text, encoding="utf-8")
    answered = check(world, "--offline")
    assert answered.status == 78
    (told,) = [each for each in answered.err.splitlines() if "must have at least 16 characters" in each]
    assert str(world.folder / "token") in told


def test_weights_that_are_all_0_are_equal(world: World) -> None:
    two_providers(world, own="weight = 0\n")
    assert "equal weights" in line(check(world, "--offline"), "channels.sms.providers")
    two_providers(world, own="enabled = false\n")
    assert "none of its providers is enabled" in line(check(world, "--offline"), "channels.sms")


@pytest.mark.parametrize(
    "expression", [r"(\\w+) \\1", "(?=a)b", "(?<!a)b", "(?>a+)", "a++", "a{2000}", "(", r"\\Z"]
)
def test_an_expression_that_cannot_be_searched_in_linear_time_is_refused(
    world: World, expression: str
) -> None:
    """At its key, by `check` without any option, as by a start."""
    where = f'[{{ at = "/text", matches = "{expression}" }}]'
    answers = f'answers = [{{ status = [400], where = {where}, verdict = "refused" }}]\n'
    two_providers(world, own=answers)
    answered = check(world, "--offline")
    assert "channels.sms.providers.one.answers.0.where.0.matches: not a regular expression" in answered.err
    assert answered.status == 78


def test_twilio_needs_a_sender(world: World) -> None:
    """A number or a messaging service, one of both."""
    text = world.config.read_text(encoding="utf-8")
    token = world.folder / "token"
    token.touch(mode=0o600)
    token.write_text("s3cret", encoding="utf-8")
    table = '[channels.sms]\nadapter = "twilio"\naccount = "AC1"\nsecrets = { token = "token" }\n'
    receipts = '[receipts]\nlisten = "127.0.0.1:0"\npublic_url = "https://cb.example.com"\n'
    text = text[: text.index("[channels.sms]")].replace('[receipts]\nlisten = ""\n', receipts) + table
    world.config.write_text(text, encoding="utf-8")
    answered = check(world, "--offline")
    assert answered.status == 78
    assert answered.err == f"{world.config}:channels.sms.from: is missing: set from or messaging_service\n"
    world.config.write_text(text + 'messaging_service = "MG1"\n', encoding="utf-8")
    assert check(world, "--offline").status == 0


@pytest.mark.slow
def test_messages_of_a_provider_that_was_removed_are_told(world: World) -> None:
    """The journal is only read; with the provider there, nothing is said."""
    world.state.settings[1] = sms_settings()
    world.state.enqueue(message(1))
    world.run_until_idle()
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        db.execute("UPDATE message SET provider = 'sms/gone', confirm_by = 9000000000000000")
        db.commit()
    found = line(check(world, "--offline"), "channels")
    assert found.startswith("warning ")
    assert "messages of sms/gone, which isn't configured: 1 with a receipt deadline" in found
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        db.execute("UPDATE message SET provider = 'sms'")
        db.commit()
    assert "isn't configured" not in check(world, "--offline").out


def test_what_goes_first_has_to_be_taken_first(world: World) -> None:
    """With one provider, codes wait at the service behind a backlog: `queue.take_ahead` is missing."""
    world.add('[[rules]]\nsettings = [2]\npriority = "high"\n')
    answered = check(world, "--offline")
    assert line(answered, "queue.take_ahead").startswith("hint ")
    assert answered.status == 0
    world.change("[queue]\n", "[queue]\ntake_ahead = 1000\n")
    assert "queue.take_ahead" not in check(world, "--offline").out
    world.change("take_ahead = 1000", "take_ahead = 3000000")
    wrong = check(world, "--offline")
    assert wrong.status == 78
    assert "take_ahead must not be greater than max_waiting" in wrong.err + wrong.out


def test_a_country_that_no_provider_serves_is_named(world: World) -> None:
    """And a mapping whose numbers may have no country code; not a country that a prefix is in."""
    two_providers(world, 'countries = ["DE", "AT", "FR"]\n', 'countries = ["DE"]\nprefixes = ["+33"]\n')
    answered = check(world, "--offline")
    assert answered.out.count("no provider of the channel serves it") == 1
    assert "AT: no provider of the channel serves it" in line(answered, "channels.sms.countries")
    assert "write the filter e164" in line(answered, "channels.sms.providers.one")


def test_a_country_that_one_of_the_providers_serves_is_not_named(world: World) -> None:
    two_providers(world, 'countries = ["DE", "AT"]\n')
    assert "no provider of the channel serves it" not in check(world, "--offline").out


NIGHT = 'window = { days = "Mon-Fri", from = "08:00", to = "20:00", zone = "UTC"'
FIRST_CHANNEL = """
[channels.messenger]
adapter = "http"
url = "BASE_URL/messenger"
json = { to = "{customer.phone}", text = "{content.text}" }
"""


@pytest.mark.parametrize(
    ("tables", "key", "text"),
    [
        ('[[rules]]\nbudget = "0 parts/day"', "rules.0.budget", "is 0, so no message"),
        ('[[rules]]\nbudget = "1 parts/day"', "rules.0.budget", None),
        (
            f"[[rules]]\n{NIGHT} }}", "content.default_lifetime",
            "is shorter than the 60h for which the window of rules.0 is closed",
        ),
        (f'[[rules]]\n{NIGHT}, outside = "send" }}', "content.default_lifetime", None),
        (f'[[rules]]\n{NIGHT.replace("Mon-Fri", "Mon-Sun")} }}', "content.default_lifetime", None),
        (
            '[[rules]]\ncap = { messages = 1, per = "3d" }', "content.default_lifetime",
            "is shorter than the 3d of rules.0.cap",
        ),
        ('[[rules]]\ncap = { messages = 1, per = "3d", over = "error" }', "content.default_lifetime", None),
        (
            f'[[rules]]\nchannels = ["messenger"]\nbudget = "9 parts/day"\nspent = "next"\n{FIRST_CHANNEL}',
            "rules.0.spent", None,
        ),
        (
            f'[[rules]]\nchannels = ["sms"]\nbudget = "9 parts/day"\nspent = "next"\n{FIRST_CHANNEL}',
            "rules.0.spent", "no provider or channel comes after",
        ),
        (
            f'[[rules]]\nbudget = "9 parts/day"\nspent = "next"\n{FIRST_CHANNEL}',
            "rules.0.spent", "no provider or channel comes after",
        ),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_do_what_it_says_is_named(
    world: World, tables: str, key: str, text: str | None
) -> None:
    """The default lifetime is two days; the window is closed for a weekend, or for a night."""
    world.change("[content]", '[content]\ndefault_lifetime = "2d"')
    world.add(tables)
    answered = check(world, "--offline")
    assert answered.status == 0, answered.out
    if text is None:
        assert f" {key}" not in answered.out
    else:
        assert text in line(answered, key)


def test_a_budget_that_leaves_nothing_else_is_named(world: World) -> None:
    """Of the last channel, and of its only provider; not of one of two providers."""
    two_providers(world, own='budget = "9 parts/day"\nspent = "next"\n')
    assert ".spent" not in check(world, "--offline").out
    world.change("[channels.sms.providers.two]\n", "[channels.sms.providers.two]\nenabled = false\n")
    assert "messages wait for the next period" in line(
        check(world, "--offline"), "channels.sms.providers.one.spent"
    )
    two_providers(world, 'budget = "9 parts/day"\nspent = "next"\n')
    assert "messages wait for the next period" in line(check(world, "--offline"), "channels.sms.spent")


def test_countries_outside_of_a_channel_s_are_named(world: World) -> None:
    """Also weights for them; not those that are served, nor those of a prefix."""
    own = 'countries = ["DE", "FR", "AT"]\nweights = { DE = 2, FR = 2, IT = 2 }\n'
    two_providers(world, 'countries = ["DE"]\nprefixes = ["+43"]\n', own)
    answered = check(world, "--offline")
    one = "channels.sms.providers.one"
    assert "FR: not in channels.sms.countries or prefixes" in line(answered, f"{one}.countries")
    assert answered.out.count("so nothing is sent there") == 2
    assert answered.out.count("has no effect, since it isn't in") == 4
