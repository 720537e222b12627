"""`deliveryd journal move`: a journal with something of everything goes to PostgreSQL and back, unchanged."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from string import ascii_lowercase
from typing import Any, LiteralString, NamedTuple

import anyio
import psycopg
import pytest

from deliveryd.errors import JournalError, JournalLocked, JournalUnusable
from deliveryd.journal.journal import Journal
from deliveryd.journal.moving import move as moving
from deliveryd.journal.moving.move import move_journal, reopen_database
from deliveryd.journal.opening import JournalTerms, open_journal, open_reader
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.place import JournalDatabase, JournalFile, JournalPlace
from deliveryd.journal.postgresql import schema
from deliveryd.journal.postgresql.connection import DatabaseClock, connect_to_write
from deliveryd.journal.postgresql.lease import begin_work, boot_time
from deliveryd.journal.reader import DecisionSelection
from deliveryd.journal.selection import Selection
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.journal.sqlite.opening import reopen_file
from deliveryd.model import (
    Confirmation,
    Malformed,
    Outcome,
    Receipt,
    StatusEvent,
    StopChange,
    Transition,
    UnreadReport,
)
from deliveryd.runtime import waits
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    deliver_to_sent,
    make_ready,
    receive_all,
    sample_message,
    sample_receipt,
)
from support.forked import run_deliveryd
from support.postgres import new_database
from support.terminal import command

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROVIDERS = ("sms", "email")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def database() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    return JournalFile(tmp_path / "journal.db")


@asynccontextmanager
async def opened(place: JournalPlace) -> AsyncIterator[Journal]:
    async with open_journal(place, JournalTerms(lease=2.0)) as journal:
        yield journal


def move(source: JournalPlace, target: JournalPlace) -> Any:
    return move_journal(source, target, DAYS_LATER, lambda _progress: None)


# what is moved


async def fill(journal: Journal, seed: int, count: int = 60, first: int = 100) -> None:
    """Bring messages to every state there is, with all that may belong to them, in an order by chance."""
    choices = random.Random(seed)
    await _old_ones(journal, first - 99)
    ids = list(range(first, first + count))
    choices.shuffle(ids)
    for number, id_ in enumerate(ids):
        await choices.choice(LIVES)(journal, id_)
        if choices.random() < 0.3:
            await accept_all(journal, NOW + number)
    await _refuse_some(journal, choices)
    await _besides(journal, choices, ids)


async def _old_ones(journal: Journal, first: int) -> None:
    """Messages of which a tombstone is left, one of them reported anew, and one that was forgotten."""
    for id_ in range(first, first + 4):
        await _sent(journal, id_)
    await accept_all(journal)
    assert await journal.prune(DAYS_LATER, 3) >= 3
    await journal.take([sample_message(first + 1)], [], DAYS_LATER)
    order = Order(Action.FORGET_ANYWAY, ItemKind.MESSAGE, (str(first + 2),))
    assert (await journal.decide(order, NOW, PROVIDERS)).done == (str(first + 2),)


async def _taken(journal: Journal, id_: int) -> None:
    await journal.take([sample_message(id_, name="Ünïcode \\u0000 {x}")], [], NOW)


async def _ready(journal: Journal, id_: int) -> None:
    await make_ready(journal, id_)


async def _waiting(journal: Journal, id_: int) -> None:
    await make_ready(journal, id_)
    step = Transition(attempt_on(id_, number=0), State.READY, State.WAITING, NOW, NOW + id_ * ONE_SECOND)
    await journal.change([step._replace(waits_for=waits.room("sms") if id_ % 3 else None)])


async def _sending(journal: Journal, id_: int) -> None:
    await make_ready(journal, id_)
    await begin_attempts(journal, attempt_on(id_))


async def _in_doubt(journal: Journal, id_: int) -> None:
    await _sending(journal, id_)
    entry = attempt_on(id_)._replace(doubt=True)
    after = State.WAITING if id_ % 2 else State.IN_DOUBT
    outcome = Outcome("in_doubt", f"d{id_}", "cut off", "a word\nof theirs")
    due_at = NOW + 9 if id_ % 2 else None
    await journal.change([Transition(entry, State.SENDING, after, NOW, due_at, outcome)])


async def _sent(journal: Journal, id_: int) -> None:
    await _sending(journal, id_)
    await journal.change([accepted_step(attempt_on(id_), f"p{id_}")])


async def _to_confirm(journal: Journal, id_: int) -> None:
    await _sending(journal, id_)
    confirmation = Confirmation(None if id_ % 2 else 10**9 + id_, None if id_ % 2 else 10**9, True)
    await journal.change([accepted_step(attempt_on(id_), f"p{id_}")._replace(confirmation=confirmation)])


async def _delivered(journal: Journal, id_: int) -> None:
    await _sent(journal, id_)
    await journal.receive([sample_receipt(f"p{id_}"), sample_receipt(f"p{id_}")])


async def _failed(journal: Journal, id_: int) -> None:
    await _sending(journal, id_)
    error = StatusEvent(id_, "error", NOW + 3, details="sms: no such number")
    step = Transition(attempt_on(id_), State.SENDING, State.FAILED, NOW + 3, events=(error,))
    await journal.change([step._replace(outcome=Outcome("refused", None, "no such number"))])


async def _second_channel(journal: Journal, id_: int) -> None:
    await _sending(journal, id_)
    left = attempt_on(id_).given_up("provider answered 503")
    step = Transition(left, State.SENDING, State.READY, NOW + 1, outcome=Outcome("try_again"))
    await journal.change([step])
    entry = left.begun("email", b"87654321", NOW + 2)
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW + 2)])
    await journal.change([accepted_step(entry, f"e{id_}")])


async def _anew(journal: Journal, id_: int) -> None:
    await _failed(journal, id_)
    await accept_all(journal)
    order = Order(Action.BEGIN_ANEW, ItemKind.MESSAGE, (str(id_),), reason="a new number")
    assert (await journal.decide(order, NOW + 5, PROVIDERS)).done == (str(id_),)


async def _malformed(journal: Journal, id_: int) -> None:
    await journal.take([], [Malformed(f'{{"id": {id_}, "x": "\\ud800"}}', "no settings", id_)], NOW)


LIVES: Sequence[Callable[[Journal, int], Any]] = (
    _taken, _ready, _waiting, _sending, _in_doubt, _sent, _to_confirm, _delivered, _failed, _second_channel,
    _anew, _malformed,
)  # fmt: skip


async def _refuse_some(journal: Journal, choices: random.Random) -> None:
    """The service refuses some events, one of them is retried, one dropped."""
    refused = []
    for row in await journal.outbox(0, 15):
        if choices.random() < 0.4:
            await journal.refuse(row, "400", NOW + 90)
            refused.append(row.seq)
        else:
            await journal.accept([row], NOW + 90)
    for verb, seq in zip((Action.RETRY, Action.DROP), refused, strict=False):
        await journal.decide(Order(verb, ItemKind.EVENT, (str(seq),)), NOW + 91, PROVIDERS)


async def _besides(journal: Journal, choices: random.Random, ids: Sequence[int]) -> None:
    key = f"{journal.namespace}-{ids[0]}"
    await journal.receive(
        [
            sample_receipt("unknown", delivered=False),
            Receipt("sms", "", True, "DELIVRD", NOW, NOW, str(ids[1])),
            Receipt("email", "x", True, "OK", NOW, NOW, key),
            UnreadReport("sms", "<xml", "no JSON", NOW),
        ],
        [
            StopChange("sms", bytes([choices.randrange(256)] * 32), NOW, True, "STOP", "receipt"),
            StopChange("sms", b"b" * 32, NOW, False, None, "operator"),
        ],
    )
    await journal.take([], [Malformed("[1,", "cut off", None)], NOW, lost=2)
    await journal.use_token(SignedToken(b"t" * 32, b"b" * 32, DAYS_LATER), NOW)
    await journal.note_down({"sms": NOW})
    await journal.pass_deadlines(12345, NOW, PROVIDERS, 99)
    for verb, kind, what in (
        (Action.PAUSE, ItemKind.SETTINGS, "10"),
        (Action.PAUSE, ItemKind.MESSAGE, str(ids[2])),
    ):
        await journal.decide(Order(verb, kind, (what,), user="ops", reason="why"), NOW + 30, PROVIDERS)


# what is read


class Readings(NamedTuple):
    """All that commands read, but what is the place's own: numbers of events, names of workers, turns."""

    lives: Any
    found: Any
    decisions: Any
    account: Any
    counts: Any
    open_work: Any
    outbox: Any
    stopped: Any
    recovery: Any
    others: Any


def read_before_opening(place: JournalPlace) -> tuple[Any, Any, Any]:
    reader = open_reader(place)
    ids = [*range(1, 5), *range(100, 200), *range(901, 905), *range(1000, 1100)]
    lives = [
        life._replace(
            message=life.message and life.message._replace(worker=None, turn=None),
            events=tuple(event._replace(seq=0, worker=None) for event in life.events),
        )
        for life in reader.lives(ids)
    ]
    decisions = reader.decisions(DecisionSelection(), 0, 999)
    return lives, reader.find(Selection(), None, 500).found, decisions


async def readings(place: JournalPlace) -> Readings:
    """Read it as commands do, and as a worker that starts."""
    before = read_before_opening(place)
    async with opened(place) as journal:
        found = await journal.recover(NOW + 40, PROVIDERS)
        recovery = found._replace(
            doubtful=sorted(found.doubtful), taken=sorted(found.taken), effects=tuple(found.effects)
        )
        outbox = [(row.message_id, row.status, row.body) for row in await journal.outbox(0, 9999)]
        token = await journal.use_token(SignedToken(b"t" * 32, b"other" * 8, DAYS_LATER), NOW)
        return Readings(
            *before,
            await journal.account(),
            await journal.counts(),
            await journal.open_work(),
            outbox,
            sorted(await journal.stopped()),
            recovery,
            (journal.namespace, journal.stop_key, token),
        )


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3, 4, 5, 6))]
)
async def test_a_journal_goes_there_and_back_unchanged_and_a_worker_goes_on(
    file: JournalFile, database: JournalDatabase, tmp_path: Path, seed: int
) -> None:
    """Every read says the same on both, whatever the messages went through."""
    async with opened(file) as journal:
        await fill(journal, seed)
    await readings(file)
    before = await readings(file)
    assert before.account.gap == 0
    moved = await anyio.to_thread.run_sync(move, file, database)
    assert moved.account == before.account
    there = await readings(database)
    for name, was, now in zip(Readings._fields, before, there, strict=True):
        assert now == was, name
    back = JournalFile(tmp_path / "back.db")
    await anyio.to_thread.run_sync(move, database, back)
    home = await readings(back)
    for name, was, now in zip(Readings._fields, before, home, strict=True):
        assert now == was, name
    async with opened(back) as journal:
        await go_on(journal)


async def go_on(journal: Journal) -> None:
    """Bring a journal that was moved to an end: what was under way, what waits, receipts, new messages."""
    recovery = await journal.recover(NOW + 40, PROVIDERS)
    assert recovery.doubtful
    taken = await journal.take([sample_message(100), sample_message(999)], [], NOW + 40)
    assert list(taken) == [999]
    while rows := await journal.outbox(0, 500):
        await journal.accept(rows, NOW + 41)
    assert await journal.receive([sample_receipt("p999")]) is not None
    account = await journal.account()
    assert account.gap == 0
    assert State.TAKEN not in account.states


async def test_a_worker_goes_on_in_the_database(file: JournalFile, database: JournalDatabase) -> None:
    """With the events in their order, and receipts that were kept."""
    async with opened(file) as journal:
        await fill(journal, 7)
    await anyio.to_thread.run_sync(move, file, database)
    async with opened(database) as journal:
        await go_on(journal)


@asynccontextmanager
async def two_workers(database: JournalDatabase) -> AsyncIterator[tuple[Journal, Journal]]:
    """Two workers that know of one another, each with a log of its own."""
    async with opened(database) as one, opened(database) as two:
        for worker in (one, two):
            await worker.recover(NOW, PROVIDERS)
            await worker.follow(NOW, PROVIDERS)
        await one.follow(NOW, PROVIDERS)
        yield one, two


async def test_logs_of_several_workers_become_one_in_order(
    file: JournalFile, database: JournalDatabase
) -> None:
    """Of each message the events stay in their order, and what waits is reported after what is settled."""
    async with two_workers(database) as (one, two):
        for worker, id_ in ((two, 1), (one, 2), (two, 3), (one, 4)):
            await _sent(worker, id_)
        await accept_all(two, NOW + 6)
        await one.receive([sample_receipt("p1"), sample_receipt("p4")])
        await two.receive([sample_receipt("p2"), sample_receipt("p3")])
        for worker in (one, two):
            await worker.follow(NOW + 7, PROVIDERS)
    await anyio.to_thread.run_sync(move, database, file)
    async with opened(file) as journal:
        waiting = [(row.message_id, row.status) for row in await journal.outbox(0, 99)]
        assert {*waiting} == {(4, "sent"), *((id_, "delivered") for id_ in (1, 2, 3, 4))}
        assert len(waiting) == 5
        assert waiting.index((4, "sent")) < waiting.index((4, "delivered"))
        assert (await journal.account()).gap == 0
    for life in open_reader(file).lives([1, 2, 3, 4]):
        assert [event.status for event in life.events] == ["dequeued", "sent", "delivered"]


@pytest.mark.parametrize("seed", [8, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (9, 10, 11))])
async def test_a_journal_of_several_logs_goes_to_a_file_and_back_unchanged(
    file: JournalFile, database: JournalDatabase, seed: int
) -> None:
    """Each with its own listening time: deadlines are as far ahead as they were, and all sums are equal."""
    async with two_workers(database) as (one, two):
        await fill(one, seed)
        await two.pass_deadlines(10**6, NOW, PROVIDERS, 99)
        await fill(two, seed + 1, first=1000)
        for worker in (one, two):
            await worker.follow(NOW, PROVIDERS)
    assert len(rows(database, "SELECT 1 FROM main.log")) == 2
    await readings(database)
    before = await readings(database)
    moved = await anyio.to_thread.run_sync(move, database, file)
    assert moved.account == before.account
    assert before.account.gap == 0
    there = await readings(file)
    for name, was, now in zip(Readings._fields, in_any_order(before), in_any_order(there), strict=True):
        assert now == was, name
    again = new_database()
    assert again is not None
    await anyio.to_thread.run_sync(move, file, JournalDatabase(again))
    home = await readings(JournalDatabase(again))
    for name, was, now in zip(Readings._fields, there, home, strict=True):
        assert now == was, name


def in_any_order(found: Readings) -> Readings:
    """Of several logs the events have no common order."""
    return found._replace(outbox=sorted(found.outbox))


def rows(database: JournalDatabase, query: LiteralString) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.url) as admin:
        return admin.execute(query).fetchall()


async def test_what_is_in_an_inbox_keeps_a_journal_where_it_is_until_a_worker_has_read_it(
    file: JournalFile, database: JournalDatabase
) -> None:
    """A report that came in at one worker while the other one, whose message it is about, ended."""
    async with two_workers(database) as (one, two):
        await _sent(two, 1)
        await one.receive([sample_receipt("p1")])
    assert len(rows(database, "SELECT 1 FROM main.inbox")) == 1
    with pytest.raises(JournalUnusable, match="start one worker"):
        await anyio.to_thread.run_sync(move, database, file)
    assert not file.path.exists()
    async with opened(database) as journal:
        await journal.recover(NOW, PROVIDERS)
        await journal.follow(NOW, PROVIDERS)
    await anyio.to_thread.run_sync(move, database, file)
    async with opened(file) as journal:
        assert (await journal.account()).ends == {State.DELIVERED: 1}


async def test_stopped_recipients_are_moved_in_one_pass(file: JournalFile, database: JournalDatabase) -> None:
    """However many there are; a worker that has read the list learns of later changes alone."""
    changes = [StopChange("sms", bytes([number]) * 32, NOW) for number in range(200)]
    async with opened(file) as journal:
        await journal.receive([], changes)
    await anyio.to_thread.run_sync(move, file, database)
    async with two_workers(database) as (one, two):
        assert len(await one.stopped()) == len(await two.stopped()) == 200
        await one.receive([], [changes[0]._replace(at=NOW + 1, stopped=False)])
        news = await two.follow(NOW, PROVIDERS)
        assert [change.digest for change in news.stops] == [changes[0].digest]
    ((changed,),) = rows(database, "SELECT number FROM main.version WHERE kind = 'stops'")
    assert changed < 10


# what is refused


async def test_nothing_is_moved_while_a_worker_has_either(
    file: JournalFile, database: JournalDatabase
) -> None:
    async with opened(file) as journal:
        await make_ready(journal, 1)
        with pytest.raises(JournalLocked, match=r"in use by another .*: stop the worker first$"):
            move(file, database)
    await anyio.to_thread.run_sync(move, file, database)
    async with opened(database):
        with pytest.raises(JournalLocked, match="stop all workers"):
            await anyio.to_thread.run_sync(move, database, JournalFile(file.path.with_name("back.db")))


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (None, "didn't end its lease: waiting 0.5 s for a sign of life"),
        ("ordered", "was ended early: waiting 0.5 s for its last attempts"),
    ],
    ids=["killed", "fenced"],
)
async def test_what_a_worker_left_is_moved_when_its_lease_would_be_over(
    file: JournalFile, database: JournalDatabase, ended: str | None, told: str
) -> None:
    """Until then it may be sending what the first start on the file repeats at once."""
    async with opened(database) as journal:
        await make_ready(journal, 1)
    with psycopg.connect(database.url) as admin:
        admin.execute("UPDATE main.worker SET ended = %s, lease = 500000 WHERE id > 0", (ended,))
    said: list[str] = []
    began = boot_time()
    await anyio.to_thread.run_sync(
        lambda: move_journal(database, file, DAYS_LATER, lambda _progress: None, said.append)
    )
    assert boot_time() - began >= 0.5
    (line,) = said
    assert line.endswith(told)
    async with opened(file) as journal:
        assert (await journal.account()).states == {State.READY: 1}


async def test_a_worker_that_begins_while_a_move_begins_is_not_overlooked(
    file: JournalFile, database: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take messages into a journal that is left behind."""
    async with opened(database) as journal:
        await make_ready(journal, 1)

    def begin_meanwhile(begun: psycopg.Connection[Any]) -> None:
        with psycopg.connect(database.url, autocommit=True) as admin:
            while not admin.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                pass
        begun.execute(
            "INSERT INTO main.worker (name, began_at, format, lease) VALUES ('late', 0, 1, 9000000)"
        )
        begun.commit()
        begun.close()

    def looked(_db: object, _waits: object) -> None:
        begun = psycopg.connect(database.url)
        schema.lock_schema(begun)
        threading.Thread(target=begin_meanwhile, args=(begun,)).start()

    monkeypatch.setattr(moving, "_await_workers", looked)
    with pytest.raises(JournalLocked, match=r"^the worker late began to use this journal"):
        await anyio.to_thread.run_sync(move, database, file)
    assert not file.path.exists()


async def test_a_worker_that_opened_a_journal_just_before_it_was_moved_does_not_begin(
    file: JournalFile, database: JournalDatabase
) -> None:
    async with opened(database) as journal:
        await make_ready(journal, 1)
    with connect_to_write(database, 9.0) as worker:
        schema.prepare_schema(worker)
        await anyio.to_thread.run_sync(move, database, file)
        where = f"{file.path} of {socket.gethostname()} at 20"
        with pytest.raises(JournalUnusable, match=f"was moved to another place, to {where}"):
            begin_work(worker, 9.0, NOW, boot_time, DatabaseClock())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE main.meta SET value = '2' WHERE key = 'format'", "with the release that wrote it"),
        (
            "INSERT INTO main.loss (noticed_at, worker, name, acknowledged) VALUES (1, 1, 'w', 9)",
            "accept-loss",
        ),
    ],
)
async def test_what_a_move_would_leave_behind_keeps_a_journal_where_it_is(
    file: JournalFile, database: JournalDatabase, change: str, why: str
) -> None:
    """A newer format may hold what this program doesn't know; a loss has to be decided about first."""
    async with opened(database) as journal:
        await make_ready(journal, 1)
    with psycopg.connect(database.url) as admin:
        admin.execute(change)
    with pytest.raises(JournalError, match=why):
        await anyio.to_thread.run_sync(move, database, file)
    assert not file.path.exists()


async def test_a_target_that_holds_something_is_left_as_it_is(
    file: JournalFile, database: JournalDatabase, tmp_path: Path
) -> None:
    other = JournalFile(tmp_path / "other.db")
    for place in (file, database, other):
        async with opened(place) as journal:
            await make_ready(journal, 1)
    with pytest.raises(JournalUnusable, match="isn't empty"):
        await anyio.to_thread.run_sync(move, file, database)
    with pytest.raises(JournalUnusable, match="isn't empty"):
        await anyio.to_thread.run_sync(move, database, other)
    for place in (file, database, other):
        async with opened(place) as journal:
            assert (await journal.account()).taken == 1


async def test_a_move_that_is_repeated_says_that_the_journal_was_moved(
    file: JournalFile, database: JournalDatabase, tmp_path: Path
) -> None:
    """Not that the file isn't empty: somebody might remove it, and it is the only journal."""
    async with opened(file) as journal:
        await make_ready(journal, 1)
    await anyio.to_thread.run_sync(move, file, database)
    back = JournalFile(tmp_path / "back.db")
    await anyio.to_thread.run_sync(move, database, back)
    for _ in range(2):
        with pytest.raises(JournalUnusable, match=f"was moved to another place, to {back.path}"):
            move(database, back)
    async with opened(back) as journal:
        assert (await journal.account()).taken == 1


async def test_what_was_moved_refuses_workers_until_it_is_reopened(
    file: JournalFile, database: JournalDatabase
) -> None:
    """So nobody works on both by mistake; each side can be taken back into use, as it was."""
    async with opened(file) as journal:
        await make_ready(journal, 1)
    await anyio.to_thread.run_sync(move, file, database)
    with pytest.raises(JournalError, match=f"was moved to another place, to {database.name} at 20"):
        async with opened(file):
            pass
    await anyio.to_thread.run_sync(move, database, JournalFile(file.path.with_name("back.db")))
    with pytest.raises(JournalError, match="was moved"):
        async with opened(database):
            pass
    for place in (file, database):
        for is_marked in (True, False):
            reopened = reopen_file(file.path) if place is file else reopen_database(database)
            assert reopened is is_marked
        async with opened(place) as journal:
            assert (await journal.account()).states == {State.READY: 1}


async def test_a_move_that_breaks_off_leaves_the_journal_in_use(
    file: JournalFile, database: JournalDatabase
) -> None:
    """The database goes away in the middle: nothing of it is there, and the file is no moved one."""
    async with opened(file) as journal:
        await fill(journal, 3)

    def cut(progress: object) -> None:
        with psycopg.connect(database.url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deliveryd.journal.moving.copies.ROWS_BETWEEN_REPORTS", 1)
        with pytest.raises(JournalError, match="database"):
            await anyio.to_thread.run_sync(move_journal, file, database, NOW, cut)
    async with opened(file) as journal:
        assert (await journal.account()).gap == 0
    await anyio.to_thread.run_sync(move, file, database)


async def taken_in(place: JournalPlace) -> int | None:
    """How many messages a journal has that a worker can use; None: none can."""
    if isinstance(place, JournalFile) and not place.path.exists():
        return None
    try:
        async with opened(place) as journal:
            return (await journal.account()).taken
    except JournalError:
        return None


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from deliveryd.journal.moving import move
from deliveryd.journal.place import JournalDatabase, JournalFile

file, url, way, step = sys.argv[1:]
places = [JournalFile(Path(file)), JournalDatabase(url)]
module = move if hasattr(move, step) else move.tables

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_after(*values):
    before(*values)
    kill()

before = getattr(module, step)
setattr(module, step, kill_after if step == "_commit_or" and os.environ.get("AFTER") else kill)
move.move_journal(*(places if way == "there" else places[::-1]), 1, lambda _progress: None)
"""


@pytest.mark.parametrize(
    ("way", "step", "usable"),
    [
        ("there", "fill_database", "source"),
        ("there", "begin_move", "source"),
        ("there", "mark_file_moved", "source"),
        ("there", "end_move", None),
        ("there", "_commit_or", None),
        ("there", "_commit_or after", "target"),
        ("back", "fill_file", "source"),
        ("back", "sync_file", "source"),
        ("back", "_commit_or", "source"),
        ("back", "_commit_or after", None),
        ("back", "unmark_file_moved", None),
    ],
)
async def test_a_move_that_is_killed_leaves_one_journal_in_use_or_none_and_can_be_repeated(
    file: JournalFile, database: JournalDatabase, way: str, step: str, usable: str | None
) -> None:
    """An empty journal in place of the one that is half-way would lose all that was taken."""
    source, target = (file, database) if way == "there" else (database, file)
    async with opened(source) as journal:
        await make_ready(journal, 1)
        if way == "back":
            async with opened(source) as other:
                await make_ready(other, 2)
        else:
            await make_ready(journal, 2)
    name, _, after = step.partition(" ")
    killed = await anyio.run_process(
        [sys.executable, "-c", KILLED_AT, str(file.path), database.url, way, name],
        env=os.environ | {"AFTER": after},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    found = {"source": source, "target": target}
    for role, place in found.items():
        if role == usable:
            assert await taken_in(place) == 2
        elif not (usable == "source" and place is database and step in ("fill_database", "begin_move")):
            assert await taken_in(place) is None, role  # before the mark, a database is an empty one
    if usable == "target":
        return
    if way == "back" and usable == "source":
        file.path.unlink(missing_ok=True)
    elif usable == "source" and step in ("fill_database", "begin_move"):
        return
    await anyio.to_thread.run_sync(move, source, target)
    assert await taken_in(source) is None
    assert await taken_in(target) == 2


async def test_what_an_older_move_left_half_done_is_not_finished_with_what_is_older(
    file: JournalFile, database: JournalDatabase
) -> None:
    """The file went elsewhere since: its copy there is the one in use."""
    async with opened(file) as journal:
        await make_ready(journal, 1)
    with psycopg.connect(database.url) as admin:
        schema.begin_move(admin, "older")
    elsewhere = new_database()
    assert elsewhere is not None
    await anyio.to_thread.run_sync(move, file, JournalDatabase(elsewhere))
    with pytest.raises(JournalError, match="was moved"):
        await anyio.to_thread.run_sync(move, file, database)
    assert await taken_in(JournalDatabase(elsewhere)) == 1


# the command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_deliveryd("journal", *arguments)


async def test_the_command_says_what_it_did_and_what_to_do_next(
    file: JournalFile, database: JournalDatabase
) -> None:
    async with opened(file) as journal:
        await make_ready(journal, 1, 2)
    url = f"sqlite:///{file.path}"
    done = await anyio.to_thread.run_sync(run, "move", "--from", url, "--to", database.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("moved 2 messages in ")
    assert f'set journal.url = "{database.url}" before a worker starts' in done.stdout
    assert done.stdout.endswith(
        "what it holds of customers stays there: neither journal.retention nor deliveryd erase reaches it;"
        " delete it as soon as the new journal is in use\n"
    )
    again = await anyio.to_thread.run_sync(run, "move", "--from", url, "--to", database.url)
    assert again.returncode == 78
    assert f"was moved to another place, to {database.name} at 20" in again.stderr
    assert "reopen" not in again.stderr
    refused = await anyio.to_thread.run_sync(run, "reopen", "--url", url)
    assert refused.returncode == 2
    assert "--accept-duplicates" in refused.stderr
    reopened = await anyio.to_thread.run_sync(run, "reopen", "--url", url, "--accept-duplicates")
    assert (reopened.returncode, reopened.stderr) == (0, "")


async def test_what_concerns_files_alone_needs_no_driver(
    file: JournalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither URL names a database."""
    async with opened(file):
        pass
    monkeypatch.setitem(sys.modules, "deliveryd.journal.moving.move", None)
    url = f"sqlite:///{file.path}"
    moved = await anyio.to_thread.run_sync(command, "journal", "move", "--from", url, "--to", f"{url}2")
    assert (moved.status, "a copy of the file will do" in moved.err) == (78, True), moved.err
    reopened = await anyio.to_thread.run_sync(
        command, "journal", "reopen", "--url", url, "--accept-duplicates"
    )
    assert (reopened.status, "wasn't moved: workers can use it" in reopened.err) == (1, True), reopened.err


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("move",), 2, "give --to or --from"),
        (("move", "--from", "mysql://x", "--to", "postgresql://y"), 2, "must look like"),
        (("move", "--from", "sqlite:////a.db", "--to", "sqlite:////b.db"), 78, "a copy of the file"),
        (("move", "--from", "postgresql:///a", "--to", "postgresql:///b"), 78, "pg_dump"),
        (
            ("move", "--from", "sqlite:////nowhere/a.db", "--to", "postgresql:///j"),
            78,
            "there is no journal at",
        ),
        (("move", "--from", "postgresql://ops:x@db/j", "--to", "sqlite:////tmp/absent.db"), 78, "a password"),
        (
            (
                "reopen",
                "--url",
                "postgresql://ops@127.0.0.1/j",
                "--password-file",
                "/nowhere/password",
                "--accept-duplicates",
            ),
            78,
            "deliveryd: --password-file can't be used",
        ),
        (("reopen", "--url", "sqlite:////nowhere/a.db", "--accept-duplicates"), 78, "there is no journal at"),
    ],
)
def test_a_wrong_call_gets_one_line_that_says_what_to_do(
    arguments: Sequence[str], status: int, why: str
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", [2, 1200, 9000])
async def test_receipts_find_their_messages_after_each_move(
    file: JournalFile, database: JournalDatabase, tmp_path: Path, size: int
) -> None:
    """By ids that an index of PostgreSQL can't hold as well."""
    choices, back = random.Random(size), JournalFile(tmp_path / "back.db")
    first, second = ("".join(choices.choices(ascii_lowercase, k=size)) for _ in range(2))
    async with opened(file) as journal:
        await deliver_to_sent(journal, 1, first)
        await deliver_to_sent(journal, 2, second)
    await anyio.to_thread.run_sync(move, file, database)
    async with opened(database) as journal:
        await journal.recover(NOW, PROVIDERS)
        assert await receive_all(journal, [sample_receipt(first)]) == ["matched"]
    await anyio.to_thread.run_sync(move, database, back)
    async with opened(back) as journal:
        await journal.recover(NOW, PROVIDERS)
        assert await receive_all(journal, [sample_receipt(second)]) == ["matched"]
