"""What belongs to providers that aren't configured any more. This module only reads, beside a worker too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.sql.db import Db
from deliveryd.states import State

_COUNTS = {
    "waiting": "SELECT waits_at, count(*) FROM message WHERE waits_at IS NOT NULL GROUP BY waits_at",
    "in_doubt": (
        "SELECT provider, count(*) FROM message WHERE ended_at IS NULL AND due_at IS NULL"  # noqa: S608
        f" AND state IN ({State.SENDING:d}, {State.IN_DOUBT:d}) GROUP BY provider"
    ),
    "unconfirmed": (
        "SELECT confirms_at, count(*) FROM message WHERE confirms_at IS NOT NULL GROUP BY confirms_at"
    ),
}
"""What is counted, by provider: what may be many in the order of an index, which holds the provider."""


def left_behind(db: Db, providers: Collection[str]) -> list[LeftBehind]:
    """Return what belongs to providers other than these."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, query in _COUNTS.items():
        for provider, count in db.execute(query):
            if provider and provider not in providers:
                found[provider][name] = count
    return [LeftBehind(provider, **counts) for provider, counts in sorted(found.items())]
