"""Budgets: no period has more than its amount, through kills; all else waits, goes elsewhere or ends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Refused, TryAgain, Verdict
from deliveryd.model import SECOND
from deliveryd.worker.reload import APPLIED
from support.limits import HOUR, hours_of, two_providers
from support.logs import log_text
from support.messages import message
from support.terminal import command
from support.virtual import START, SteppingClock, VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

TEXT = {"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "hello", "body": "hello"}}}}
LONG = {"content": {"en": {"sms": {"text": "[" * 150}}}}
"""300 septets, which are two parts, though they are 150 characters."""

EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with ten messages of settings 1."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = json.dumps(TEXT)
    world.service.settings[2] = json.dumps(LONG)
    world.service.enqueue(*(message(id_) for id_ in range(1, 11)))
    return world


async def reloaded(worker: VirtualSupervisor) -> None:
    """Have a worker read its configuration again."""
    assert worker.reloader is not None
    assert (await worker.reloader.reload(accept_orphans=False)).outcome == APPLIED


def details(world: VirtualWorld, id_: int) -> str:
    """Why a message ended."""
    return str(world.service.events_of(id_)[-1]["details"])


async def cut_off(world: VirtualWorld, seconds: float) -> None:
    """Run a worker, and kill it."""
    with trio.move_on_after(seconds):
        await world.supervisor().run()


def test_what_is_beyond_waits_for_the_next_period(world: VirtualWorld) -> None:
    """Without a place, and no period has more; two warnings are logged in each."""
    world.add('budget = "4 messages/hour"\n')
    with log_text("warning") as log:
        live(world.run_until_idle)
    assert hours_of(world) == {0: 4, 1: 4, 2: 2}
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 11))
    assert log.getvalue().count("budget.spent") == 2


def test_a_warning_comes_once_before(world: VirtualWorld) -> None:
    """At 80 %, and once where it is spent."""
    world.add('budget = "10 messages/day"\nconcurrency = 1\n')
    with log_text("warning") as log:
        live(world.run_until_idle)
    assert [log.getvalue().count(event) for event in ("budget.nearly_spent", "budget.spent")] == [1, 1]


def test_a_kill_neither_loses_nor_doubles_a_count(world: VirtualWorld) -> None:
    """What waits knows why, and the next worker goes on with what is left."""
    world.add('budget = "4 messages/hour"\n')
    live(lambda: cut_off(world, 600))
    assert world.journal_rows("SELECT name, messages FROM budget") == [("channel sms per hour", 4)]
    waiting = "SELECT DISTINCT waits_for, due_at FROM message WHERE due_at IS NOT NULL"
    assert world.journal_rows(waiting) == [("budget channel sms per hour", START + HOUR * SECOND)]
    (id_, *_), *_ = world.journal_rows("SELECT id FROM message WHERE due_at IS NOT NULL")
    explained = command("explain", "--config", world.path, id_).out
    assert "waiting for the next period of the budget of channel sms per hour" in explained
    assert "the budget has a new period then\n" in explained
    assert "channels.sms: 4 messages/hour; to have it sent before, raise that" in explained
    world.clock = SteppingClock(600 * SECOND)
    world.channels["sms"].attempts.clear()
    live(world.run_until_idle)
    assert min(at for at, _ in world.channels["sms"].attempts) >= HOUR - 600
    assert len(world.channels["sms"].attempts) == 6


def test_what_a_provider_surely_did_not_take_is_given_back(world: VirtualWorld) -> None:
    """The tries of four messages end as refused, or not taken, before four are accepted."""
    answers: list[Verdict] = [Refused("no"), TryAgain("busy"), Refused("no"), TryAgain("busy")]
    world.channels["sms"].verdict = lambda dispatch: answers.pop() if answers else Accepted(dispatch.key)
    world.add('budget = "4 messages/hour"\nconcurrency = 1\n')
    live(world.run_until_idle)
    accepted = [at for at, _ in world.channels["sms"].attempts][4:]
    assert [int(at // HOUR) for at in accepted] == [0] * 4 + [1] * 4


def test_what_may_have_arrived_is_counted_once_and_not_stopped(world: VirtualWorld) -> None:
    """It is repeated under its key, though the budget is spent by then."""
    tried: Counter[int] = Counter()

    def verdict(dispatch: Dispatch) -> Verdict:
        tried[dispatch.entry.id] += 1
        return InDoubt("lost") if tried[dispatch.entry.id] < 3 else Accepted(dispatch.key)

    world.channels["sms"].verdict = verdict
    world.add('budget = "4 messages/hour"\n')
    live(world.run_until_idle)
    first: dict[int, float] = {}
    for at, dispatch in world.channels["sms"].attempts:
        first.setdefault(dispatch.entry.id, at)
    assert Counter(int(at // HOUR) for at in first.values()) == {0: 4, 1: 4, 2: 2}
    assert hours_of(world) == {0: 12, 1: 12, 2: 6}


def test_parts_are_counted_as_they_are_sent(world: VirtualWorld) -> None:
    """Characters of the extension table are two septets each; a mail is one."""
    world.add('budget = "10 parts/hour"\n')
    world.service.enqueue(*(message(id_, 2) for id_ in range(11, 16)))
    live(world.run_until_idle)
    parts: Counter[int] = Counter()
    for at, dispatch in world.channels["sms"].attempts:
        parts[int(at // HOUR)] += dispatch.entry.settings_id
    assert parts == {0: 10, 1: 10}


def test_what_needs_more_than_the_whole_budget_ends(world: VirtualWorld) -> None:
    """It would wait for ever."""
    world.add('budget = "1 parts/hour"\n')
    world.service.enqueue(message(99, 2))
    live(world.run_until_idle, hours=12)
    assert "it needs 2 parts, more than the whole budget of channel sms, 1 part/hour" in details(world, 99)


def test_it_goes_to_the_next_channel(world: VirtualWorld) -> None:
    """Which is tried at once."""
    world.add(f'budget = "4 messages/hour"\nspent = "next"\n{EMAIL}')
    live(world.run_until_idle)
    assert (hours_of(world), hours_of(world, "email")) == ({0: 4}, {0: 6})


def test_it_goes_to_the_next_provider_and_waits_where_there_is_none(world: VirtualWorld) -> None:
    """What another provider takes isn't sent on to another channel."""
    world.write(two_providers(1000, 0))
    live(world.run_until_idle)
    assert (hours_of(world, "sms/a"), hours_of(world, "sms/b")) == ({0: 3}, {0: 7})
    world.write(two_providers(1000, 0) + 'budget = "1 messages/hour"\nspent = "next"\n')
    world.service.enqueue(*(message(id_) for id_ in range(21, 31)))
    live(world.run_until_idle, hours=5)
    assert sum(len(world.channels[name].attempts) for name in ("sms/a", "sms/b")) == 20


def test_it_ends_as_an_error(world: VirtualWorld) -> None:
    """With the reason."""
    world.add('budget = "4 messages/day"\nspent = "error"\n')
    live(world.run_until_idle)
    ended = Counter(world.service.statuses(id_)[-1] for id_ in range(1, 11))
    assert ended == {"sent": 4, "error": 6}
    reasons = {details(world, id_) for id_ in range(1, 11) if world.service.statuses(id_)[-1] == "error"}
    assert reasons == {"the budget of channel sms, 4 messages/day, is spent"}


def test_ids_of_a_rule_share_a_budget_and_others_pass(world: VirtualWorld) -> None:
    """Codes aren't stopped by what a campaign spent."""
    world.add('\n[[rules]]\nsettings = [1, 2]\nbudget = "5 messages/day"\n')
    world.service.settings[3] = json.dumps(TEXT)
    world.service.enqueue(message(11, 2), *(message(id_, 3) for id_ in range(12, 20)))
    live(lambda: cut_off(world, 600))
    sent = Counter(dispatch.entry.settings_id == 3 for _, dispatch in world.channels["sms"].attempts)
    assert sent == {True: 8, False: 5}


def test_days_are_those_of_the_zone(world: VirtualWorld) -> None:
    """In Kiritimati the next day begins two hours after the start."""
    world.add('\n[content]\nzone = "Pacific/Kiritimati"\n[[rules]]\nbudget = "5 messages/day"\n')
    live(world.run_until_idle, hours=30)
    assert hours_of(world) == {0: 5, 2: 5}


def test_what_expires_while_it_waits_is_not_sent(world: VirtualWorld) -> None:
    """The default lifetime ends it."""
    world.add('budget = "4 messages/hour"\n[content]\ndefault_lifetime = "10m"\n')
    live(world.run_until_idle)
    ended = Counter(world.service.statuses(id_)[-1] for id_ in range(1, 11))
    assert ended == {"sent": 4, "error": 6}


def test_a_reload_raises_or_lowers_it_at_once(world: VirtualWorld) -> None:
    """What was counted stays counted, and what waits goes on."""

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(60)
            assert hours_of(world) == {0: 4}
            world.write(text.replace("4 messages", "7 messages"))
            await reloaded(worker)
            await trio.sleep(60)
            assert hours_of(world) == {0: 7}
            world.write(text.replace("4 messages", "2 messages"))
            await reloaded(worker)
            await trio.sleep(HOUR)
            assert hours_of(world) == {0: 7, 1: 2}

    world.add('budget = "4 messages/hour"\n')
    text = world.path.read_text(encoding="utf-8")
    live(run)
