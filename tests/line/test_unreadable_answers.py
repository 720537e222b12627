"""Answers of providers of which bytes came, and which can't be read: repeated once, then held."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from deliveryd.channels.base import Accepted, InDoubt, TryAgain, Verdict
from support.logs import log_lines
from support.messages import message
from support.virtual import VirtualWorld, live

UNREADABLE = InDoubt("the answer isn't HTTP", unreadable=True)


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """One message for a provider that repeats what is in doubt, six times at most."""
    made = VirtualWorld(tmp_path)
    made.service.settings[1] = json.dumps({"content": {"en": {"sms": {"text": "hi"}}}})
    made.service.enqueue(message(1))
    return made


@pytest.mark.parametrize("first", [(), (InDoubt("cut off"),), (TryAgain("busy"), UNREADABLE)])
def test_an_answer_that_stays_unreadable_leads_to_one_repeat(
    world: VirtualWorld, first: tuple[Verdict, ...]
) -> None:
    """Each repeat may be another SMS: after the first the message is held, whatever `on_in_doubt` says."""
    channel, answers = world.channels["sms"], list(first)
    channel.verdict = lambda _dispatch: answers.pop(0) if answers else UNREADABLE
    live(world.run_until_idle)
    tries_in_doubt = [one for one in (*first, UNREADABLE, UNREADABLE) if isinstance(one, InDoubt)][:2]
    assert len(channel.attempts) == len(tries_in_doubt) + sum(isinstance(one, TryAgain) for one in first)
    assert world.service.statuses(1) == ["dequeued"]


def test_what_is_held_for_unreadable_answers_stays_held(world: VirtualWorld) -> None:
    """A restart doesn't repeat it, though the policy would."""
    channel, held = world.channels["sms"], []
    channel.verdict = lambda _dispatch: UNREADABLE

    async def run_twice() -> None:
        for _ in range(2):
            supervisor = world.supervisor()
            await supervisor.run(until_idle=True)
            held.append(supervisor.held_in_doubt)

    live(run_twice)
    assert held == [1, 1]
    assert len(channel.attempts) == 2


def test_one_unreadable_answer_does_not_hold_a_message(world: VirtualWorld) -> None:
    """The repeat has the same key, and its answer can be read."""
    channel, answers = world.channels["sms"], [UNREADABLE]
    channel.verdict = lambda _dispatch: answers.pop() if answers else Accepted("p-1")
    live(world.run_until_idle)
    assert len(channel.attempts) == 2
    assert world.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.slow
def test_a_provider_with_unreadable_answers_stops_after_a_few(world: VirtualWorld) -> None:
    """They count as failures: its breaker opens, and a hundred messages don't all go out in doubt."""
    world.add("concurrency = 2\n")
    for id_ in range(2, 101):
        world.service.enqueue(message(id_))
    channel = world.channels["sms"]
    channel.verdict = lambda dispatch: UNREADABLE if anyio.current_time() < 300 else Accepted(dispatch.key)
    live(world.run_until_idle)
    tried_in_vain = {dispatch.entry.id for at, dispatch in channel.attempts if at < 300}
    assert 10 <= len(tried_in_vain) < 25
    statuses = [world.service.statuses(id_) for id_ in range(1, 101)]
    assert statuses.count(["dequeued", "sent"]) > 75


def test_messages_accepted_without_the_id_are_told_together(world: VirtualWorld) -> None:
    """One warning for all within an hour, and a metric for each."""
    for id_ in range(2, 51):
        world.service.enqueue(message(id_))
    world.channels["sms"].verdict = lambda _dispatch: Accepted(None, lacks_id=True)
    supervisors = []

    async def run() -> None:
        supervisors.append(world.supervisor())
        await supervisors[0].run(until_idle=True)

    with log_lines("warning") as lines:
        live(run)
        told = [line for line in lines() if line["event"] == "channel.id_missing"]
    assert [(line["channel"], line["level"]) for line in told] == [("sms", "warning")]
    counted = {family.name: family.series for family in supervisors[0].parts.metrics.families}
    assert counted["deliveryd_accepted_without_id"]["sms", "sms"] == 50
    assert world.service.statuses(50) == ["dequeued", "sent"]
