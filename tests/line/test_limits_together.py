"""Budgets and caps beside what else keeps a message: providers down or paused, windows, a wrong clock."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Refused, TryAgain, Verdict
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import SECOND
from support.limits import HOUR, hours_of, two_providers
from support.messages import message
from support.virtual import SteppingClock, VirtualWorld, live

pytestmark = pytest.mark.slow

TEXT = {"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "hello", "body": "hello"}}}}
LONG = {"content": {"en": {"sms": {"text": "[" * 150}}}}
"""Two parts."""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with ten messages to one customer."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = json.dumps(TEXT)
    world.service.settings[2] = json.dumps(LONG)
    world.service.enqueue(*(message(id_) for id_ in range(1, 11)))
    return world


def statuses(world: VirtualWorld) -> Counter[str]:
    """The last statuses of all messages."""
    return Counter(world.service.statuses(id_)[-1] for id_ in range(1, 11))


@pytest.mark.parametrize("answer", [TryAgain("down"), Refused("no such sender", by="status")])
def test_a_spent_provider_beside_one_that_fails(world: VirtualWorld, answer: Verdict) -> None:
    """What the one has no budget for waits for the other, or for the next period: nothing goes round."""
    world.write(two_providers())
    world.channels["sms/b"].verdict = lambda _dispatch: answer
    world.service.enqueue(*(message(id_) for id_ in range(11, 61)))

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(4 * HOUR)

    live(run, hours=5)  # which also ends a loop that turns at one instant
    assert max(hours_of(world, "sms/a").values()) == 3
    assert len(world.channels["sms/b"].attempts) < 1000


def test_a_spent_provider_beside_one_that_is_paused(world: VirtualWorld) -> None:
    """The next periods of the one are used."""
    world.write(two_providers())

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(1)
            order = Order(Action.PAUSE, ItemKind.PROVIDER, ("sms/b",), "an operator")
            await worker.parts.recorder.decide(order, worker.parts.stations.dispatchers)
            await trio.sleep(HOUR)
            world.service.enqueue(*(message(id_) for id_ in range(21, 30)))
            await trio.sleep(6 * HOUR)

    live(run, hours=8)
    assert all(world.service.statuses(id_)[-1] == "sent" for id_ in range(21, 30))
    assert max(hours_of(world, "sms/a").values()) == 3


def test_what_needs_more_than_the_whole_budget_ends_on_the_last_channel(world: VirtualWorld) -> None:
    """With `next` as well: no period has enough."""
    world.add('budget = "1 parts/hour"\nspent = "next"\n')
    world.service.enqueue(message(99, 2))

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(60)

    live(run)
    assert world.service.statuses(99) == ["dequeued", "error"]
    assert "more than the whole budget" in str(world.service.events_of(99)[-1]["details"])


def test_what_is_given_back_is_offered_to_those_that_wait(world: VirtualWorld) -> None:
    """Four are refused while the others wait: these are sent at once, not in the next month."""
    world.channels["sms"].verdict = lambda dispatch: (
        Refused("no") if dispatch.entry.id <= 4 else Accepted(dispatch.key)
    )
    world.add('budget = "4 messages/month"\n')

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(60)

    live(run)
    assert len(world.channels["sms"].attempts) == 8
    assert statuses(world) == {"error": 4, "sent": 4, "dequeued": 2}


@pytest.mark.parametrize("over", ["wait", "error"])
def test_a_try_that_a_provider_did_not_take_counts_for_no_cap(world: VirtualWorld, over: str) -> None:
    """Its own repeat is sent: the cap isn't full by what was given back."""
    answers: list[Verdict] = [TryAgain("busy")]
    world.channels["sms"].verdict = lambda dispatch: answers.pop() if answers else Accepted(dispatch.key)
    world.add(f'[[rules]]\ncap = {{ messages = 1, per = "7d", over = "{over}" }}\n')

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(HOUR)

    live(run)
    assert statuses(world)["sent"] == 1


def test_a_clock_that_was_ahead_closes_no_cap_for_long(world: VirtualWorld) -> None:
    """What was sent 300 days ahead counts from when the clock is right."""
    world.add('[[rules]]\ncap = { messages = 10, per = "1h" }\n')
    clock = world.clock = SteppingClock(300 * 86400 * SECOND)

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(60)
            clock.ahead = 0
            await trio.sleep(60)
            world.service.enqueue(message(11))
            await trio.sleep(3 * HOUR)

    live(run, hours=5)
    assert hours_of(world) == {0: 10, 1: 1}


@pytest.mark.parametrize("spent", ["error", "next"])
def test_a_window_that_is_closed_comes_before_a_budget_that_is_spent(world: VirtualWorld, spent: str) -> None:
    """By the time that it opens, the budget has a new period. The run begins at 08:00."""
    email = '\n[channels.email]\nadapter = "http"\nurl = "http://mail"\njson = { text = "{content.body}" }\n'
    window = '[[rules]]\nsettings = [1]\nchannels = ["sms"]\nwindow = { from = "10:00", to = "11:00" }\n'
    world.add(f'budget = "1 parts/hour"\nspent = "{spent}"\n{email}{window}[content]\nzone = "UTC"\n')
    world.service.settings[4] = json.dumps(TEXT)

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(1)
            world.service.enqueue(message(50, 4))  # it spends the first period
            await trio.sleep(60)
            assert world.service.statuses(50) == ["dequeued", "sent"]
            text = world.path.read_text(encoding="utf-8")
            world.write(text.replace('to = "11:00"', 'to = "11:01"'))  # what waits is looked at again
            assert worker.reloader is not None
            await worker.reloader.reload(accept_orphans=False)
            await trio.sleep(60)
            assert statuses(world) == {"dequeued": 10}
            await trio.sleep(3 * HOUR)

    live(run, hours=5)
    assert hours_of(world) == {0: 1, 2: 1}
    assert statuses(world)["error" if spent == "error" else "sent"] >= 9


def test_what_waits_long_keeps_no_place_from_what_is_taken_ahead(world: VirtualWorld) -> None:
    """More wait for a budget than may be taken ahead, and fewer places are free than a batch needs."""
    world.add(
        'budget = "1 messages/day"\n[channels.email]\nadapter = "http"\nurl = "http://mail"\n'
        'json = { text = "{content.body}" }\n[queue]\nmax_in_flight = 10\nbatch_size = 8\ntake_ahead = 5\n'
    )
    world.service.settings[3] = json.dumps({"content": {"en": {"email": TEXT["content"]["en"]["email"]}}})

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(60)
            world.channels["email"].seconds = 600.0
            world.service.enqueue(*(message(id_, 3) for id_ in range(20, 40)))
            await trio.sleep(60)
            assert world.service.offers.waiting == 0
            await trio.sleep(HOUR)

    live(run)
    assert len(world.channels["email"].attempts) == 20
