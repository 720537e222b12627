"""What belongs to providers that aren't configured any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.postgresql.connection import Db
from deliveryd.states import State

_COUNTS = {
    "waiting": "SELECT provider, count(*) FROM waiting WHERE waits_for IS NULL GROUP BY provider",
    "in_doubt": (
        "SELECT provider, count(*) FROM message WHERE owner IS NOT NULL"
        f" AND state IN ({State.SENDING:d}, {State.IN_DOUBT:d}) GROUP BY provider"
    ),
    "unconfirmed": "SELECT provider, count(*) FROM awaited WHERE confirm_by IS NOT NULL GROUP BY provider",
}


_ELSEWHERE = "SELECT DISTINCT unnest(providers) FROM worker WHERE ended IS NULL"


def read_left_behind(db: Db, providers: Collection[str]) -> list[LeftBehind]:
    """Return what belongs to providers that are neither among these nor those of a worker that runs."""
    providers = {*providers, *(name for (name,) in db.execute(_ELSEWHERE))}
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, query in _COUNTS.items():
        for provider, count in db.execute(query):
            if provider and provider not in providers:
                found[provider][name] = count
    return [LeftBehind(provider, **counts) for provider, counts in sorted(found.items())]
