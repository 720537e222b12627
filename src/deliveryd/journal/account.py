"""The journal's account: how many messages were ever taken, counted apart, and where all of them are now."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from deliveryd.journal.base import Account
from deliveryd.states import ENDED, State

_LOSE = (
    "INSERT INTO meta VALUES ('batches_lost', ?1), ('batch_lost_at', ?2) ON CONFLICT (key) DO UPDATE"
    " SET value = iif(key = 'batches_lost', CAST(value AS INTEGER) + excluded.value, excluded.value)"
)
_ENDS = sorted(ENDED)
_EACH = ", ".join(f"count(*) FILTER (WHERE state = {end:d})" for end in _ENDS)
_ENDED = f"SELECT {_EACH} FROM message WHERE ended_at IS NOT NULL"  # noqa: S608  # one pass, without sorting
_ADD = "UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = ?"


def add_taken(db: sqlite3.Connection, number: int) -> None:
    """So many more messages were taken."""
    db.execute(_ADD, (number, "taken"))


def add_forgotten(db: sqlite3.Connection, number: int) -> None:
    """Of so many more messages only the ids are kept."""
    db.execute(_ADD, (number, "forgotten"))


class Lost(NamedTuple):
    """Batches of the queue that may be lost: how many, and when the last one was asked for."""

    batches: int
    last_at: int | None


def add_lost(db: sqlite3.Connection, batches: int, at: int) -> None:
    """So many more batches of the queue may be lost."""
    if batches:
        db.execute(_LOSE, (str(batches), str(at)))


def lost(db: sqlite3.Connection) -> Lost:
    """The batches that may be lost."""
    query = "SELECT key, CAST(value AS INTEGER) FROM meta WHERE key IN ('batches_lost', 'batch_lost_at')"
    found = dict(db.execute(query))
    return Lost(found.get("batches_lost", 0), found.get("batch_lost_at"))


def account(db: sqlite3.Connection) -> Account:
    """The account by counters and indexes.

    Ended messages are counted in an index, a few seconds for ten million: too long for the writer.
    """
    counters = "SELECT key, CAST(value AS INTEGER) FROM meta WHERE key IN ('taken', 'forgotten')"
    meta = dict(db.execute(counters))
    found = zip(_ENDS, db.execute(_ENDED).fetchone(), strict=True)
    return Account(
        meta["taken"], open_states(db), {end: number for end, number in found if number}, meta["forgotten"]
    )


def open_states(db: sqlite3.Connection) -> dict[State, int]:
    """How many messages are in each state that isn't an end.

    Those that wait may be very many: they are counted in their index, without a look at one of them.
    """
    rows = db.execute(
        "SELECT state, count(*) FROM message WHERE ended_at IS NULL AND due_at IS NULL GROUP BY state"
        " UNION ALL SELECT 3, (SELECT count(*) FROM message WHERE state = 3 AND waits_for IS NULL)"
        " + (SELECT count(*) FROM message WHERE waits_for IS NOT NULL AND due_at IS NOT NULL)"
    )
    return {State(state): number for state, number in rows if number}
