"""The rules for an SMS on the whole line: a worker as a process, the sandbox as service and providers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.messages import message
from support.world import World, open_world

pytestmark = pytest.mark.slow

EMAIL = """
[channels.email]
adapter = "smtp"
host = "127.0.0.1"
port = SMTP_PORT
tls = "none"
sender = "Club <club@example.com>"
"""
SHORT, TYPOGRAPHIC, LONG = (
    {"content": {"en": {"sms": {"text": text}, "email": {"subject": "Hi", "body": "By mail"}}}}
    for text in ("Your code is {code}", "It\u2019s \u2013 {code}" + "!" * 80, "\u044f" * 71 + "{code}")
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.change("[channels.sms]\n", "[channels.sms]\nmax_parts = 1\ntransliterate = true\n")
        world.customers(
            [
                {"id": 1, "name": "Ann", "phone": "+447700900101", "email": "ann@example.com"},
                {"id": 2, "name": "Uwe", "phone": "+447700900102"},
            ]
        )
        for number, settings in enumerate((SHORT, TYPOGRAPHIC, LONG), 1):
            world.state.settings[number] = settings
        yield world


def test_a_text_within_the_limit_is_sent_and_a_longer_one_takes_the_next_channel(world: World) -> None:
    """Typography is replaced before the parts are counted; what is still too long goes by e-mail."""
    world.add(EMAIL)
    world.state.enqueue(*(message(number, number, 1, code="4821") for number in (1, 2, 3)))
    world.run_until_idle()
    texts = {received.message_id: received.payload["text"] for received in world.state.received}
    assert texts == {1: "Your code is 4821", 2: "It's - 4821" + "!" * 80, 3: "By mail\n"}
    assert all(world.state.statuses(number) == ["dequeued", "sent"] for number in (1, 2, 3))


def test_without_a_channel_that_can_the_error_names_the_parts(world: World) -> None:
    """The service gets one error, with the parts and why the next channel couldn't."""
    world.add(EMAIL)
    world.state.enqueue(message(1, 3, 2, code="4821"))
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "error"]
    assert world.state.events_of(1)[1]["details"] == (
        "sms: 2 SMS parts, more than max_parts = 1; email: no address of the customer"
    )


def test_a_number_that_cannot_be_read_takes_the_next_channel(world: World) -> None:
    """A customer whose number can't be read is reached by e-mail; without one the error says why."""
    world.add(EMAIL)
    world.change("{customer.phone}", "{customer.phone|e164}")
    world.customers(
        [
            {"id": 1, "name": "Ann", "phone": "ask her", "email": "ann@example.com"},
            {"id": 2, "name": "Uwe", "phone": "ask him"},
            {"id": 3, "name": "Eve", "phone": "+44 (0) 7700 900 103"},
        ]
    )
    world.state.enqueue(*(message(number, 1, number, code="4821") for number in (1, 2, 3)))
    world.run_until_idle()
    assert len(world.state.accepted("email")) == 1
    sent = [received.payload for received in world.state.received]
    assert [payload["to"] for payload in sent if "to" in payload] == ["+447700900103"]
    assert world.state.events_of(2)[1]["details"] == (
        "sms: the phone number can't be read; email: no address of the customer"
    )


EMPTY = {
    "reference": "spring \u2019{code}",
    "content": {"en": {"sms": {"text": "{code}"}, "email": {"subject": "Hi", "body": "By mail"}}},
}


def test_a_text_that_is_empty_is_not_sent(world: World) -> None:
    """It is a flaw of the template, so the message ends with an error; other channels don't hide it."""
    world.add(EMAIL)
    world.state.settings[4] = EMPTY
    world.state.enqueue(message(1, 4, 1, code=" \n"), message(2, 4, 2, code=""))
    world.run_until_idle()
    for number in (1, 2):
        assert world.state.statuses(number) == ["dequeued", "error"]
        assert world.state.events_of(number)[1]["details"] == "sms.text is empty"
    assert world.state.received == []


def test_numbers_and_the_settings_reference_reach_the_provider_as_they_are(world: World) -> None:
    """A variable that is a number keeps its type and its digits where it is all of a field of JSON."""
    world.change(
        'text = "{content.text}"',
        'text = "{content.text}", amount = "{variables.amount}", written = "{variables.amount} EUR",'
        ' code = "{variables.code}", campaign = "{settings.reference}", note = "{settings.reference}!"',
    )
    world.state.settings[4] = EMPTY
    queued = {"id": 1, "settingsId": 4, "customerId": 1, "variables": {"code": "0042", "amount": 10.0}}
    world.state.enqueue(queued, message(2, 1, 1, code="1", amount="7"))
    world.run_until_idle()
    payloads = {received.message_id: received.payload for received in world.state.received}
    first, second = payloads[1], payloads[2]
    assert (first["amount"], first["written"], first["code"]) == (10.0, "10.0 EUR", "0042")
    assert first["campaign"] == "spring \u2019{code}"
    assert first["note"] == "spring \u2019{code}!"
    assert second["amount"] == "7"
    assert "campaign" not in second
