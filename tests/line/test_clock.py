"""A clock that is put right: what waits, what expires, and what the service hears of times."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, NotTaken, TryAgain, Verdict
from deliveryd.delivery.passed_time import PassedTime
from deliveryd.errors import JournalFull
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.model import Entry, QueuedMessage, StatusEvent, Transition, format_instant, parse_instant
from deliveryd.runtime.threads import inline
from deliveryd.states import State
from deliveryd.worker.supervisor import Supervisor
from support.logs import LogLines, log_lines
from support.messages import message
from support.virtual import START, SteppingClock, VirtualSupervisor, VirtualWorld, live

HOUR = 3_600_000_000
MINUTE = 60_000_000
SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    world.add('retry = { attempts = 10, base = "20s", max = "20s" }\n')
    return world


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged so far."""
    with log_lines("info") as logged:
        yield logged


def worker_of(world: VirtualWorld, clock: SteppingClock) -> VirtualSupervisor:
    return VirtualSupervisor(world.config(), clock, openers=world.openers(), blocking=inline)


def during(worker: Supervisor, play: Callable[[], Awaitable[None]]) -> None:
    """Play a scene while a worker runs, then stop it."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await play()
            worker.stop()

    live(run)


async def a_minute() -> None:
    await trio.sleep(60)


def fails_at_first(dispatch: Dispatch) -> Verdict:
    return TryAgain("not now") if dispatch.entry.counted_tries == 0 else Accepted("p")


def times_of(world: VirtualWorld, id_: int) -> list[int]:
    """The instants of what was reported of a message, in order."""
    return [parse_instant(event["timestamp"]) for event in world.service.events if event["messageId"] == id_]


@pytest.mark.parametrize("restart", [False, True], ids=["in one life", "across a restart"])
def test_a_retry_comes_due_in_its_time_though_the_clock_was_an_hour_ahead(
    world: VirtualWorld, lines: Callable[[], list[dict[str, Any]]], restart: bool
) -> None:
    """The pause is what it was meant to be; the step is logged with its seconds."""
    world.channels["sms"].verdict = fails_at_first
    world.service.enqueue(message(1))
    clock = SteppingClock(HOUR)
    worker = worker_of(world, clock)

    async def play() -> None:
        await trio.sleep(5)
        clock.ahead = 0
        if not restart:
            await trio.sleep(60)

    during(worker, play)
    if restart:
        clock.ahead = 6_000_000  # virtual time begins anew
        during(worker_of(world, clock), a_minute)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    (first, _), (second, _) = world.channels["sms"].attempts
    waited = second if restart else second - first
    assert waited < 26
    stepped = [line for line in lines() if line["event"] == "clock.stepped"]
    assert [line["seconds"] for line in stepped][:1] == [pytest.approx(-3600, abs=6)]
    assert file_reader(world.folder / "journal.db").audit().is_balanced


@pytest.mark.parametrize("set_after", [2.0, 5.0], ids=["during the attempt", "after it"])
@pytest.mark.parametrize("step", [-HOUR, HOUR])
@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_what_waits_while_the_clock_is_set_waits_as_long_as_it_has_to(
    world: VirtualWorld, is_in_doubt: bool, step: int, set_after: float
) -> None:
    """Also what is recorded before due times are moved."""
    channel = world.channels["sms"]
    channel.seconds = 3.0

    def answer(dispatch: Dispatch) -> Verdict:
        if len(channel.attempts) > 1:
            return Accepted("p")
        return InDoubt("broke off") if is_in_doubt else TryAgain("not now", after=120.0)

    channel.verdict = answer
    if is_in_doubt:
        channel.lookup_after = 60.0
        channel.found = lambda _: NotTaken()
        world.add("""
[channels.sms.lookup]
url = "http://127.0.0.1:1/messages"
query = { key = "{message.key}" }
after = "60s"
answers = [ { status = [200], verdict = "not_taken" } ]
""")
    world.service.enqueue(message(1))
    clock = SteppingClock(max(-step, 0))

    async def play() -> None:
        await trio.sleep(set_after)
        clock.ahead += step
        await trio.sleep(200)

    during(worker_of(world, clock), play)
    (first, _), (second, _) = channel.attempts
    waited = channel.asked[0][0] - first if is_in_doubt else second - channel.seconds - first
    least = 60.0 if is_in_doubt else 120.0
    assert least <= waited < least + 10.0
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_step_of_a_second_cuts_no_wait_short_though_it_comes_between_two_readings(
    world: VirtualWorld,
) -> None:
    """Nothing that waits since then is moved."""
    channel = world.channels["sms"]
    channel.seconds = 3.5
    channel.verdict = lambda _: (
        TryAgain("not now", after=20.0) if len(channel.attempts) < 2 else Accepted("p")
    )
    world.service.enqueue(message(1))
    clock = SteppingClock(HOUR)

    async def play() -> None:
        await trio.sleep(3.1)  # less than a second before the attempt ends
        clock.ahead -= 1_000_000
        await trio.sleep(60)

    during(worker_of(world, clock), play)
    (first, _), (second, _) = channel.attempts
    assert 20.0 <= second - channel.seconds - first < 27.0


@pytest.mark.parametrize("seconds", [0.5, 2.0, 4.0])
def test_a_pause_lasts_as_long_as_ordered_though_the_clock_was_just_put_back(
    world: VirtualWorld, seconds: float
) -> None:
    clock = SteppingClock(HOUR)
    worker = worker_of(world, clock)

    async def play() -> None:
        await worker.opened.wait()
        await trio.sleep(20)
        clock.ahead = 0
        await trio.sleep(seconds)
        order = Order(Action.PAUSE, ItemKind.SETTINGS, ("1",), lasts=600.0)
        await worker.parts.recorder.decide(order, ["sms"])
        world.service.enqueue(message(1))
        began = trio.current_time()
        await trio.sleep(700)
        assert 600.0 <= world.channels["sms"].attempts[0][0] - began < 610.0

    during(worker, play)


def test_a_pause_lasts_as_long_as_ordered_though_a_clock_was_ahead_when_the_worker_was_killed(
    world: VirtualWorld,
) -> None:
    """The clock was ahead for a second before: what was written then is due earlier, and no pause ends so."""
    clock = SteppingClock()
    began = 0.0

    async def run() -> None:
        nonlocal began
        async with trio.open_nursery() as nursery:
            worker = worker_of(world, clock)
            nursery.start_soon(worker.run)
            await worker.opened.wait()
            await trio.sleep(20)
            order = Order(Action.PAUSE, ItemKind.SETTINGS, ("1",), lasts=2 * 3600.0)
            await worker.parts.recorder.decide(order, ["sms"])
            began = trio.current_time()
            world.service.enqueue(message(1))
            await trio.sleep(19)
            clock.ahead = HOUR
            while (number := len(world.service.events)) < 30 and trio.current_time() < began + 21:
                world.service.enqueue(message(100 + number, settings_id=1))
                await trio.sleep(0.25)
            nursery.cancel_scope.cancel()
        clock.ahead = 0
        async with trio.open_nursery() as nursery:
            worker = worker_of(world, clock)
            nursery.start_soon(worker.run)
            await trio.sleep(3 * 3600)
            worker.stop()

    live(run, hours=5)
    assert 7200.0 <= world.channels["sms"].attempts[0][0] - began < 7210.0


def test_a_wait_isnt_cut_short_though_the_worker_ends_while_the_clock_is_ahead(world: VirtualWorld) -> None:
    """Before it follows, while events are written; the clock is right again at the next start."""
    channel = world.channels["sms"]
    channel.verdict = lambda dispatch: (
        TryAgain("not now", after=1800.0)
        if dispatch.entry.id == 1 and len(channel.attempts) < 2
        else Accepted("p")
    )
    clock = SteppingClock()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker_of(world, clock).run)
            world.service.enqueue(message(1))
            await trio.sleep(20)
            clock.ahead = HOUR
            for id_ in range(2, 12):
                world.service.enqueue(message(id_))
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        clock.ahead = 0
        worker = worker_of(world, clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await trio.sleep(2 * 3600)
            worker.stop()

    live(run, hours=5)
    first, second = [at for at, dispatch in channel.attempts if dispatch.entry.id == 1]
    assert 1800.0 <= second - first < 1810.0


@pytest.mark.parametrize("step", [-2_000_000, 2_000_000])
def test_what_is_recorded_when_a_full_disk_has_room_waits_as_long_as_it_has_to(
    world: VirtualWorld, step: int
) -> None:
    """The clock is set as the outage begins: due times are bounded by the instant at which they are moved."""
    channel = world.channels["sms"]
    channel.verdict = lambda _: (
        Accepted("p") if len(channel.attempts) > 1 else TryAgain("not now", after=1800.0)
    )
    clock, attempt, is_full = SteppingClock(), SqliteJournal._attempt, False

    def full(self: SqliteJournal, batch: Any) -> Any:
        return JournalFull() if is_full else attempt(self, batch)

    async def play() -> None:
        nonlocal is_full
        await trio.sleep(20)
        channel.seconds = 3.0
        world.service.enqueue(message(1))
        await trio.sleep(3)  # the attempt is under way
        is_full = True
        clock.ahead += step
        await trio.sleep(5400)
        is_full = False
        await trio.sleep(3600)

    with patch.object(SqliteJournal, "_attempt", full):
        during(worker_of(world, clock), play)
    (first, _), (second, _) = channel.attempts
    assert 1800.0 <= second - channel.seconds - first < 1810.0


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_pause_lasts_as_long_as_ordered_though_due_times_are_being_moved(
    world: VirtualWorld, step: int
) -> None:
    """Many of them take seconds to move."""
    clock, settle, began = SteppingClock(HOUR), SqliteJournal._settle, 0.0

    async def slow(self: SqliteJournal, batch: Any) -> None:
        if any(pending.then for pending in batch):
            await trio.sleep(3)
        await settle(self, batch)

    worker = worker_of(world, clock)

    async def play() -> None:
        nonlocal began
        await worker.opened.wait()
        await trio.sleep(20)
        clock.ahead += step
        worker.parts.memory.backlog.changed.set()
        await trio.sleep(1)
        began = trio.current_time()
        order = Order(Action.PAUSE, ItemKind.SETTINGS, ("1",), lasts=600.0)
        await worker.parts.recorder.decide(order, ["sms"])
        world.service.enqueue(message(1))
        await trio.sleep(2 * 3600)

    with patch.object(SqliteJournal, "_settle", slow):
        during(worker, play)
    ((sent, _),) = world.channels["sms"].attempts
    assert 600.0 <= sent - began < 610.0


@pytest.mark.parametrize("step", [-HOUR, 8 * 24 * HOUR])
def test_a_retry_comes_due_in_its_time_though_the_clock_was_set_between_two_runs(
    world: VirtualWorld, step: int
) -> None:
    """It was an hour ahead from some moment of the run on; or it is put forward by days."""
    world.channels["sms"].verdict = lambda _: TryAgain("not now")
    world.service.enqueue(message(1))
    clock = SteppingClock()

    async def run() -> None:
        for life in range(2):
            async with trio.open_nursery() as nursery:
                worker = worker_of(world, clock)
                nursery.start_soon(worker.run)
                await trio.sleep(10)
                if not life:
                    clock.ahead = max(-step, 0)
                    await trio.sleep(60)
                await trio.sleep(5 if not life else 60)
                worker.stop()
            clock.ahead += step
            await trio.sleep(0 if life else 3)

    live(run)
    attempts = [at for at, _ in world.channels["sms"].attempts]
    assert attempts[-1] > 100
    assert max(later - at for at, later in pairwise(attempts)) < 30


def test_a_message_that_is_valid_for_half_an_hour_more_is_sent_after_the_clock_was_put_back(
    world: VirtualWorld,
) -> None:
    """It doesn't expire by an hour that never was."""
    expiring = json.loads(SMS) | {"delivery": {"expiresAt": format_instant(START + HOUR // 2)}}
    world.service.settings[2] = json.dumps(expiring)
    clock = SteppingClock(HOUR)

    async def play() -> None:
        await trio.sleep(5)
        clock.ahead = 0
        world.service.enqueue(message(1, settings_id=2))
        await trio.sleep(60)

    during(worker_of(world, clock), play)
    assert world.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.slow
def test_events_follow_the_corrected_clock_and_none_is_before_its_messages_previous_one(
    world: VirtualWorld,
) -> None:
    """Of messages taken before the step and after it; also across a crash, and once the hour has passed."""
    world.channels["sms"].verdict = fails_at_first
    world.channels["sms"].seconds = 1.0
    clock = SteppingClock(HOUR)

    async def play() -> None:
        world.service.enqueue(message(1))
        await trio.sleep(3)
        clock.ahead = 0
        world.service.enqueue(message(2))
        await trio.sleep(60)
        world.service.enqueue(message(3))
        await trio.sleep(2 * 3600)

    during(worker_of(world, clock), play)
    for id_ in (1, 2, 3):
        assert world.service.statuses(id_) == ["dequeued", "sent"]
        assert times_of(world, id_) == sorted(times_of(world, id_))
    assert times_of(world, 1)[0] >= START + HOUR
    for id_ in (2, 3):
        assert START <= times_of(world, id_)[0] < times_of(world, id_)[1] < START + 10 * MINUTE
    assert len({*times_of(world, 2), *times_of(world, 3)}) == 4


def test_a_clock_that_is_put_forward_makes_nothing_late_and_nothing_early(world: VirtualWorld) -> None:
    world.channels["sms"].verdict = fails_at_first
    world.service.enqueue(message(1))
    clock = SteppingClock()

    async def play() -> None:
        await trio.sleep(5)
        clock.ahead = HOUR
        await trio.sleep(60)

    during(worker_of(world, clock), play)
    (first, _), (second, _) = world.channels["sms"].attempts
    assert 15 < second - first < 26
    assert times_of(world, 1)[1] - times_of(world, 1)[0] > HOUR


def test_small_corrections_are_passed_over() -> None:
    """They are how clocks are kept right all the time; together they count once they are a second."""
    clock = SteppingClock()

    async def run() -> None:
        passed = PassedTime(clock)
        found = []
        for correction in (400_000, -900_000, 999_999, -1_000_000, 7_000_000):
            await trio.sleep(5)
            clock.ahead += correction
            found.append(passed.stepped())
        assert found == [0, 0, 0, 0, 6_499_999]

    live(run)


# what the journal does


async def timestamps(journal: Journal) -> list[int]:
    return [parse_instant(json.loads(row.body)["timestamp"]) for row in await journal.outbox(0, 100)]


def sent_at(id_: int, at: int) -> Sequence[Transition]:
    entry = Entry(id_, 1, 1, {}, provider="sms", stay_tries=1)
    return [
        Transition(entry, State.READY, State.SENDING, at),
        Transition(entry.tried(), State.SENDING, State.SENT, at, events=(StatusEvent(id_, "sent", at),)),
    ]


@pytest.mark.anyio
async def test_the_order_of_a_messages_events_outlasts_starts_after_a_step(
    tmp_path: Path,
) -> None:
    """Whatever the life before wrote last: the event itself, an acceptance, or another message."""
    path, later = tmp_path / "journal.db", START - HOUR
    async with open_journal_file(path) as journal:
        await journal.take([QueuedMessage(1, 1, 1, {}), QueuedMessage(2, 1, 1, {})], [], START)
        await journal.accept(await journal.outbox(0, 100), START + 5)
    async with open_journal_file(path) as journal:
        assert journal.last_at == START + 5
        await journal.take([QueuedMessage(3, 1, 1, {})], [], later)
        assert await timestamps(journal) == [later]
        await journal.accept(await journal.outbox(0, 100), later + 5)
    async with open_journal_file(path) as journal:
        assert journal.last_at == later + 5
        for id_ in (1, 3):
            for change in sent_at(id_, later + MINUTE):
                await journal.change([change])
        assert await timestamps(journal) == [START, later + MINUTE]
    async with open_journal_file(path) as journal:
        for change in sent_at(2, START - 1):
            await journal.change([change])
        assert (await timestamps(journal))[-1] == START


@pytest.mark.anyio
async def test_an_event_shortly_before_a_step_back_caught_up_is_not_before_the_one_ahead_of_it(
    tmp_path: Path,
) -> None:
    """Nothing was written while the clock showed far less, so that only the step itself tells of it."""
    async with open_journal_file(tmp_path / "journal.db") as journal:
        await journal.take([QueuedMessage(1, 1, 1, {})], [], START)
        await journal.accept(await journal.outbox(0, 9), START)
        await journal.retime(HOUR, lambda: START, HOUR)
        for change in sent_at(1, START - 500_000):
            await journal.change([change])
        assert await timestamps(journal) == [START]


@pytest.mark.anyio
async def test_due_times_are_brought_in_line_and_capped(tmp_path: Path) -> None:
    """By as much as the clock was put back, and to the longest pause that there is."""
    due = {1: START + HOUR + MINUTE, 2: START + 9 * HOUR, 3: START + MINUTE}

    async def due_times(journal: Journal) -> list[int]:
        found = []
        while (next_due := (await journal.due(0, {"": 9})).next_due) is not None:
            found.append(next_due)
            await journal.due(next_due, {"": 9})
        return found

    for back, expected in (
        (0, [START + MINUTE, START + HOUR + MINUTE, START + 2 * HOUR]),
        (HOUR, [START + MINUTE - HOUR, START + MINUTE, START + 2 * HOUR]),
    ):
        async with open_journal_file(tmp_path / f"{back}.db") as journal:
            await journal.take([QueuedMessage(id_, 1, 1, {}) for id_ in due], [], START)
            await journal.accept(await journal.outbox(0, 9), START)
            entries = {id_: Entry(id_, 1, 1, {}) for id_ in due}
            await journal.change(
                [Transition(entries[id_], State.READY, State.WAITING, START, due[id_]) for id_ in due]
            )
            await journal.retime(back, lambda: START, 2 * HOUR)
            assert await due_times(journal) == expected
            assert all(one <= other for one, other in pairwise(expected))
