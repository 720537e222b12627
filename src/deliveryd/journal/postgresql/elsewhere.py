"""Which providers other workers have: those of live workers, and of ones that were there a short while ago.

A worker that is restarted is away for a moment, and so is the only one that has a provider already, or still.
What belongs to its providers is left to it for so long. Time is the database's own, and nobody's lease.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import LiteralString

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.database_clock import INSTANT
from deliveryd.model import SECOND

ABSENCE = 600
"""Seconds after the last renewal of an ended worker's lease for which its providers count as its own."""

_SINCE: LiteralString = (
    f"timestamptz 'epoch' + ({INSTANT.format('%(instant)s')} - {ABSENCE * SECOND}) * interval '1 microsecond'"
)

_ELSEWHERE = f"""
SELECT unnest(providers) FROM worker WHERE id <> %(me)s AND (ended IS NULL OR renewed_at > {_SINCE})
UNION SELECT provider FROM had WHERE had_at > {_SINCE}
"""
_KEEP = """
INSERT INTO had (provider, had_at)
SELECT each.provider, max(w.renewed_at) FROM worker w CROSS JOIN unnest(w.providers) AS each (provider)
WHERE w.id = ANY(%s::int8[]) GROUP BY each.provider
ON CONFLICT (provider) DO UPDATE SET had_at = greatest(had.had_at, excluded.had_at)
"""
_FORGET = f"DELETE FROM had WHERE had_at <= {_SINCE}"


def providers_elsewhere(db: Db, worker: int, instant: int | None) -> frozenset[str]:
    """The providers that workers have, or had until a short while ago, other than this one.

    `instant` is of the database's clock (see `database_clock`).
    """
    return frozenset(name for (name,) in db.execute(_ELSEWHERE, {"me": worker, "instant": instant}))


def keep_providers(db: Db, workers: Collection[int], instant: int | None) -> None:
    """Remember until when ended workers had their providers, before their rows are deleted."""
    db.execute(_KEEP, (list(workers),))
    db.execute(_FORGET, {"instant": instant})
