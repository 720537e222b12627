"""The journal's account: a counter of all messages ever taken, against the messages by state."""

from __future__ import annotations

from deliveryd.journal.base import Account
from deliveryd.journal.reconciliation import LostBatches
from deliveryd.journal.sql.db import Db
from deliveryd.states import ENDED, State

_SUMS = """
SELECT coalesce(CAST(sum(taken) AS BIGINT), 0), coalesce(CAST(sum(pruned) AS BIGINT), 0),
    coalesce(CAST(sum(forgotten) AS BIGINT), 0) FROM log
"""
_LOST = "SELECT coalesce(CAST(sum(lost) AS BIGINT), 0), max(lost_at) FROM log"
_LOSE = "UPDATE log SET lost = lost + ?, lost_at = ?"
_ENDS = sorted(ENDED)
_EACH = ", ".join(f"count(*) FILTER (WHERE state = {end:d})" for end in _ENDS)
_ENDED = f"SELECT {_EACH} FROM message WHERE ended_at IS NOT NULL"  # noqa: S608  # one pass over the index, without sorting


def add_taken(db: Db, number: int) -> None:
    """Add to the number of messages taken."""
    db.execute("UPDATE log SET taken = taken + ?", (number,))


def add_pruned(db: Db, number: int) -> None:
    """Add to the number of messages of which only a tombstone is left."""
    db.execute("UPDATE log SET pruned = pruned + ?", (number,))


def add_forgotten(db: Db, number: int) -> None:
    """Add to the number of messages that were forgotten on an operator's order."""
    db.execute("UPDATE log SET forgotten = forgotten + ?", (number,))


def add_lost(db: Db, batches: int, at: int) -> None:
    """Add to the number of batches that may be lost."""
    if batches:
        db.execute(_LOSE, (batches, at))


def lost_batches(db: Db) -> LostBatches:
    """Read the number of batches that may be lost."""
    return LostBatches(*db.execute(_LOST).fetchone())


def account(db: Db) -> Account:
    """Read the account from counters and indexes.

    Counting ended messages takes a few seconds for ten million, too long for the writing thread.
    """
    taken, pruned, forgotten = db.execute(_SUMS).fetchone()
    found = zip(_ENDS, db.execute(_ENDED).fetchone(), strict=True)
    return Account(
        taken,
        open_states(db),
        {end: number for end, number in found if number},
        pruned,
        forgotten,
    )


def open_states(db: Db) -> dict[State, int]:
    """Count the messages in each state that isn't an end.

    WAITING may hold millions: it is counted in covering indexes, without reading the rows.
    """
    rows = db.execute(
        "SELECT state, count(*) FROM message"  # noqa: S608  # constants
        " WHERE ended_at IS NULL AND due_at IS NULL GROUP BY state"
        f" UNION ALL SELECT {State.WAITING:d},"
        " (SELECT count(*) FROM message WHERE waits_at IS NOT NULL)"
        " + (SELECT count(*) FROM message WHERE waits_for IS NOT NULL AND due_at IS NOT NULL)"
    )
    return {State(state): number for state, number in rows if number}
