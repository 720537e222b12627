"""What workers share of a provider's limits: its rate, in slices, and the turns of their probes.

Each question is one statement and a transaction of its own, in a connection beside the writer's. Nothing
waits for the disk: what a crash of the server loses is older than its restart takes.

The rate is a theoretical arrival time (GCRA), in a row and by the database's clock. A worker reserves the
attempts of up to a slice by moving it on, at most a slice ahead of the present. So a worker that dies takes
the slice in progress and the next one with it, at most. If the clock is put back, the row has more than can
be reserved, and counts as unset: nothing stands still for longer than two slices and `_LATENESS`, or the
interval of a slower rate. If it is put forward, what was reserved may be sent once more: at most two slices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from deliveryd.journal.base import Allotment
from deliveryd.journal.postgresql.commits import translated
from deliveryd.journal.postgresql.connection import INSTANT, Connected, DatabaseClock
from deliveryd.journal.postgresql.database import plain
from deliveryd.model import SECOND, Clock
from deliveryd.runtime.threads import Blocking

SLICE = 0.25
"""Seconds whose attempts are reserved at once, and how far ahead."""

_LATENESS = 1.0
"""Seconds that a statement may have waited for another one's lock, by which its present is behind."""

_ASKED = f"(SELECT {INSTANT.format('%(at)s')} AS at)"
_ALLOT = f"""
WITH asked AS MATERIALIZED {_ASKED},
granted AS (
    UPDATE main.pace SET next_at = %(cost)s + CASE
        WHEN next_at BETWEEN asked.at AND asked.at + %(longest)s THEN next_at ELSE asked.at END
    FROM asked WHERE provider = %(provider)s
        AND next_at NOT BETWEEN asked.at + %(ahead)s + 1 AND asked.at + %(longest)s
    RETURNING next_at - %(cost)s - asked.at AS delay)
SELECT (SELECT delay FROM granted), pace.next_at - asked.at - %(ahead)s
FROM asked, main.pace AS pace WHERE provider = %(provider)s
"""
_FIRST = "INSERT INTO main.pace VALUES (%(provider)s, 0) ON CONFLICT DO NOTHING"
_CLAIM = f"""
WITH asked AS MATERIALIZED {_ASKED},
claimed AS (
    INSERT INTO main.probe AS p SELECT %(provider)s, at, at + %(pause)s FROM asked
    ON CONFLICT (provider) DO UPDATE SET since = excluded.since,
        until = excluded.since + least(greatest(%(pause)s, p.until - p.since), %(longest)s)
    WHERE excluded.since NOT BETWEEN p.since - {SECOND} AND p.until
    RETURNING 1)
SELECT EXISTS (SELECT FROM claimed), (SELECT until - at FROM main.probe, asked WHERE provider = %(provider)s)
"""
_FREE = "DELETE FROM main.probe WHERE provider = %(provider)s"


class Pacing:
    """Asks for a worker's share. `clock` None: the database's. Each method raises JournalError."""

    def __init__(self, connect: Callable[[], Connected], run: Blocking, clock: Clock | None) -> None:
        self._connect = connect
        self._run_in = run
        self._clock = DatabaseClock(clock)
        self._db: Connected | None = None
        self._turn = threading.Lock()

    async def allot(self, provider: str, interval: float, wanted: int) -> Allotment:
        """Reserve attempts of the next slice."""
        count = max(1, min(wanted, int(SLICE / interval)))
        values = {
            "cost": round(count * interval * SECOND),
            "ahead": round(SLICE * SECOND),
            "longest": round((SLICE + max(SLICE, interval) + _LATENESS) * SECOND),
        }
        while True:
            row = await self._ask(_ALLOT, provider, values)
            if row is not None:
                break
            await self._ask(_FIRST, provider, {})
        granted, free_in = row
        if granted is None:
            return Allotment(0, max(free_in, 0) / SECOND)
        return Allotment(count, granted / SECOND)

    async def claim_probe(self, provider: str, pause: float, longest: float) -> float:
        """Take the turn to probe, or return the seconds until it may be free."""
        values = {"pause": round(min(pause, longest) * SECOND), "longest": round(longest * SECOND)}
        is_claimed, free_in = await self._ask(_CLAIM, provider, values) or (False, None)
        return 0.0 if is_claimed else max((free_in or 0) / SECOND, 0.001)

    async def free_probe(self, provider: str) -> None:
        """Give the turn back, whoever took it."""
        await self._ask(_FREE, provider, {})

    async def _ask(self, query: str, provider: str, values: dict[str, int]) -> tuple[Any, ...] | None:
        terms = {"provider": plain(provider), "at": self._clock.given}
        return await self._run_in(lambda: self._asked(query, values | terms))

    def _asked(self, query: str, values: dict[str, Any]) -> tuple[Any, ...] | None:
        with self._turn:
            try:
                if self._db is None or self._db.closed:
                    self._db = self._connect()
                    self._db.execute("SET synchronous_commit = off")
                cursor = self._db.execute(query, values)
                return cursor.fetchone() if cursor.description else None
            except psycopg.Error as error:
                if self._db is not None and self._db.broken:
                    self._db.close()
                raise translated(error) from error

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            if self._db is not None:
                self._db.close()
