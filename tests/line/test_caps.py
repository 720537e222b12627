"""Caps: a customer gets at most so many messages within a time that moves on, through kills."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Refused, Verdict
from deliveryd.model import SECOND
from support.messages import message
from support.terminal import command
from support.virtual import START, SteppingClock, VirtualWorld, live

pytestmark = pytest.mark.slow

HOUR = 3600
TEXT = {"content": {"en": {"sms": {"text": "hello"}}}}
RULE = """
[[rules]]
settings = [1, 2]
cap = { messages = 3, per = "1h" }
"""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with eight messages to customer 1, of two settings ids, and one to customer 2."""
    world = VirtualWorld(tmp_path)
    for settings_id in (1, 2, 3):
        world.service.settings[settings_id] = json.dumps(TEXT)
    world.service.enqueue(*(message(id_, 1 + id_ % 2) for id_ in range(1, 9)), message(9, 1, 2))
    return world


def times_of(world: VirtualWorld, customer: int = 1) -> list[float]:
    """When messages to a customer were tried."""
    return [at for at, each in world.channels["sms"].attempts if each.entry.customer_id == customer]


def most_within(times: list[float], seconds: float) -> int:
    """The most of these instants within so many seconds."""
    return max(sum(at - seconds < each <= at for each in times) for at in times)


async def cut_off(world: VirtualWorld, seconds: float) -> None:
    """Run a worker, and kill it."""
    with trio.move_on_after(seconds):
        await world.supervisor().run()


def test_no_customer_gets_more_within_the_time(world: VirtualWorld) -> None:
    """Those of all ids of the rule count together; another customer isn't held up."""
    world.add(RULE)
    live(world.run_until_idle)
    times = times_of(world)
    assert Counter(int(at // HOUR) for at in times) == {0: 3, 1: 3, 2: 2}
    assert most_within(times, HOUR - 1) == 3
    assert times_of(world, 2)[0] < 60


def test_it_is_kept_through_a_kill(world: VirtualWorld) -> None:
    """What waits knows why and until when; no customer's id is in the counts."""
    world.add(RULE)
    live(lambda: cut_off(world, 600))
    assert len(times_of(world)) == 3
    rows = world.journal_rows("SELECT DISTINCT waits_for, due_at / 100000000 FROM message WHERE due_at > 0")
    assert rows == [("cap settings 1, 2", (START + HOUR * SECOND) // 100_000_000)]
    assert all(len(str(digest)) == 32 for (digest,) in world.journal_rows("SELECT customer FROM capped"))
    (id_, *_), *_ = world.journal_rows("SELECT id FROM message WHERE due_at > 0")
    explained = command("explain", "--config", world.path, id_).out
    assert "waiting for its customer to get more by the cap of settings 1, 2" in explained
    assert "its customer may get more by the cap then\n" in explained
    assert "rules.0: 3 messages per customer within 1h; to have it sent before, raise that" in explained
    world.clock = SteppingClock(600 * SECOND)
    world.channels["sms"].attempts.clear()
    live(world.run_until_idle)
    assert min(times_of(world)) >= HOUR - 601
    assert len(times_of(world)) == 5


def test_what_is_in_doubt_counts(world: VirtualWorld) -> None:
    """Its repeats are neither counted nor stopped."""
    tried: Counter[int] = Counter()

    def verdict(dispatch: Dispatch) -> Verdict:
        tried[dispatch.entry.id] += 1
        return InDoubt("lost") if tried[dispatch.entry.id] < 3 else Accepted(dispatch.key)

    world.channels["sms"].verdict = verdict
    world.add(RULE)
    live(world.run_until_idle)
    first: dict[int, float] = {}
    for at, dispatch in world.channels["sms"].attempts:
        first.setdefault(dispatch.entry.id, at)
    assert Counter(int(first[id_] // HOUR) for id_ in range(1, 9)) == {0: 3, 1: 3, 2: 2}
    assert set(tried.values()) == {3}


def test_what_was_refused_does_not_count(world: VirtualWorld) -> None:
    """Three more may be accepted."""
    answers: list[Verdict] = [Refused("no")] * 3
    world.channels["sms"].verdict = lambda dispatch: answers.pop() if answers else Accepted(dispatch.key)
    world.add("concurrency = 1\n" + RULE.replace("[1, 2]", "[1, 2, 3]"))
    live(world.run_until_idle)
    ended = Counter(world.service.statuses(id_)[-1] for id_ in range(1, 10))
    assert ended == {"error": 3, "sent": 6}
    accepted = [at for at, each in world.channels["sms"].attempts[3:] if each.entry.customer_id == 1]
    assert sum(at < 60 for at in accepted) == 3


def test_more_ends_as_an_error(world: VirtualWorld) -> None:
    """If the rule has it so."""
    world.add(RULE.replace('per = "1h"', 'per = "1h", over = "error"'))
    live(world.run_until_idle)
    ended = Counter(world.service.statuses(id_)[-1] for id_ in range(1, 10))
    assert ended == {"sent": 4, "error": 5}
    details = {event["details"] for event in world.service.events if event["status"] == "error"}
    assert details == {"the customer got 3 within 1h, which is the cap of settings 1, 2"}


def test_a_kill_amid_attempts_counts_what_is_in_doubt(world: VirtualWorld) -> None:
    """An intent without an outcome counts as accepted."""
    world.channels["sms"].seconds = 1000.0
    world.add('timeout = "2000s"\n' + RULE)
    live(lambda: cut_off(world, 100))
    world.channels["sms"].seconds = 0.05
    live(world.run_until_idle)
    assert Counter(int(at // HOUR) for at in times_of(world)) == {0: 3, 1: 3, 2: 2}
