"""What failed is told in the log: once a minute a line for each reason and channel, with a number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from deliveryd.channels.base import Accepted, Refused
from deliveryd.delivery import failures
from deliveryd.delivery.failures import Failures
from deliveryd.model import Entry, Spent, StatusEvent, Transition, format_instant
from deliveryd.states import State
from support.logs import log_lines
from support.virtual import START, VirtualWorld, live

Lines = Callable[[], list[tuple[str, str, int]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the log says of messages that failed: channel, reason, number."""
    with log_lines("warning") as logged:
        yield lambda: [
            (line["channel"], line["reason"], line["count"])
            for line in logged()
            if line["event"] == "message.failed"
        ]


def sms(text: str, **more: object) -> str:
    return json.dumps({"content": {"en": {"sms": {"text": text}}}, **more})


def test_failures_are_told_once_a_minute_by_reason_and_channel(tmp_path: Path, lines: Lines) -> None:
    """Seven numbers that don't exist, five names that are missing, three that came too late: three lines."""
    world = VirtualWorld(tmp_path)
    world.service.settings |= {
        1: sms("hello"),
        2: sms("hello {canary}"),
        3: sms("hello", delivery={"expiresAt": format_instant(START - 1)}),
    }
    ids = iter(range(1, 100))
    for settings_id, count in ((1, 10), (2, 5), (3, 3)):
        for _ in range(count):
            world.service.enqueue(
                {"id": next(ids), "settingsId": settings_id, "customerId": 1, "variables": {}}
            )
    world.channels["sms"].verdict = lambda dispatch: (
        Refused("provider answered 400", "sms.example.com") if dispatch.entry.id > 3 else Accepted("p")
    )
    seen: list[list[tuple[str, str, int]]] = []

    async def run() -> None:
        async with world.at_work():
            for until in (59, 61, 179):
                await trio.sleep_until(until)
                seen.append(lines())
            world.service.enqueue({"id": 500, "settingsId": 2, "customerId": 1, "variables": {}})
            await trio.sleep_until(181 + 31)

    live(run)
    told = [("sms", "provider answered 400", 7), ("none", "missing placeholders", 5), ("none", "expired", 3)]
    assert seen == [[], told, told]
    assert lines() == [*told, ("none", "missing placeholders", 1)]


def test_a_provider_that_reports_a_failure_later_is_summed_up_too(lines: Lines) -> None:
    summed = Failures()
    summed.add_reported(4)
    summed.report()
    summed.report()
    assert lines() == [("none", failures.REPORTED, 4)]


def failed(id_: int, details: str, **more: Any) -> Transition:
    entry = Entry(id_, 1, 1, {})._replace(**more)
    events = (StatusEvent(id_, "error", START, details=details),)
    return Transition(entry, State.READY, State.FAILED, START, events=events)


def test_no_value_of_a_message_is_told(lines: Lines) -> None:
    """Names of placeholders, instants and languages are left out; the channel stands in its own field."""
    summed = Failures()
    summed.add(
        [
            failed(1, "missing placeholders: canary"),
            failed(2, "expired at 2027-01-15T08:00:00.000000Z", provider="sms"),
            failed(3, "not a language tag: 'canary'"),
            failed(4, "sms: no; email: busy", spent=(Spent("sms", "no"), Spent("email", "busy"))),
            failed(5, "sms: outcome unknown after 3 tries: cut off", provider="sms"),
        ]
    )
    summed.report()
    assert sorted(lines()) == [
        ("email", "busy", 1),
        ("none", "missing placeholders", 1),
        ("none", "not a language tag", 1),
        ("sms", "expired", 1),
        ("sms", "outcome unknown after 3 tries: cut off", 1),
    ]


def test_reasons_without_end_are_told_as_one_sum(lines: Lines) -> None:
    summed = Failures()
    summed.add([failed(number, f"settings {number}: unreadable") for number in range(1000)])
    summed.report()
    assert len(lines()) == failures.MOST_FAILURE_REASONS + 1
    assert lines()[0] == ("none", failures.OTHER, 1000 - failures.MOST_FAILURE_REASONS)
