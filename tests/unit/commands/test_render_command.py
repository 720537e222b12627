"""`deliveryd render`: what a template's author sees before any customer does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.terminal import Answered, command
from support.world import World, open_world

CHANNELS = """\
headers = { Authorization = "Bearer {secret.token}" }
secrets = { token = "token" }

[channels.messenger]
adapter = "http"
url = "BASE_URL/messenger"
json = { to = "{customer.messenger}", text = "{content.text}" }

[channels.email]
adapter = "smtp"
host = "127.0.0.1"
port = SMTP_PORT
tls = "none"
sender = "Club <club@example.com>"
"""
SETTINGS: dict[str, Any] = {
    "delivery": {"expiresAt": "2099-01-01T00:00:00Z"},
    "content": {
        "en": {
            "greetings": {"personal": "Hello {customer.name},", "general": "Hello,"},
            "sms": {"text": "{greeting} {amount} paid at {shop}"},
            "messenger": {"text": "{greeting} {amount}"},
            "email": {"subject": "Paid at {shop}", "body": "<p>{greeting} {amount} at {shop}</p>"},
        },
        "de": {"sms": {"text": "{amount} bei „{shop}“ bezahlt"}},
        "pt": {"sms": {"text": "{amount} em {shop}"}},
    },
}
VARIABLES = '{"amount": 10.50, "shop": "Rad & Tour"}'
ANN = {
    "id": 1,
    "name": "Ann Whitfield",
    "language": "en",
    "phone": "+447700900101",
    "email": "ann@example.com",
}
UWE = {"id": 2, "name": "Uwe Lang", "language": "de"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        token = tmp_path / "token"
        token.touch(mode=0o600)
        token.write_text("s3cret")
        world.add(CHANNELS)
        world.customers([ANN, UWE])
        world.state.settings[7] = SETTINGS
        (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
        yield world


def render(world: World, *options: object, settings: object = None) -> Answered:
    source = settings if settings is not None else world.folder / "settings.json"
    return command("render", "--config", world.config, "--settings", source, *options)


def headings(answered: Answered) -> list[str]:
    """The channels that are shown."""
    return [
        line
        for before, line in zip(answered.out.splitlines(), answered.out.splitlines()[1:], strict=False)
        if not before and not line.startswith((" ", "can't"))
    ]


def test_the_chosen_channel_is_marked_and_the_others_follow(world: World) -> None:
    """Each with the request that its adapter would make, without its secrets."""
    answered = render(world, "--variables", VARIABLES, "--customer", 1)
    assert (answered.status, answered.err) == (0, "")
    assert headings(answered) == ["messenger, en", "sms, en (chosen)", "email, en"]
    assert "can't be sent: no address of the customer" in answered.out
    assert '"text":"Hello Ann Whitfield, 10.50 paid at Rad & Tour"' in answered.out
    assert "Authorization: Bearer ***" in answered.out
    assert "s3cret" not in answered.out
    assert "1 SMS (45 units of GSM-7)" in answered.out
    assert "Subject: Paid at Rad & Tour" in answered.out
    assert "<p>Hello Ann Whitfield, 10.50 at Rad &amp; Tour</p>" in answered.out
    assert "other languages (see --language): pt" in answered.out


def test_devices_that_are_not_sent_to_have_a_line_for_each_reason(world: World) -> None:
    """And no request is shown for them."""
    others = ["+447700900101", "+447700900102"]
    world.customers([{**ANN, "phones": ["+33639980001", *others, "unknown", "+33639980002"]}])
    world.change("{customer.phone}", "{customer.phones|e164}")
    table = 'recipient = "{customer.phones|e164}"\ndevices = true\ncountries = ["FR"]\n'
    world.change("\n\n[channels.messenger]", f"\n{table}\n[channels.messenger]")
    options = ("--variables", VARIABLES, "--customer", 1, "--channel", "sms")
    shown = render(world, *options).out
    assert shown.count("POST ") == 2
    assert not any(number in shown for number in others)
    assert [line.strip() for line in shown.splitlines() if "not sent to" in line] == [
        "not sent to 2 of 5 devices: a number in no country is not in channels.sms.countries",
        "not sent to 1 of 5 devices: the phone number can't be read",
    ]
    world.add('[safety]\nonly_to = ["+33639980002"]\n')
    shown = render(world, *options).out
    assert shown.count("POST ") == 1
    assert "not sent to 3 of 5 devices: not on the list of this installation" in shown


def test_the_settings_reference_is_in_the_request_that_is_shown(world: World) -> None:
    """As it would reach the provider; without one its field is left out."""
    world.change('reference = "{message.id}"', 'campaign = "{settings.reference}"')
    named = world.folder / "named.json"
    named.write_text(json.dumps({**SETTINGS, "reference": "spring sale"}))
    options = ("--variables", VARIABLES, "--customer", 1)
    assert '"campaign":"spring sale"' in render(world, *options, settings=named).out
    without = render(world, *options)
    assert (without.status, "campaign" in without.out) == (0, False)


def test_files_are_enough_without_any_network(world: World) -> None:
    variables = world.folder / "variables.json"
    variables.write_text(VARIABLES)
    assert render(world, "--variables", variables, "--customer", 1).status == 0
    assert not world.state.requests


def test_nothing_is_sent(world: World) -> None:
    render(world, "--variables", VARIABLES, "--customer", 1)
    assert not world.state.attempts
    assert not world.state.accepted("email")


def test_missing_placeholders_of_the_chosen_channel_end_with_1(world: World) -> None:
    answered = render(world, "--customer", 1, "--variables", '{"shop": "Corner"}')
    assert answered.status == 1
    assert "sms, en (chosen)" in headings(answered)
    assert answered.out.splitlines()[-1] == "can't be sent: missing placeholders: amount"


def test_missing_placeholders_of_another_channel_are_shown_and_do_no_harm(world: World) -> None:
    settings = json.loads(json.dumps(SETTINGS))
    settings["content"]["en"]["email"]["body"] = "{nobody.knows}"
    path = world.folder / "other.json"
    path.write_text(json.dumps(settings))
    answered = render(world, "--customer", 1, "--variables", VARIABLES, settings=path)
    assert answered.status == 0
    assert "can't be sent: missing placeholders: nobody.knows" in answered.out


def test_what_cannot_be_read_is_named_and_passed_over(world: World) -> None:
    """As the line would: another channel is chosen, and the author sees why."""
    settings = json.loads(json.dumps(SETTINGS))
    del settings["content"]["en"]["sms"]["text"]
    path = world.folder / "flawed.json"
    path.write_text(json.dumps(settings))
    answered = render(world, "--customer", 1, "--variables", VARIABLES, settings=path)
    assert (answered.status, answered.err) == (0, "")
    assert "unreadable and skipped: content.en.sms.text: is missing" in answered.out
    assert "email, en (chosen)" in headings(answered)
    data = render(world, "--customer", 1, "--variables", VARIABLES, "--json", settings=path).data
    assert data["unreadable"] == ["content.en.sms.text: is missing"]
    answered = render(world, "--channel", "sms", "--language", "en", settings=path)
    assert answered.status == 1
    assert "have no such content in en; content.en.sms.text: is missing" in answered.err


def test_one_language_and_one_channel(world: World) -> None:
    """A language that the line wouldn't try can be shown too."""
    answered = render(
        world, "--variables", VARIABLES, "--language", "PT", "--channel", "sms", "--customer", 1
    )
    assert answered.status == 0
    assert headings(answered) == ["sms, pt"]
    assert '"text":"10.50 em Rad & Tour"' in answered.out


def test_without_a_customer_the_texts_are_for_somebody_unknown(world: World) -> None:
    """The general greeting, no addresses, and still no error."""
    answered = render(world, "--variables", VARIABLES, "--language", "en")
    assert answered.status == 0
    assert "customer unknown: give one with --customer" in answered.out
    assert "text: Hello, 10.50 paid at Rad & Tour" in answered.out
    assert "Authorization" not in answered.out


def test_a_customer_without_any_address(world: World) -> None:
    answered = render(world, "--variables", VARIABLES, "--customer", 2)
    assert answered.status == 1
    assert "no address of the customer" in answered.out.splitlines()[-1]


def test_a_customer_whom_nobody_knows_is_named_as_such(world: World) -> None:
    answered = render(world, "--variables", VARIABLES, "--customer", 99)
    assert answered.status == 1
    assert "customer 99, not in the directory" in answered.out


def test_expired_settings_are_not_sent_on_any_channel(world: World) -> None:
    path = world.folder / "old.json"
    path.write_text(json.dumps({**SETTINGS, "delivery": {"expiresAt": "2020-01-01T00:00:00Z"}}))
    answered = render(world, "--variables", VARIABLES, "--language", "pt", settings=path)
    assert answered.status == 1
    assert answered.out.splitlines()[-1] == "can't be sent: expired at 2020-01-01T00:00:00.000000Z"


def test_settings_without_an_expiry_expire_by_the_default_lifetime(world: World) -> None:
    path = world.folder / "endless.json"
    path.write_text(json.dumps({"content": SETTINGS["content"]}))
    shown = render(world, "--variables", VARIABLES, "--customer", 1, settings=path)
    assert shown.out.splitlines()[0].endswith("which never expire")
    text = world.config.read_text("utf-8")
    world.config.write_text(text.replace("[content]", '[content]\ndefault_lifetime = "72h"'), "utf-8")
    shown = render(world, "--variables", VARIABLES, "--customer", 1, settings=path)
    assert (shown.status, shown.err) == (0, "")
    assert "which name no expiry: a message taken now would expire at 20" in shown.out.splitlines()[0]
    assert shown.out.splitlines()[0].endswith(" (content.default_lifetime)")


def test_settings_by_id_come_from_the_service_and_are_not_kept(world: World) -> None:
    """The cache is the worker's: it isn't filled by whoever looks."""
    answered = render(world, "--variables", VARIABLES, "--customer", 1, settings=7)
    assert answered.status == 0
    assert answered.out.startswith("settings from the service, ")
    assert not (world.folder / "cache").exists()


@pytest.mark.slow
def test_settings_that_the_worker_has_in_its_cache_are_taken_from_there(world: World) -> None:
    world.state.enqueue({"id": 1, "settingsId": 7, "customerId": 1, "variables": json.loads(VARIABLES)})
    world.run_until_idle()
    answered = render(world, "--variables", VARIABLES, "--customer", 1, settings=7)
    assert answered.out.startswith("settings from the cache, ")
    assert world.state.settings_requests[7] == 1


def test_for_programs_the_same_is_json(world: World) -> None:
    data = render(world, "--variables", VARIABLES, "--customer", 1, "--json").data
    [chosen] = [preview for preview in data["previews"] if preview["chosen"]]
    assert (chosen["channel"], chosen["language"]) == ("sms", "en")
    assert chosen["fields"] == {"text": "Hello Ann Whitfield, 10.50 paid at Rad & Tour"}
    assert chosen["sms"] == {"encoding": "GSM-7", "units": 45, "parts": 1, "forced_by": []}
    assert data["problem"] is None


def test_the_message_id_is_the_one_that_is_asked_for(world: World) -> None:
    answered = render(world, "--variables", VARIABLES, "--customer", 1, "--message-id", 20417)
    assert '"reference":20417' in answered.out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--variables", '{"amount": 1,}'), "--variables: invalid JSON: "),
        (("--variables", "[1]"), "--variables: expected a JSON object"),
        (("--variables", '{"amount": null}'), "--variables: expected a string or a number: amount"),
        (("--variables", "absent.json"), "absent.json can't be read: No such file or directory"),
        (("--language", "fr"), "there is no language fr in these settings; there are: en, de, pt"),
    ],
)
def test_input_that_cannot_be_used_is_named(world: World, options: tuple[str, ...], reason: str) -> None:
    answered = render(world, *options)
    assert (answered.status, answered.out) == (1, "")
    assert reason in answered.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--language", "!"), "--language: not a language tag: '!'"),
        (("--channel", "smss"), "--channel: there is no channel 'smss'; did you mean sms?"),
        (("--channel", "fax"), "--channel: there is no channel 'fax'; there are messenger, sms, email"),
    ],
)
def test_an_option_that_names_nothing_is_a_usage_error(
    world: World, options: tuple[str, ...], reason: str
) -> None:
    """It is suggested what may have been meant."""
    answered = render(world, *options)
    assert (answered.status, answered.out) == (2, "")
    assert reason in answered.err.replace("'--", "--").replace("': ", ": ")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, "9" * 40, "9" * 5000])
def test_a_number_beyond_the_ids_of_settings_is_told_as_such(world: World, number: object) -> None:
    """It is taken neither for a file nor to the service."""
    answered = render(world, "--variables", VARIABLES, settings=number)
    assert (answered.status, answered.out) == (1, "")
    assert answered.err.startswith("deliveryd: --settings: IDs are 64-bit integers; ")
    assert not world.state.requests


@pytest.mark.slow
def test_the_largest_ids_of_settings_are_asked_for(world: World) -> None:
    for number in (2**63 - 1, -(2**63)):
        assert f"settings {number}: the service answered 404" in render(world, settings=number).err


def test_settings_that_cannot_be_used_are_named_with_the_place(world: World) -> None:
    broken = world.folder / "broken.json"
    broken.write_text('{\n  "content": {\n    "en": }\n}')
    assert (
        "broken.json: invalid JSON: Expecting value at line 3, column 11"
        in render(world, settings=broken).err
    )
    broken.write_text('{"content": {"en": {"sms": {}}}}')
    assert "broken.json: content.en.sms.text: is missing" in render(world, settings=broken).err
    assert "settings 404: the service answered 404" in render(world, settings=404).err


TYPOGRAPHY = {"content": {"en": {"sms": {"text": "It\u2019s \u2013 {shop}" + "!" * 70}}}}


def test_what_forces_ucs_2_is_named(world: World) -> None:
    """An SMS shows its coding, its parts and the characters that cost them, as text and as JSON."""
    (world.folder / "settings.json").write_text(json.dumps(TYPOGRAPHY))
    options = ("--variables", VARIABLES, "--customer", 1, "--channel", "sms")
    answered = render(world, *options)
    assert "2 SMS (87 units of UCS-2, forced by U+2019, U+2013)" in answered.out
    [shown] = render(world, *options, "--json").data["previews"]
    assert shown["sms"] == {"encoding": "UCS-2", "units": 87, "parts": 2, "forced_by": ["\u2019", "\u2013"]}


def test_a_transliterated_text_is_shown_as_it_would_be_sent(world: World) -> None:
    """With `transliterate` the request has the text in GSM-7."""
    (world.folder / "settings.json").write_text(json.dumps(TYPOGRAPHY))
    world.change("[channels.sms]\n", "[channels.sms]\ntransliterate = true\nmax_parts = 1\n")
    answered = render(world, "--variables", VARIABLES, "--customer", 1)
    assert "1 SMS (87 units of GSM-7)" in answered.out
    assert '"text":"It\'s - Rad & Tour!!!' in answered.out
    assert answered.status == 0


def test_a_text_of_too_many_parts_is_shown_with_the_reason(world: World) -> None:
    """With `max_parts` the channel can't send the text, and the preview says by how much."""
    (world.folder / "settings.json").write_text(json.dumps(TYPOGRAPHY))
    world.change("[channels.sms]\n", "[channels.sms]\nmax_parts = 1\n")
    answered = render(world, "--variables", VARIABLES, "--customer", 1)
    assert answered.status == 1
    assert "can't be sent: sms: 2 SMS parts, more than max_parts = 1" in answered.out


def test_a_phone_number_that_cannot_be_read_is_the_reason(world: World) -> None:
    """The reason says that the number can't be read, and doesn't quote it."""
    world.customers([{**ANN, "phone": "see notes"}])
    world.change('{ to = "{customer.phone}"', '{ to = "{customer.phone|e164}"')
    answered = render(world, "--variables", VARIABLES, "--customer", 1, "--channel", "sms")
    assert answered.status == 1
    assert "can't be sent: sms: the phone number can't be read" in answered.out
    assert "see notes" not in answered.out


def test_the_address_for_receipts_is_the_providers_own(world: World) -> None:
    """`{receipt.url}` is the public address followed by the path that the receipts server has for it."""
    server = 'listen = "127.0.0.1:0"\npublic_url = "https://cb.example.com"\n'
    world.change('[receipts]\nlisten = ""\n', f"[receipts]\n{server}")
    world.change('{ to = "{customer.phone}"', '{ to = "{customer.phone}", cb = "{receipt.url}"')
    receipt = 'provider_id = "/id"\nstatus = "/s"\ndelivered = ["d"]\nfailed = ["f"]\n'
    world.add(f"[channels.sms.receipt]\n{receipt}")
    answered = render(world, "--variables", VARIABLES, "--customer", 1, "--channel", "sms")
    assert '"cb":"https://cb.example.com/receipts/sms/sms"' in answered.out


PROVIDERS = """
[channels.messenger.providers.one]
adapter = "http"
url = "BASE_URL/messenger"
json = { to = "{customer.phone}", text = "{content.text}" }
weight = 80
[channels.messenger.providers.two]
adapter = "http"
url = "BASE_URL/messenger"
json = { to = "{customer.phone}", text = "{content.text}" }
weight = 20
"""


@pytest.fixture
def several(tmp_path: Path) -> Iterator[World]:
    """A channel with two providers."""
    for world in open_world(tmp_path):
        world.add(PROVIDERS)
        world.customers([ANN])
        (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
        yield world


@pytest.mark.slow
def test_the_message_id_decides_between_providers_by_their_weights(several: World) -> None:
    """As it does in the worker: the same ID leads to the same provider."""
    chosen = []
    for number in range(1, 41):
        data = render(
            several, "--customer", 1, "--variables", VARIABLES, "--message-id", number, "--json"
        ).data
        (one,) = [each for each in data["previews"] if each["chosen"]]
        chosen.append(one["provider"])
        assert (one["weight"], one["weights"]) in {(80, 100), (20, 100)}
    assert 24 <= chosen.count("messenger/one") <= 39
    answered = render(several, "--customer", 1, "--variables", VARIABLES, "--message-id", 1)
    (heading,) = [line for line in headings(answered) if "chosen" in line]
    weight = 80 if chosen[0] == "messenger/one" else 20
    assert heading == f"{chosen[0]}, en, weight {weight} of 100 (chosen for message 1)"


def test_a_provider_is_shown_alone_by_its_identity(several: World) -> None:
    answered = render(several, "--customer", 1, "--variables", VARIABLES, "--channel", "messenger/two")
    assert [line.partition(",")[0] for line in headings(answered)] == ["messenger/two"]
    wrong = render(several, "--channel", "messenger/tow")
    assert (wrong.status, "messenger has no provider tow; did you mean two?" in wrong.err) == (2, True)


def test_a_recipient_who_stopped_the_channel_is_not_reached_there(several: World) -> None:
    file = several.folder / "opted-out.txt"
    file.write_text(str(ANN["phone"]))
    stopped = command("stopped", "import", "--config", several.config, "--channel", "messenger", file)
    assert stopped.status == 0, stopped
    answered = render(several, "--customer", 1, "--variables", VARIABLES)
    assert "can't be sent: the recipient is suppressed on messenger" in answered.out
    assert "sms, en (chosen)" in headings(answered)
