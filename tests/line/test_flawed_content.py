"""Settings of which a part can't be read, and what an `error` event says of all that was tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deliveryd.channels.base import Refused, TryAgain
from deliveryd.model import format_instant
from support.messages import message
from support.virtual import START, VirtualWorld, live
from support.world import World, open_world

pytestmark = pytest.mark.slow

CHANNELS = """
[channels.messenger]
adapter = "http"
url = "BASE_URL/messenger"
json = { to = "{customer.messenger}", text = "{content.text}", reference = "{message.id}" }

[channels.email]
adapter = "smtp"
host = "127.0.0.1"
port = SMTP_PORT
tls = "none"
sender = "club@example.com"
"""
ANN = {"id": 1, "language": "de", "name": "Ann", "phone": "+447700900101", "email": "ann@example.com"}
MAIL = {"subject": "s", "body": "b"}
GREETING = {"text": "{greeting}"}
BAD_BUTTON = {"text": "m", "button": {"text": "Go"}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three channels, and a customer who can be reached on each."""
    for world in open_world(tmp_path):
        world.add(CHANNELS + '[channels]\norder = ["messenger", "email", "sms"]\n')
        world.customers([{**ANN, "messenger": "@ann"}])
        yield world


def send(world: World, **content: object) -> None:
    """Send a message of these languages."""
    world.state.settings[1] = json.dumps({"content": content}).encode()
    world.state.enqueue(message(1))
    world.run_until_idle()


def received(world: World) -> list[tuple[str, str]]:
    return [(each.channel, each.payload.get("text", "")) for each in world.state.received]


FLAWED: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "an e-mail without a body": (
        {"de": {"email": {"subject": "s"}, "sms": {"text": "hallo"}}},
        ("sms", "hallo"),
    ),
    "a button without a link": (
        {"de": {"messenger": BAD_BUTTON, "sms": {"text": "hallo"}}},
        ("sms", "hallo"),
    ),
    "a number for a text, in the customer's language": (
        {"de": {"sms": {"text": 5}}, "en": {"sms": {"text": "hello"}}},
        ("sms", "hello"),
    ),
    "a number for a text, in another language": (
        {"fr": {"sms": {"text": 5}}, "de": {"sms": {"text": "hallo"}}},
        ("sms", "hallo"),
    ),
    "a language that is no object": (
        {"de": "hallo", "en": {"sms": {"text": "hello"}}},
        ("sms", "hello"),
    ),
    "a language whose name is half a character": (
        {"\ud800": {"sms": {"text": "?"}}, "de": {"sms": {"text": "hallo"}}},
        ("sms", "hallo"),
    ),
    "greetings that are no object": (
        {"de": {"greetings": "hallo", "sms": {"text": "hallo"}}},
        ("sms", "hallo"),
    ),
    "a general greeting that can't be read": (
        {"de": {"greetings": {"general": 5, "personal": "Hallo {customer.name}"}, "sms": GREETING}},
        ("sms", "Hallo Ann"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAWED)
def test_a_part_that_cannot_be_read_keeps_no_message_from_being_sent(world: World, case: str) -> None:
    """It is passed over like one that isn't there, and the log says why."""
    content, expected = FLAWED[case]
    send(world, **content)
    assert received(world) == [expected]
    assert world.state.statuses(1) == ["dequeued", "sent"]
    [line] = [json.loads(line) for line in world.log().splitlines() if "settings.flawed" in line]
    assert (line["event"], line["settings_id"]) == ("settings.flawed", 1)
    assert line["reason"].startswith("content.")


def details(world: World) -> str:
    assert world.state.statuses(1) == ["dequeued", "error"]
    assert not world.state.received
    return str(world.state.events_of(1)[1]["details"])


def test_with_nothing_left_the_error_names_what_could_not_be_read(world: World) -> None:
    world.customers([{"id": 1, "language": "de", "email": "ann@example.com"}])
    send(world, de={"messenger": BAD_BUTTON, "sms": {"text": "hi"}}, en={"email": {"subject": "s"}})
    assert details(world) == (
        "sms: no address of the customer; content.de.messenger.button.url: is missing;"
        " content.en.email.body: is missing"
    )


def test_without_any_block_that_can_be_read_each_message_ends_in_an_error(world: World) -> None:
    """Such settings aren't kept, so that a correction counts within half a minute."""
    send(world, de="hallo", en={"email": {"subject": 5, "body": "b"}, "sms": {"text": None}})
    assert details(world) == (
        "settings 1: content.de: expected an object; content.en.sms.text: expected a text;"
        " content.en.email.subject: expected a text"
    )


def test_what_only_another_language_would_say_is_named_where_nobody_can_be_sent_anything(
    world: World,
) -> None:
    """Who the customer is isn't asked for then."""
    send(world, fr={"inApp": {"name": "of no channel"}}, de={"sms": {}})
    assert details(world) == "no content for a configured channel in en, de; content.de.sms.text: is missing"


def test_a_missing_value_is_told_with_what_was_passed_over(world: World) -> None:
    """The greeting has no value because it can't be read, and the better channel can't be read either."""
    send(
        world,
        de={"messenger": BAD_BUTTON, "greetings": {"personal": 5}, "sms": {"text": "{greeting} {city}"}},
        en={"email": {"subject": "never looked at"}},
    )
    assert details(world) == (
        "missing placeholders: greeting, city; content.de.messenger.button.url: is missing;"
        " content.de.greetings.personal: expected a text"
    )


def test_a_missing_value_after_a_refusal_is_told_with_the_refusal(world: World) -> None:
    """The last channel's reason isn't the only one."""
    world.change('order = ["messenger", "email", "sms"]', 'order = ["sms", "email", "messenger"]')
    world.customers([{**ANN, "phone": "+15550100"}])  # a number that the sandbox refuses
    send(world, de={"sms": {"text": "hallo"}, "email": {"subject": "{city}", "body": "b"}})
    assert details(world) == "sms: provider answered 400; email: missing placeholders: city"


EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""
EXPIRY = format_instant(START + 60 * 1_000_000)


def virtual(folder: Path, *before: dict[str, Any], **settings: object) -> VirtualWorld:
    """Two channels in virtual time, the first of which refuses. `before`: messages before the first."""
    world = VirtualWorld(folder)
    world.add(EMAIL + '[channels]\norder = ["sms", "email"]\n')
    content = {"en": {"sms": {"text": "hello"}, "email": MAIL}}
    world.service.settings[1] = json.dumps({"content": content, **settings})
    world.service.enqueue(*before, message(1))
    world.channels["sms"].verdict = lambda _dispatch: Refused("no such number")
    return world


def virtual_details(world: VirtualWorld) -> str:
    live(world.run_until_idle)
    assert world.service.statuses(1) == ["dequeued", "error"]
    return str(world.service.events[-1]["details"])


def test_an_expiry_after_a_refusal_is_told_with_the_refusal(tmp_path: Path) -> None:
    """The second channel fails until the time is up."""
    world = virtual(tmp_path, delivery={"expiresAt": EXPIRY})
    world.channels["email"].verdict = lambda _dispatch: TryAgain("provider answered 503")
    assert virtual_details(world) == f"sms: no such number; expired at {EXPIRY}"


def test_an_expiry_in_the_queue_of_a_channel_is_told_with_the_refusal_before(tmp_path: Path) -> None:
    """The second channel makes an attempt every two minutes, and another message has taken it."""
    world = virtual(tmp_path, message(2, 2), delivery={"expiresAt": EXPIRY})
    world.path.write_text(world.path.read_text().replace(EMAIL, EMAIL + 'rate = "30/h"\n'))
    world.service.settings[2] = json.dumps({"content": {"en": {"email": MAIL}}})
    live(world.run_until_idle)
    assert world.service.statuses(2) == ["dequeued", "sent"]
    [error] = [event for event in world.service.events if event["status"] == "error"]
    assert error["details"] == f"sms: no such number; expired at {EXPIRY}"


def test_settings_that_are_gone_after_a_refusal_are_told_with_the_refusal(tmp_path: Path) -> None:
    """They were thrown away while the message waited, and the service has them no more."""
    world = virtual(tmp_path)
    world.path.write_text(
        world.path.read_text().replace('cache_dir = "cache"', 'cache_dir = "cache"\nttl = "1s"')
    )

    def fail_once(_dispatch: object) -> TryAgain:
        world.service.settings.clear()
        return TryAgain("provider answered 503", after=60.0)

    world.channels["email"].verdict = fail_once
    assert virtual_details(world) == "sms: no such number; settings 1: the service answered 404"
