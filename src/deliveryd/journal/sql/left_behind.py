"""What belongs to providers that aren't configured any more. This module only reads, beside a worker too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.sql.db import Db
from deliveryd.states import State

_COUNTS = {
    "waiting": "waits_at IS NOT NULL",
    "in_doubt": (f"ended_at IS NULL AND due_at IS NULL AND state IN ({State.SENDING:d}, {State.IN_DOUBT:d})"),
    "unconfirmed": "confirms_at IS NOT NULL",
}
"""What is counted, by SQL that fits the condition of an index."""


def left_behind(db: Db, providers: Collection[str]) -> list[LeftBehind]:
    """Return what belongs to providers other than these."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, condition in _COUNTS.items():
        rows = db.execute(f"SELECT provider, count(*) FROM message WHERE {condition} GROUP BY provider")  # noqa: S608
        for provider, count in rows:
            if provider and provider not in providers:
                found[provider][name] = count
    return [LeftBehind(provider, **counts) for provider, counts in sorted(found.items())]
