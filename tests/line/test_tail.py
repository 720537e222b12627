"""What happens to messages, as a stream of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd.channels.base import Dispatch, Refused, TryAgain, Verdict
from deliveryd.delivery.tail import MOST_HELD, TailEvent, TailFeed, TailFilter
from deliveryd.journal.base import MatchedReceipt
from deliveryd.model import Entry, Receipt, format_instant
from support.messages import message
from support.overviews import Worker
from support.virtual import START, VirtualWorld, live

BOTH = json.dumps(
    {"content": {"en": {"sms": {"text": "dear {name}"}, "email": {"subject": "s", "body": "b {name}"}}}}
)
EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""
ALL = TailFilter()


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with settings 1, two channels and an empty queue."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = BOTH
    world.add(EMAIL)
    return world


def watched(world: VirtualWorld, wanted: TailFilter) -> list[dict[str, Any]]:
    """Run a worker until idle; return the events that a tail of all of it gives."""
    events: list[TailEvent] = []

    async def run() -> None:
        supervisor = world.supervisor()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: supervisor.run(until_idle=True))
            await supervisor.opened.wait()
            with TailFeed(supervisor.parts.memory.watchers).open(wanted) as tail:
                while supervisor.account is None:
                    events.extend(await tail.next_events(0.5))

    live(run)
    return [event.as_data() for event in events]


def refused_by_sms(world: VirtualWorld) -> None:
    """The channel sms fails once in passing and then for good; e-mail takes over."""

    def verdict(dispatch: Dispatch) -> Verdict:
        return TryAgain("busy") if dispatch.entry.stay_tries == 1 else Refused("status 422")

    world.channels["sms"].verdict = verdict


def test_a_message_is_followed_from_its_take_to_its_last_event(world: VirtualWorld) -> None:
    """A retry, a fallback to another channel and the service's events appear in their order."""
    refused_by_sms(world)
    world.service.enqueue({**message(7), "variables": {"name": "Ann"}})
    events = watched(world, ALL)
    told = [
        tuple(each.get(name) for name in ("event", "channel", "number", "status", "reason"))
        for each in events
    ]
    assert told == [
        ("taken", None, None, None, None),
        ("reported", None, None, "dequeued", None),
        ("attempt", "sms", 1, None, None),
        ("try_again", "sms", None, None, "busy"),
        ("due", "sms", None, None, None),
        ("attempt", "sms", 2, None, None),
        ("refused", "sms", None, None, "status 422"),
        ("attempt", "email", 1, None, None),
        ("sent", "email", None, None, None),
        ("reported", None, None, "sent", None),
    ]
    assert {each["message"] for each in events} == {7}
    assert [each["at"] for each in events] == sorted(each["at"] for each in events)
    assert "Ann" not in json.dumps(events)


def test_a_failure_names_the_rule_and_no_value(world: VirtualWorld) -> None:
    """A customer's language that is no language tag is in the service's event, and not in the stream."""
    world.service.settings[1] = json.dumps({"content": {"en": {"sms": {"text": "{secret name}"}}}})
    world.service.enqueue(message(7))
    failed = [each for each in watched(world, TailFilter(failed=True)) if each["event"] == "failed"]
    assert [each["reason"] for each in failed] == ["missing placeholders"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (TailFilter(channel="email"), {"attempt", "sent"}),
        (TailFilter(failed=True), {"try_again", "refused"}),
        (TailFilter(message=8), set()),
    ],
)
def test_a_tail_shows_what_was_asked_for(world: VirtualWorld, wanted: TailFilter, expected: set[str]) -> None:
    """By channel, by message, or failures only."""
    refused_by_sms(world)
    world.service.enqueue({**message(7), "variables": {"name": "Ann"}})
    assert {each["event"] for each in watched(world, wanted)} == expected


def test_a_slow_reader_loses_events_and_is_told_how_many() -> None:
    """The line holds a bounded number of events for it, and never waits."""

    async def run() -> list[TailEvent]:
        feed = Worker().tails
        events: list[TailEvent] = []
        with feed.open(ALL) as tail:
            feed.taken([Entry(id_, 1, 1, {}) for id_ in range(MOST_HELD + 5)], START)
            while found := await tail.next_events(0.01):
                events += found
        return events

    events = anyio.run(run)
    assert len(events) == MOST_HELD + 1
    assert events[-1].as_data()["event"] == "dropped"
    assert events[-1].left_out == 5


def test_an_event_is_made_once_for_all_readers_that_selected_it() -> None:
    """So that many readers cost the line little; without one, nothing is made."""

    async def run() -> None:
        feed = Worker().tails
        with feed.open(ALL) as first, feed.open(ALL) as second, feed.open(TailFilter(message=8)) as other:
            feed.taken([Entry(7, 1, 1, {})], START)
            (event,), (same,) = await first.next_events(0.01), await second.next_events(0.01)
            assert event is same
            assert event.as_text() is same.as_text()
            assert json.loads(event.as_text()) == event.as_data()
            assert not await other.next_events(0.01)
        feed.taken([Entry(8, 1, 1, {})], START)
        assert not await first.next_events(0.01)

    anyio.run(run)


def test_the_status_of_a_receipt_is_shown_without_the_providers_words() -> None:
    """What a provider says may quote an address."""

    async def run() -> list[TailEvent]:
        feed = Worker().tails
        receipt = Receipt("sms/b", "id", False, "+4915112345678 is no number", START, START)
        with feed.open(ALL) as tail:
            feed.received([receipt], [MatchedReceipt("matched", None, 7)], START)
            return list(await tail.next_events(0.01))

    (event,) = anyio.run(run)
    assert event.as_data() == {
        "at": format_instant(START), "message": 7, "event": "receipt", "channel": "sms",
        "provider": "sms/b", "status": "failed", "reason": "matched",
    }  # fmt: skip
