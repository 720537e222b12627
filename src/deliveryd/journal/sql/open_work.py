"""What hasn't ended, by provider, and the oldest of it: one pass over the indexes of what is open."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.base import Open
from deliveryd.journal.rows import IDS, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.model import parse_instant
from deliveryd.runtime import waits
from deliveryd.states import State

# Literals: they have to match the conditions of partial indexes, which hold all that is read here.
_TIMED = "SELECT waits_at, count(*), min(id) FROM message WHERE waits_at IS NOT NULL GROUP BY waits_at"
_HELD = "FROM message WHERE waits_for IS NOT NULL AND due_at IS NOT NULL"
_HELD_BY_NAME = f"SELECT waits_for, count(*), min(id) {_HELD} AND {{}} GROUP BY waits_for"
_HELD_WITHIN = f"SELECT count(*), min(id) {_HELD} AND waits_for > ? AND waits_for < ?"
_MOVING = (
    "SELECT state, provider, count(*), min(taken_at) FROM message"
    " WHERE ended_at IS NULL AND due_at IS NULL GROUP BY state, provider"
)
_TAKEN_FIRST = f"SELECT min(taken_at) FROM message WHERE id IN {IDS}"  # noqa: S608  # a constant
_FIRST_EVENTS = """
SELECT (SELECT body FROM event WHERE seq > log.settled AND seq < (log.number + 1) << 40 ORDER BY seq LIMIT 1)
FROM log
"""

_MANY = ("customer ", waits.PAUSED_FROM, "settings ")
"""What so many names begin with that messages aren't counted for each of them; in the index's order."""


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


class _Waiting(NamedTuple):
    """Waiting messages of one provider: how many, and the lowest id."""

    provider: str
    messages: int
    first: int


def open_work(db: Db) -> Open:
    """Read what hasn't ended."""
    waiting, firsts = Counter[str](), []
    for provider, count, first in (*_timed(db), *_held(db)):
        waiting[provider] += count
        firsts.append(first)
    in_doubt = Counter[str]()
    taken = []
    for state, provider, count, taken_at in db.execute(_MOVING):
        if state == State.IN_DOUBT:
            in_doubt[provider] += count
        else:
            taken.append(taken_at)
    (taken_first,) = db.execute(_TAKEN_FIRST, (to_json(firsts),)).fetchone()
    if taken_first is not None:
        taken.append(taken_first)
    events = [parse_instant(json.loads(body)["timestamp"]) for (body,) in db.execute(_FIRST_EVENTS) if body]
    return Open(
        waiting,
        in_doubt,
        min(taken, default=None),
        min(events, default=None),
    )


def _timed(db: Db) -> Iterator[_Waiting]:
    """Messages that wait for their time."""
    return (_Waiting(*row) for row in db.execute(_TIMED))


def _held(db: Db) -> Iterator[_Waiting]:
    """Messages that wait for something, but for those that are paused."""
    after = ""
    for prefix in _MANY:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        yield from _by_name(db, "waits_for > ? AND waits_for < ?", after, prefix)
        count, first = db.execute(_HELD_WITHIN, (prefix, end)).fetchone()
        if count and prefix != waits.PAUSED_FROM:
            yield _Waiting("", count, first)
        after = end
    yield from _by_name(db, "waits_for > ?", after)


def _by_name(db: Db, condition: str, *bounds: str) -> Iterator[_Waiting]:
    for waits_for, count, first in db.execute(_HELD_BY_NAME.format(condition), bounds):
        yield _Waiting(waits.provider_of(waits_for), count, first)


def of_removed_providers(db: Db, providers: Collection[str]) -> list[LeftBehind]:
    """Return what belongs to providers other than these."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, query in _COUNTS.items():
        for provider, count in db.execute(query):
            if provider and provider not in providers:
                found[provider][name] = count
    return [LeftBehind(provider, **counts) for provider, counts in sorted(found.items())]
