"""The journal's account: a counter of all messages ever taken, against the messages by state; and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from deliveryd.journal.base import Account, Counts
from deliveryd.journal.reconciliation import LostBatches
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.pauses import IS_PAUSED, count_paused
from deliveryd.runtime import waits
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
_CAUSES = f"""
SELECT NULL, waits_at, count(*) FROM message WHERE waits_at IS NOT NULL GROUP BY waits_at
UNION ALL SELECT min(waits_for), '', count(*) FROM message
    WHERE waits_for IS NOT NULL AND due_at IS NOT NULL AND NOT ({IS_PAUSED})
    GROUP BY iif(waits_for LIKE 'customer %', 'directory', waits_for)
"""  # noqa: S608  # a constant


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


def counts(db: Db) -> Counts:
    """Count messages by state, and what waits for the service or for an operator."""
    events, refused, malformed, unmatched = db.execute(
        "SELECT (SELECT CAST(sum((SELECT count(*) FROM event WHERE seq > log.settled"
        " AND seq < (log.number + 1) << 40)) AS BIGINT) FROM log),"
        " (SELECT count(*) FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL),"
        " (SELECT count(*) FROM malformed WHERE dropped_at IS NULL),"
        " (SELECT count(*) FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL)"
    ).fetchone()
    return Counts(open_states(db), events, refused, malformed, unmatched, count_paused(db))


def sum_counts(found: Sequence[Counts]) -> Counts:
    """The sums of several logs, which share what belongs to no message."""
    if len(found) == 1:
        return found[0]
    states: Counter[State] = Counter()
    paused: Counter[str] = Counter()
    for each in found:
        states.update(each.states)
        paused.update(each.paused)
    return found[0]._replace(
        states=states,
        events_waiting=sum(each.events_waiting for each in found),
        events_refused=sum(each.events_refused for each in found),
        paused=paused,
    )


def largest_cause(db: Db) -> tuple[str, int]:
    """Return what most of the waiting messages wait for, and the number of them."""
    causes: Counter[str] = Counter()
    for waits_for, provider, count in db.execute(_CAUSES):
        causes[waits.cause(waits_for, provider)] += count
    return max(causes.items(), key=lambda item: item[1], default=("nothing", 0))
