"""The journal's account: a counter of all messages ever taken, against the messages by state."""

from __future__ import annotations

import sqlite3

from deliveryd.journal.base import Account
from deliveryd.journal.reconciliation import LostBatches
from deliveryd.states import ENDED, State

_LOSE = "UPDATE log SET lost = lost + ?, lost_at = ?"
_ENDS = sorted(ENDED)
_EACH = ", ".join(f"count(*) FILTER (WHERE state = {end:d})" for end in _ENDS)
_ENDED = f"SELECT {_EACH} FROM message WHERE ended_at IS NOT NULL"  # noqa: S608  # one pass over the index, without sorting


def add_taken(db: sqlite3.Connection, number: int) -> None:
    """Add to the number of messages taken."""
    db.execute("UPDATE log SET taken = taken + ?", (number,))


def add_pruned(db: sqlite3.Connection, number: int) -> None:
    """Add to the number of messages of which only a tombstone is left."""
    db.execute("UPDATE log SET pruned = pruned + ?", (number,))


def add_forgotten(db: sqlite3.Connection, number: int) -> None:
    """Add to the number of messages that were forgotten on an operator's order."""
    db.execute("UPDATE log SET forgotten = forgotten + ?", (number,))


def add_lost(db: sqlite3.Connection, batches: int, at: int) -> None:
    """Add to the number of batches that may be lost."""
    if batches:
        db.execute(_LOSE, (batches, at))


def lost_batches(db: sqlite3.Connection) -> LostBatches:
    """Read the number of batches that may be lost."""
    return LostBatches(*db.execute("SELECT lost, lost_at FROM log").fetchone())


def account(db: sqlite3.Connection) -> Account:
    """Read the account from counters and indexes.

    Counting ended messages takes a few seconds for ten million, too long for the writing thread.
    """
    taken, pruned, forgotten = db.execute("SELECT taken, pruned, forgotten FROM log").fetchone()
    found = zip(_ENDS, db.execute(_ENDED).fetchone(), strict=True)
    return Account(
        taken,
        open_states(db),
        {end: number for end, number in found if number},
        pruned,
        forgotten,
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
