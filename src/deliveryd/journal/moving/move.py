"""The move itself: no worker has either journal meanwhile, and only one of the two is in use afterwards.

A database is filled in one transaction. Before that is committed, it gets a mark that a move into it isn't
finished, and the file is marked as moved. A file that is filled is marked as moved until the database is.
So where a move breaks off in between, neither takes a worker, rather than both. The same move once more
finishes it: by a token that both sides have from it.
"""

from __future__ import annotations

import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import psycopg

from deliveryd.errors import JournalError, JournalLocked, JournalUnreachable, JournalUnusable
from deliveryd.journal.base import Account
from deliveryd.journal.moving.copies import Watch, fill_database, fill_file
from deliveryd.journal.place import JournalDatabase, JournalFile, JournalPlace, both_are
from deliveryd.journal.postgresql import schema as tables
from deliveryd.journal.postgresql.commits import translated_at_opening
from deliveryd.journal.postgresql.connection import Connected, connect_to_copy
from deliveryd.journal.postgresql.database import Database
from deliveryd.journal.postgresql.lease import (
    LeaseWatch,
    LiveWorker,
    boot_time,
    check_not_halted,
    ended_early,
    fence,
    live_workers,
)
from deliveryd.journal.sql.account import account
from deliveryd.journal.sql.schema import was_moved
from deliveryd.journal.sqlite.connection import connect_file, unusable
from deliveryd.journal.sqlite.files import make_file, sync_file
from deliveryd.journal.sqlite.lock import exclusive_journal
from deliveryd.journal.sqlite.opening import (
    checked,
    file_moved_by,
    mark_file_moved,
    moved_to,
    open_database,
    prepare_file,
    unmark_file_moved,
)
from deliveryd.model import format_instant

WATCH_PAUSE = 0.25
"""Seconds between two looks at the lease of a worker that may be gone."""


class Moved(NamedTuple):
    """What was moved: the account, which both sides agreed on."""

    account: Account
    seconds: float


def move_journal(
    source: JournalPlace,
    target: JournalPlace,
    now: int,
    watch: Watch,
    waits: Callable[[str], None] = lambda _text: None,
) -> Moved:
    """Move a journal into an empty place of the other kind. Raises JournalError: both are as they were.

    `waits` is called with the worker for which the move waits.
    """
    began = time.monotonic()
    match source, target:
        case JournalFile(), JournalDatabase():
            moved = _to_database(source, target, now, watch)
        case JournalDatabase(), JournalFile():
            moved = _to_file(source, target, now, watch, waits)
        case _:
            raise JournalUnusable(both_are(source))
    return Moved(moved, time.monotonic() - began)


def reopen_database(place: JournalDatabase) -> bool:
    """Let workers use a journal again that was moved; return whether it was marked. Raises JournalError.

    For a file see `reopen_file`.
    """
    with _database(place) as db, _translated(), db.transaction():
        tables.lock_schema(db)
        return tables.unmark_moved(db)


def _to_database(source: JournalFile, target: JournalDatabase, now: int, watch: Watch) -> Account:
    _insist_on_a_file(source)
    with exclusive_journal(source.path), _database(target) as db, _translated():
        db.execute("BEGIN")
        tables.lock_schema(db)
        token = tables.unfinished_move(db)
        if token is not None and checked(source.path, lambda: file_moved_by(source.path)) == token:
            checked(source.path, lambda: unmark_file_moved(source.path))
        _refuse_moved(source)
        with closing(open_database(source.path)) as file:
            _prepare_empty(db)
            file.execute("BEGIN IMMEDIATE")
            fill_database(file, db, watch)
            before, after = account(file), account(Database(db))
            _agree(before, after)
            file.execute("COMMIT")
            if token is None:
                token = _new_token()
                with _database(target) as beside:
                    tables.begin_move(beside, token)
            mark_file_moved(file, token, f"{target.name} at {format_instant(now)}")
        tables.end_move(db)
        _commit_or(db, lambda: unmark_file_moved(source.path))
        return after


def _to_file(
    source: JournalDatabase, target: JournalFile, now: int, watch: Watch, waits: Callable[[str], None]
) -> Account:
    found: list[Account] = []
    token = _new_token()
    with _database(source) as db, exclusive_journal(target.path):
        if target.path.exists() and target.path.stat().st_size:
            return _finished(target, db)
        with _translated():
            if db.execute("SELECT to_regclass('main.meta')").fetchone() == (None,):
                raise JournalUnusable(f"there is no journal to be moved in {source.name}")
            tables.prepare_schema(db)
            tables.check_movable(db)
            check_not_halted(db)
            _await_workers(db, waits)

            def fill(path: object) -> None:
                found.append(_fill(str(path), db, token, watch))

            _make(target, fill)
            where = f"{target.name} of {socket.gethostname()} at {format_instant(now)}"
            tables.mark_moved(db, token, where)
            _commit_or(db, target.path.unlink)
        checked(target.path, lambda: unmark_file_moved(target.path))
    return found[0]


def _finished(target: JournalFile, db: Connected) -> Account:
    """Finish a move that broke off when the database was marked already. Raises JournalUnusable."""
    token = checked(target.path, lambda: file_moved_by(target.path))
    with _translated():
        if token is None or token != tables.moved_by(db):
            tables.writable_format(db)  # raises where the journal was moved already, perhaps into this file
            raise JournalUnusable(f"{target.path} isn't empty: name a file that doesn't exist")
    checked(target.path, lambda: unmark_file_moved(target.path))
    with closing(open_database(target.path)) as file:
        return account(file)


def _new_token() -> str:
    return uuid.uuid4().hex


def _make(target: JournalFile, fill: Callable[[object], None]) -> None:
    """Make the file; errors of the journal that it is made of aren't the file's."""
    try:
        make_file(target.path, fill)
    except OSError as error:
        raise unusable(f"{target.path} can't be made: {error.strerror}", error) from error


def _fill(path: str, db: Connected, token: str, watch: Watch) -> Account:
    """Fill a new file, which no worker may use until the database is marked as moved."""
    tables.hold_schema(db)
    db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    tables.check_movable(db)
    check_not_halted(db)
    _refuse_workers(db)
    with closing(connect_file(path)) as file:
        file.execute("PRAGMA journal_mode = OFF")  # it isn't used until it is whole
        file.execute("PRAGMA synchronous = OFF")
        prepare_file(file)
        file.execute("BEGIN")
        fill_file(db, file, watch)
        file.execute("COMMIT")
        before, after = account(Database(db)), account(file)
        _agree(before, after)
        mark_file_moved(file, token)
    sync_file(path)
    return after


def _agree(before: Account, after: Account) -> None:
    if before != after:
        raise JournalError(
            f"the account of the copy is {after}, and of the journal {before}: nothing was moved"
        )


def _refuse_moved(source: JournalFile) -> None:
    """Raise JournalUnusable where a file's journal was moved to a place that is known."""
    if (there := checked(source.path, lambda: moved_to(source.path))) is not None:
        raise JournalUnusable(was_moved(there))


def _insist_on_a_file(place: JournalFile) -> None:
    if not place.path.exists():
        raise JournalUnusable(f"there is no journal at {place.path}")


@contextmanager
def _database(place: JournalDatabase) -> Iterator[Connected]:
    with connect_to_copy(place) as db:
        yield db


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translated_at_opening(error) from error
    except sqlite3.Error as error:
        raise unusable(f"the SQLite journal can't be copied: {error}", error) from error


def _prepare_empty(db: Connected) -> None:
    """Make the tables, unless they are there and hold nothing. Raises JournalUnusable."""
    tables.prepare_target(db)
    if (table := tables.first_filled(db)) is not None:
        raise JournalUnusable(
            f"the database to move into isn't empty, it has rows in {table}: create another one"
        )


def _await_workers(db: Connected, waits: Callable[[str], None]) -> None:
    """Wait until the leases of workers that are gone are over. Raises JournalLocked while one works.

    Also of those that were ended early: what they were sending is repeated from the file, at once.
    """
    watch = LeaseWatch()
    first: dict[int, int] = {}
    while True:
        asked_at = boot_time()
        workers, early = live_workers(db), ended_early(db)
        over = {each.id for each in watch.over([*workers, *early], asked_at, boot_time())}
        if not workers and over.issuperset(each.id for each in early):
            return
        for each in [*workers, *early]:
            if each.id not in first:
                waits(_awaited(each, is_ended=each in early))
            if first.setdefault(each.id, each.commits) != each.commits:
                raise JournalLocked(f"the worker {each.name} uses this journal: stop all workers of it first")
            if each in workers and each.id in over:
                fence(db, each)
        time.sleep(WATCH_PAUSE)


def _awaited(worker: LiveWorker, *, is_ended: bool) -> str:
    if is_ended:
        return f"the worker {worker.name} was ended early: waiting {worker.lease:g} s for its last attempts"
    return f"the worker {worker.name} didn't end its lease: waiting {worker.lease:g} s for a sign of life"


def _refuse_workers(db: Connected) -> None:
    if workers := live_workers(db):
        raise JournalLocked(f"the worker {workers[0].name} began to use this journal: stop it first")


def _commit_or(db: Connected, undo: Callable[[], object]) -> None:
    """Commit; if it is certain that it wasn't committed, undo what was done for it."""
    notices: list[str] = []
    db.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    try:
        db.execute("COMMIT")
    except psycopg.Error:
        if db.broken:
            raise JournalUnreachable(
                "the database went away while the move was committed, and neither journal may take workers:"
                " run the same command again"
            ) from None
        undo()
        raise
    if notices:
        raise JournalError(f"the copy isn't known to be on the standby: {notices[0]}")
