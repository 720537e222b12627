"""What a worker learns of the others: counts, and versions of what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import psycopg

from deliveryd.errors import JournalFull
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.database import Snapshots
from deliveryd.journal.sql.account import open_states
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.pauses import count_paused
from deliveryd.model import StopChange
from deliveryd.states import State

COUNTED_EVERY = 1.0
"""Least seconds between two counts of what waits."""

COUNTING_SHARE = 20
"""Seconds between two counts, for each second that a count takes."""

COUNTED_AT_LEAST_EVERY = 300.0
"""Most seconds between two counts: one may have taken as long as its process or machine stood still."""

_VERSIONS = "SELECT kind, number FROM main.version"
_CHANGED_STOPS = """
SELECT channel, digest, coalesce(lifted_at, at), lifted_at IS NULL, reason, source FROM main.stopped
WHERE change > %s AND change <= %s ORDER BY change
"""


def read_versions(db: Connected) -> Mapping[str, int]:
    """Read what the versions are at present."""
    return dict(db.execute(_VERSIONS).fetchall())


def changed_stops(db: Connected, after: int, until: int) -> Sequence[StopChange]:
    """Return what changed on the stopped list, by the numbers of the changes.

    Also this worker's own: if its change came on top of another worker's, neither result is known to it.
    """
    rows = db.execute(_CHANGED_STOPS, (after, until))
    return [StopChange(channel, bytes(digest), *rest) for channel, digest, *rest in rows]


class WaitingCounts(NamedTuple):
    """How many messages wait, without those that are paused, and how many are paused for what."""

    waiting: int
    paused: Mapping[str, int]


class Counting:
    """Counts what waits now and then, beside the writer, since a count of many takes its time."""

    def __init__(self, read: Snapshots, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._next = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether to count again."""
        return self._clock() >= self._next

    def count(self) -> WaitingCounts | None:
        """Count; None: the database can't be asked now."""
        began = self._clock()
        try:
            counts: WaitingCounts | None = self._read(_counted)
        except (JournalFull, psycopg.Error):
            counts = None
        ended = self._clock()
        pause = max(COUNTED_EVERY, COUNTING_SHARE * (ended - began))
        self._next = ended + min(pause, COUNTED_AT_LEAST_EVERY)
        return counts


def _counted(db: Db) -> WaitingCounts:
    paused = count_paused(db)
    waiting = open_states(db).get(State.WAITING, 0)
    return WaitingCounts(waiting - sum(paused.values()), paused)
