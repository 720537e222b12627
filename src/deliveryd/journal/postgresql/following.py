"""What this worker keeps of what the others do, and what of it is news."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import psycopg

from deliveryd.errors import JournalFull
from deliveryd.journal.base import FromOthers
from deliveryd.journal.orders import Effect
from deliveryd.journal.pauses import Pause
from deliveryd.journal.postgresql.adoption import NOTHING_LEFT, adopt, fold
from deliveryd.journal.postgresql.asking_anew import go_on_asking
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.homeless import Homeless
from deliveryd.journal.postgresql.lease import Neighbours
from deliveryd.journal.postgresql.outbox import Outbox
from deliveryd.journal.postgresql.pauses import count_paused, pauses
from deliveryd.journal.postgresql.receipts import Matching
from deliveryd.journal.postgresql.stopped import changed_stops
from deliveryd.journal.postgresql.upkeep import down_since
from deliveryd.journal.postgresql.values import ENTRY, LOCATED
from deliveryd.journal.rows import entry_of
from deliveryd.model import Entry, StopChange
from deliveryd.states import State

COUNTED_EVERY = 1.0
"""Least seconds between two counts of what waits."""

COUNTING_SHARE = 20
"""Seconds between two counts, for each second that a count takes."""

COUNTED_AT_LEAST_EVERY = 300.0
"""Most seconds between two counts: one may have taken as long as its process or machine stood still."""

MOST_SWEPT = 500
"""Receipts that fit no attempt, and that one look tries to match again."""

_VERSIONS = "SELECT kind, number FROM version"
_NOTE = "UPDATE worker SET providers = %s, pauses = %s WHERE id = %s"
_GIVEN = "DELETE FROM given WHERE log IN (SELECT id FROM worker WHERE holder = %s) RETURNING id"
_TAKEN = f"""
SELECT {ENTRY} FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
WHERE m.state = {State.TAKEN:d} ORDER BY m.id
"""
_COUNT = "SELECT count(*) FROM waiting"


class News(NamedTuple):
    """What one look found, and what is remembered of it when its commit took place."""

    found: FromOthers
    versions: Mapping[str, int]


class Follower:
    """Looks at what others did. What it remembers is of commits that took place."""

    def __init__(
        self,
        worker: int,
        neighbours: Neighbours,
        outbox: Outbox,
        matching: Matching,
        clock: Callable[[], float],
    ) -> None:
        self._worker = worker
        self._neighbours = neighbours
        self._outbox = outbox
        self._matching = matching
        self._homeless = Homeless(clock)
        self._seen: dict[str, int] = {}
        self._live: frozenset[int] = frozenset()
        self._looked: frozenset[int] = frozenset()
        self._noted: tuple[frozenset[str], int] | None = None
        self.providers: frozenset[str] | None = None
        """Those that this worker has; None: it hasn't said."""

    @property
    def foreign(self) -> Collection[str]:
        """The providers that only others have."""
        if self.providers is None:
            return ()
        return sorted(self._neighbours.providers - self.providers)

    def note(self, db: Db, providers: Collection[str]) -> None:
        """Tell the others which providers this worker has, and which pauses it goes by."""
        self.providers = frozenset(providers)
        noted = self.providers, self._seen.get("pauses", 0)
        if noted != self._noted:
            db.execute(_NOTE, (sorted(providers), noted[1], self._worker))
            self._noted = noted

    def begin(self, db: Db, providers: Collection[str]) -> None:
        """Tell the others that this worker is there, and learn of them; what waits is put in order next."""
        self.note(db, providers)
        self._neighbours.look(db)
        self._homeless.begin(self.foreign)

    def forget_uncommitted(self) -> None:
        """A commit failed: what it noted isn't there."""
        self._noted = None

    def look(self, db: Db, now: int, instant: int | None) -> News:
        """Adopt, take in what others left to this worker, and read what they changed.

        `instant`: of the database's clock.
        """
        self._neighbours.look(db)
        self._looked = frozenset(each.id for each in self._neighbours.live)
        others = self._neighbours.providers
        adopted = adopt(db, self._worker, now, self.providers or (), others, over=self._neighbours.over)
        go_on_asking(db)
        self._homeless.sweep(db, now, self.foreign, self.providers or ())
        events = self._outbox.move_in(db)
        given = self._given(db, {entry.id for entry in adopted.taken})
        adopted = adopted._replace(taken=[*adopted.taken, *given])
        effects: Sequence[Effect] = self._matching.sweep(db, now, MOST_SWEPT)
        fold(db, self._worker, now, instant, self._neighbours.over)
        versions: dict[str, int] = dict(db.execute(_VERSIONS).fetchall())
        found = FromOthers(
            adopted if adopted != NOTHING_LEFT else None,
            self._pauses(db, versions["pauses"]),
            self._stops(db, versions["stops"]),
            down_since(db) if versions["down"] != self._seen.get("down") else None,
            events=events,
            effects=effects,
            elsewhere=others,
            any_ended=not self._live <= self._looked,
        )
        return News(found, versions)

    def _given(self, db: Db, known: Collection[int]) -> list[Entry]:
        """Messages that were retried at another worker, and whose `dequeued` is reported by this one."""
        ids = sorted({id_ for (id_,) in db.execute(_GIVEN, (self._worker,))}.difference(known))
        return [entry_of(row) for row in db.execute(_TAKEN, (ids,))] if ids else []

    def remember(self, versions: Mapping[str, int]) -> None:
        """The commit of a look took place."""
        self._seen |= versions
        self._live = self._looked
        self._homeless.remember()

    def _pauses(self, db: Db, version: int) -> Sequence[Pause] | None:
        return pauses(db) if version != self._seen.get("pauses") else None

    def _stops(self, db: Db, version: int) -> Sequence[StopChange]:
        """Since the whole list was read, or the last look."""
        seen = self._seen.get("stops", version)
        return changed_stops(db, seen, version) if version > seen else ()


def read_versions(db: Db) -> Mapping[str, int]:
    """Read what the versions are at present."""
    return dict(db.execute(_VERSIONS).fetchall())


class WaitingCounts(NamedTuple):
    """How many messages wait, without those that are paused, and how many are paused for what."""

    waiting: int
    paused: Mapping[str, int]


class Counting:
    """Counts what waits now and then, over a connection of its own, since a count of many takes its time."""

    def __init__(self, connect: Callable[[], Db], clock: Callable[[], float]) -> None:
        self._connect = connect
        self._clock = clock
        self._next = float("-inf")
        self._db: Db | None = None

    @property
    def is_due(self) -> bool:
        """Whether to count again."""
        return self._clock() >= self._next

    def count(self) -> WaitingCounts | None:
        """Count; None: the database can't be asked now."""
        began = self._clock()
        try:
            counts = self._counted()
        except (JournalFull, psycopg.Error):
            self.close()
            counts = None
        ended = self._clock()
        pause = max(COUNTED_EVERY, COUNTING_SHARE * (ended - began))
        self._next = ended + min(pause, COUNTED_AT_LEAST_EVERY)
        return counts

    def _counted(self) -> WaitingCounts:
        if self._db is None:
            self._db = self._connect()
        with self._db.transaction():
            self._db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            paused = count_paused(self._db)
            (waiting,) = self._db.execute(_COUNT).fetchone() or (0,)
        return WaitingCounts(waiting - sum(paused.values()), paused)

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()
            self._db = None
