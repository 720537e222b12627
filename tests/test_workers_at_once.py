"""What two workers do at one message at once: one stops before its commit, the other waits for it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import psycopg
import pytest

from deliveryd import transitions
from deliveryd.commands.storage.workers import HOW_ENDED
from deliveryd.journal.orders import Action, Decided, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql import adoption, standing, steps
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.postgresql.lease import fence, live_workers
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reader import PostgresqlReader
from deliveryd.journal.postgresql.workers import Workers
from deliveryd.model import Confirmation, Entry, Outcome, StatusEvent, Transition
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    decide_on,
    hand_over,
    make_ready,
    receive_all,
    refuse_first,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SMS = ["sms"]
WAITED = 20.0
"""Seconds after which a test gives up."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Two(NamedTuple):
    """Two workers on one journal."""

    source: JournalDatabase
    one: PostgresqlJournal
    other: PostgresqlJournal


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    source = JournalDatabase(url)
    async with open_shared_journal(source, lease=WAITED) as one, open_shared_journal(source) as other:
        await one.recover(NOW, SMS)
        await other.recover(NOW, SMS)
        yield Two(source, one, other)


class Stop:
    """Has an operation of a worker's journal stop after its work, before the commit, the first time."""

    def __init__(self, part: object, name: str) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()
        work = getattr(part, name)

        def stopping(*values: Any, **others: Any) -> Any:
            found = work(*values, **others)
            self._reached.set()
            self._go_on.wait(WAITED)
            return found

        setattr(part, name, stopping)

    async def reached(self) -> None:
        await anyio.to_thread.run_sync(self._reached.wait)

    def go_on(self) -> None:
        self._go_on.set()

    async def go_on_when_waited_for(self, source: JournalDatabase) -> None:
        with psycopg.connect(source.url, autocommit=True) as look, anyio.fail_after(WAITED):
            while look.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is None:
                await anyio.lowlevel.checkpoint()
        self.go_on()


async def beside(*works: Callable[[], Awaitable[object]]) -> list[Any]:
    """Do all of these at once; return what each one gave."""
    found: list[Any] = [None] * len(works)

    async def work(place: int) -> None:
        found[place] = await works[place]()

    async with anyio.create_task_group() as tasks:
        for place in range(len(works)):
            tasks.start_soon(work, place)
    return found


async def behind(
    stop: Stop,
    source: JournalDatabase,
    first: Callable[[], Awaitable[object]],
    second: Callable[[], Awaitable[object]],
) -> list[Any]:
    """Do the second while the first stands before its commit and the second waits for it."""

    async def then() -> object:
        await stop.reached()
        _, found = await beside(lambda: stop.go_on_when_waited_for(source), second)
        return found

    return await beside(first, then)


# a message that is set aside, and handed out again


async def set_aside_and_handed_out_again(journal: PostgresqlJournal) -> None:
    await journal.take([sample_message(1)], [], NOW)
    await refuse_first(journal, NOW)
    await journal.take([sample_message(1)], [], NOW)


async def retry(journal: PostgresqlJournal) -> Decided:
    return await decide_on(journal, Action.RETRY, ItemKind.MESSAGE, 1)


async def followed(journal: PostgresqlJournal) -> list[Entry]:
    adopted = (await journal.follow(NOW, SMS)).adopted
    return [] if adopted is None else list(adopted.taken)


async def test_what_is_given_and_accepted_in_one_commit_is_known_once(two: Two) -> None:
    """Known twice, a message would be sent twice."""
    await set_aside_and_handed_out_again(two.one)
    rows = await two.one.outbox(0, 1)
    assert (await retry(two.other)).done
    two.one._counting._next = float("inf")  # else the look would be in a later commit
    told, accepted = await beside(lambda: followed(two.one), lambda: two.one.accept(rows, NOW))
    assert [entry.id for entry in (*told, *accepted)] == [1]


async def test_what_is_given_between_a_look_and_a_take_in_one_commit_is_known(two: Two) -> None:
    await set_aside_and_handed_out_again(two.one)
    rows = await two.one.outbox(0, 1)
    two.one._counting._next = float("inf")
    stop = Stop(two.one._follower, "look")

    async def retried() -> Decided:
        await stop.reached()
        decided = await retry(two.other)
        stop.go_on()
        return decided

    known, _, decided = await beside(
        lambda: followed(two.one), lambda: two.one.take([sample_message(1)], [], NOW), retried
    )
    assert decided.done
    known += await followed(two.one)
    known += await two.one.accept(rows, NOW)
    for _ in range(2):
        known += await followed(two.one)
        known += await two.one.accept(await two.one.outbox(0, 9), NOW)
    assert [entry.id for entry in known] == [1]
    assert await state_counts(two.one) == {State.READY: 1}


async def test_what_an_order_drops_in_the_moment_of_its_acceptance_isnt_sent(two: Two) -> None:
    await set_aside_and_handed_out_again(two.one)
    rows = await two.one.outbox(0, 1)
    stop = Stop(two.other._decisions, "carry_out")
    decided, reopened = await behind(
        stop, two.source,
        lambda: decide_on(two.other, Action.DROP, ItemKind.MESSAGE, 1),
        lambda: two.one.accept(rows, NOW),
    )  # fmt: skip
    assert decided.done
    assert not reopened


# forgetting


async def fail(journal: PostgresqlJournal) -> None:
    await make_ready(journal, 1)
    await begin_attempts(journal, attempt_on(1))
    error = StatusEvent(1, "error", NOW + 1, details="refused")
    await journal.change(
        [Transition(attempt_on(1), State.SENDING, State.FAILED, NOW + 1, None, Outcome("refused"), (error,))]
    )
    await accept_all(journal)


async def test_a_message_that_is_taken_while_it_is_forgotten_begins_under_a_new_key(two: Two) -> None:
    """Under the old key its provider might take it for a repeat, and not send it."""
    await fail(two.one)
    stop = Stop(two.other._decisions, "carry_out")
    decided, new = await behind(
        stop, two.source,
        lambda: decide_on(two.other, Action.FORGET, ItemKind.MESSAGE, 1),
        lambda: two.one.take([sample_message(1)], [], NOW),
    )  # fmt: skip
    assert decided.done
    assert new == {1: 2}


@pytest.mark.parametrize("is_pruned", [False, True])
async def test_what_the_queue_hands_out_while_it_is_forgotten_is_taken_as_new(
    two: Two, is_pruned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The take has seen it as known, and waits for the order that forgets it."""
    await fail(two.one)
    if is_pruned:
        await two.one.take([sample_message(2)], [], DAYS_LATER)
        await accept_all(two.one)
        assert await two.one.prune(DAYS_LATER, 100) == 1
    monkeypatch.setattr(standing, "obstacle_to_forgetting", standing.obstacle_to_forgetting)
    stop = Stop(standing, "obstacle_to_forgetting")  # the message is locked, and nothing deleted yet
    decided, new = await behind(
        stop,
        two.source,
        lambda: decide_on(two.other, Action.FORGET, ItemKind.MESSAGE, 1),
        lambda: two.one.take([sample_message(1)], [], DAYS_LATER),
    )
    assert decided.done
    assert new == {1: 2}
    assert await waiting_events(two.one) == [(1, "dequeued")]


async def test_a_pruned_message_whose_events_are_told_again_in_this_moment_isnt_forgotten(two: Two) -> None:
    """The service would hear of its end after its new beginning."""
    await fail(two.one)
    await two.one.take([sample_message(2)], [], DAYS_LATER)
    await accept_all(two.one)
    assert await two.one.prune(DAYS_LATER, 100) == 1
    stop = Stop(two.one._outbox, "lock")
    _, decided = await behind(
        stop, two.source,
        lambda: two.one.take([sample_message(1)], [], DAYS_LATER),
        lambda: decide_on(two.other, Action.FORGET, ItemKind.MESSAGE, 1),
    )  # fmt: skip
    assert decided.skipped
    assert [status for _, status in await waiting_events(two.one)] == ["dequeued", "error"]


# retention


async def send_on(journal: PostgresqlJournal, id_: int, provider_id: str) -> None:
    """Send a message that a reported failure would send on to the next channel."""
    await make_ready(journal, id_)
    await begin_attempts(journal, attempt_on(id_))
    step = accepted_step(attempt_on(id_), provider_id)
    await journal.change([step._replace(confirmation=Confirmation(None, None, True))])
    await accept_all(journal)


async def test_a_receipt_in_the_moment_of_the_pruning_hinders_neither(two: Two) -> None:
    await send_on(two.one, 1, "p1")
    await send_on(two.one, 2, "p2")
    await two.one.take([sample_message(3)], [], DAYS_LATER)
    await accept_all(two.one)
    stop = Stop(two.other._matching, "receive")
    await behind(
        stop, two.source,
        lambda: receive_all(two.other, [sample_receipt("p2", DAYS_LATER, delivered=False)]),
        lambda: two.one.prune(DAYS_LATER, 100),
    )  # fmt: skip
    await accept_all(two.one)
    await accept_all(two.other)
    while await two.one.prune(DAYS_LATER, 100):
        pass
    assert await state_counts(two.one) == {State.WAITING: 1, State.READY: 1}
    assert (await two.one.account()).gap == 0
    assert (await two.one.account()).pruned == 1


async def test_a_try_stays_with_its_message_that_moves_to_another_day(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another day, a message in doubt would be in no list."""
    await make_ready(two.one, 1)
    await begin_attempts(two.one, attempt_on(1))
    await two.other.take([sample_message(3)], [], DAYS_LATER)
    await accept_all(two.other)
    monkeypatch.setattr(steps, "_conclude", steps._conclude)  # put back at the end
    stop = Stop(steps, "_conclude")
    held = Transition(
        attempt_on(1)._replace(doubt=True), State.SENDING, State.IN_DOUBT, NOW, None, Outcome("in_doubt")
    )
    await behind(stop, two.source, lambda: two.one.change([held]), lambda: two.other.prune(DAYS_LATER, 100))
    (found,) = await anyio.to_thread.run_sync(PostgresqlReader(two.source).in_doubt, None, None)
    assert found.message_id == 1


# what another worker did meanwhile


async def test_no_number_of_an_adopted_log_is_given_twice(two: Two) -> None:
    """What is posted now would be taken for the answer to another event, which nobody would report."""
    await hand_over(two.one, 1, "p1")
    refused = await refuse_first(two.one, NOW)
    await make_ready(two.one, 2)
    await begin_attempts(two.one, attempt_on(2))
    await two.one.change([accepted_step(attempt_on(2), "p2")])
    await receive_all(two.one, [sample_receipt("p1")])
    with psycopg.connect(two.source.url) as db:
        assert fence(db, live_workers(db)[0])
    await two.other.follow(NOW, SMS)
    posted = await two.other.outbox(0, 9)
    assert (await decide_on(two.other, Action.RETRY, ItemKind.EVENT, refused.seq)).done
    await receive_all(two.other, [sample_receipt("p2")])
    await two.other.accept(posted, NOW)
    heard = {(row.message_id, row.status) for row in (*posted, *await two.other.outbox(0, 9))}
    assert {(1, "sent"), (1, "delivered"), (2, "sent"), (2, "delivered")} <= heard


@pytest.mark.parametrize("back", [3600, 0], ids=["an hour", "not at all"])
async def test_a_repeat_tells_what_happened_last_though_the_clock_was_put_back(two: Two, back: int) -> None:
    """Numbers say nothing here: the first event is in the log of the worker that began last."""
    await make_ready(two.other, 1)
    waiting = attempt_on(1)._replace(number=0, digest=None, begun_at=0)
    await two.other.change([transitions.deferred(waiting, NOW, NOW, None)])
    await two.one.due(NOW, {"sms": 9})
    await two.one.take([sample_message(1)], [], NOW)
    await accept_all(two.one)
    await begin_attempts(two.one, attempt_on(1))
    earlier = StatusEvent(1, "sent", NOW - back * ONE_SECOND)
    await two.one.change([accepted_step(attempt_on(1), "p1")._replace(events=(earlier,))])
    await accept_all(two.one)
    await two.one.take([sample_message(1)], [], NOW)
    assert await waiting_events(two.one) == [(1, "dequeued"), (1, "sent")]


async def test_a_step_of_an_earlier_hold_leaves_a_later_one_alone(two: Two) -> None:
    """As at a start that was slow to record it, while an operator had the message sent again."""
    await bring_in_doubt(two.one, 1)
    (earlier,) = await two.other.held(SMS, -(2**63), 10)
    assert (await decide_on(two.one, Action.RESEND, ItemKind.MESSAGE, 1)).done
    (entry,) = (await two.one.due(NOW + 100 * ONE_SECOND, {"sms": 9})).entries
    tried = entry.begun("sms", b"12345678", NOW)
    await begin_attempts(two.one, tried)
    doubtful = Transition(
        tried._replace(doubt=True), State.SENDING, State.IN_DOUBT, NOW, None, Outcome("in_doubt")
    )
    await two.one.change([doubtful])
    step = transitions.repeated(earlier.entry, State.IN_DOUBT, NOW, NOW + 1, None)
    recorded = await two.other.change([step])
    assert recorded.settled == {1}
    (later,) = await two.other.held(SMS, -(2**63), 10)
    assert later.entry.number == tried.number


async def test_one_message_cant_be_begun_twice_at_once(two: Two) -> None:
    await make_ready(two.one, 1)
    with pytest.raises(Exception, match="several steps at once"):
        await begin_attempts(two.one, attempt_on(1), attempt_on(1))


# a worker that ended


async def test_what_is_given_while_the_log_is_adopted_at_a_start_is_known_once(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is committed before the start reads what is taken, after its other statements."""
    await set_aside_and_handed_out_again(two.one)
    with psycopg.connect(two.source.url) as db:
        assert fence(db, live_workers(db)[0])
    reached, go_on = threading.Event(), threading.Event()
    async with open_shared_journal(two.source) as third:
        execute, reads = third._db.execute, count(1)

        def stopping(query: Any, *values: Any, **others: Any) -> Any:
            if query is adoption._MINE and next(reads) == 2:  # all, after what it adopts
                reached.set()
                go_on.wait(WAITED)
            return execute(query, *values, **others)

        monkeypatch.setattr(third._db, "execute", stopping)

        async def retried() -> Decided:
            await anyio.to_thread.run_sync(reached.wait)
            decided = await retry(two.other)
            go_on.set()
            return decided

        left, decided = await beside(lambda: third.recover(NOW, SMS), retried)
        assert decided.done
        reopened = await third.accept(await third.outbox(0, 9), NOW)
        given = await third.follow(NOW, SMS)
        taken = given.adopted.taken if given.adopted is not None else []
        assert [entry.id for entry in (*left.taken, *reopened, *taken)] == [1]


async def test_how_a_worker_ended_is_told_while_others_have_to_adopt_what_it_left(two: Two) -> None:
    """The one that adopts it lacks the provider of an attempt."""
    await two.one.follow(NOW, ["email", "sms"])
    await make_ready(two.one, 1, 2)
    await begin_attempts(two.one, attempt_on(1, "email"))
    with psycopg.connect(two.source.url) as db:
        first = live_workers(db)[0]
        assert fence(db, first)
    await two.other.follow(NOW, SMS)
    ended = Workers(two.source).how_ended(first.name)
    assert ended is not None
    assert "attempts of it are left" in HOW_ENDED[ended]
