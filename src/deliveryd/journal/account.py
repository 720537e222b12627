"""The journal's account: a counter of all messages ever taken, against the messages by state."""

from __future__ import annotations

import sqlite3

from deliveryd.journal.base import Account
from deliveryd.journal.reconciliation import LostBatches
from deliveryd.states import ENDED, State

_LOSE = (
    "INSERT INTO meta VALUES ('batches_lost', ?1), ('batch_lost_at', ?2) ON CONFLICT (key) DO UPDATE"
    " SET value = iif(key = 'batches_lost', CAST(value AS INTEGER) + excluded.value, excluded.value)"
)
_ENDS = sorted(ENDED)
_EACH = ", ".join(f"count(*) FILTER (WHERE state = {end:d})" for end in _ENDS)
_ENDED = f"SELECT {_EACH} FROM message WHERE ended_at IS NOT NULL"  # noqa: S608  # one pass over the index, without sorting
_ADD = "UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = ?"


def add_taken(db: sqlite3.Connection, number: int) -> None:
    """Add to the number of messages taken."""
    db.execute(_ADD, (number, "taken"))


def add_pruned(db: sqlite3.Connection, number: int) -> None:
    """Add to the number of messages of which only a tombstone is left."""
    db.execute(_ADD, (number, "pruned"))


def add_forgotten(db: sqlite3.Connection, number: int) -> None:
    """Add to the number of messages that were forgotten on an operator's order."""
    db.execute(_ADD, (number, "forgotten"))


def add_lost(db: sqlite3.Connection, batches: int, at: int) -> None:
    """Add to the number of batches that may be lost."""
    if batches:
        db.execute(_LOSE, (str(batches), str(at)))


def lost_batches(db: sqlite3.Connection) -> LostBatches:
    """Read the number of batches that may be lost."""
    query = "SELECT key, CAST(value AS INTEGER) FROM meta WHERE key IN ('batches_lost', 'batch_lost_at')"
    found = dict(db.execute(query))
    return LostBatches(found.get("batches_lost", 0), found.get("batch_lost_at"))


def account(db: sqlite3.Connection) -> Account:
    """Read the account from counters and indexes.

    Counting ended messages takes a few seconds for ten million, too long for the writing thread.
    """
    counters = "SELECT key, CAST(value AS INTEGER) FROM meta WHERE key IN ('taken', 'pruned', 'forgotten')"
    meta = dict(db.execute(counters))
    found = zip(_ENDS, db.execute(_ENDED).fetchone(), strict=True)
    return Account(
        meta["taken"],
        open_states(db),
        {end: number for end, number in found if number},
        meta["pruned"],
        meta["forgotten"],
    )


def open_states(db: sqlite3.Connection) -> dict[State, int]:
    """Count the messages in each state that isn't an end.

    WAITING may hold millions: it is counted in covering indexes, without reading the rows.
    """
    rows = db.execute(
        "SELECT state, count(*) FROM message"  # noqa: S608  # constants
        " WHERE ended_at IS NULL AND due_at IS NULL GROUP BY state"
        f" UNION ALL SELECT {State.WAITING:d},"
        f" (SELECT count(*) FROM message WHERE state = {State.WAITING:d} AND waits_for IS NULL)"
        " + (SELECT count(*) FROM message WHERE waits_for IS NOT NULL AND due_at IS NOT NULL)"
    )
    return {State(state): number for state, number in rows if number}
