"""What belongs to providers that aren't configured any more. This module only reads, beside a worker too."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from pathlib import Path

from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.read_transaction import read
from deliveryd.states import State

_COUNTS = {
    "waiting": f"state = {State.WAITING:d} AND waits_for IS NULL",
    "in_doubt": (f"ended_at IS NULL AND due_at IS NULL AND state IN ({State.SENDING:d}, {State.IN_DOUBT:d})"),
    "unconfirmed": "confirm_by IS NOT NULL",
}
"""What is counted, by SQL that fits the condition of an index."""


def read_left_behind(path: Path, providers: Collection[str]) -> list[LeftBehind]:
    """Read what belongs to providers other than these. Raises JournalError."""
    return read(path, partial(_count, frozenset(providers)))


def _count(providers: frozenset[str], db: sqlite3.Connection) -> list[LeftBehind]:
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, condition in _COUNTS.items():
        rows = db.execute(f"SELECT provider, count(*) FROM message WHERE {condition} GROUP BY provider")  # noqa: S608
        for provider, count in rows:
            if provider and provider not in providers:
                found[provider][name] = count
    return [LeftBehind(provider, **counts) for provider, counts in sorted(found.items())]
