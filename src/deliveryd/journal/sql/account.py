"""Counts: the account of all messages ever taken, what hasn't ended, and the oldest of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from deliveryd.journal.attention import LeftBehind, LostBatches, OverdueMessage
from deliveryd.journal.base import Account, Counts, Open
from deliveryd.journal.rows import IDS, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.pauses import IS_PAUSED, count_paused
from deliveryd.journal.sql.schema import KNOW_PROVIDER
from deliveryd.model import parse_instant
from deliveryd.runtime import waits
from deliveryd.states import ENDED, State

_SUMS = """
SELECT coalesce(CAST(sum(taken) AS BIGINT), 0), coalesce(CAST(sum(pruned) AS BIGINT), 0),
    coalesce(CAST(sum(forgotten) AS BIGINT), 0) FROM log
"""
_COUNT_MORE = "UPDATE log SET taken = taken + ?, pruned = pruned + ?, forgotten = forgotten + ?"
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


def count_more(db: Db, *, taken: int = 0, pruned: int = 0, forgotten: int = 0) -> None:
    """Add to the numbers of messages: taken, of which only a tombstone is left, and forgotten by order."""
    db.execute(_COUNT_MORE, (taken, pruned, forgotten))


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
    """Waiting messages of one provider: how many, the lowest id, and what they wait for."""

    provider: str
    messages: int
    first: int
    waits_for: str | None = None


def open_work(db: Db) -> Open:
    """Read what hasn't ended."""
    waiting, limited, causes, firsts = Counter[str](), Counter[str](), Counter[str](), []
    for provider, count, first, waits_for in (*_timed(db), *_held(db)):
        waiting[provider] += count
        causes[waits.RETRIES if waits_for is None else waits.cause_of(waits_for)] += count
        if waits_for is not None and waits.is_limited(waits_for):
            limited[waits_for] += count
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
        limited,
        causes,
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
            yield _Waiting("", count, first, prefix)
        after = end
    yield from _by_name(db, "waits_for > ?", after)


def _by_name(db: Db, condition: str, *bounds: str) -> Iterator[_Waiting]:
    for waits_for, count, first in db.execute(_HELD_BY_NAME.format(condition), bounds):
        yield _Waiting(waits.provider_of(waits_for), count, first, waits_for)


def of_removed_providers(db: Db, providers: Collection[str]) -> list[LeftBehind]:
    """Return what belongs to providers other than these."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, query in _COUNTS.items():
        for provider, count in db.execute(query):
            if provider and provider not in providers:
                found[provider][name] = count
    return [LeftBehind(provider, **counts) for provider, counts in sorted(found.items())]


_OVERDUE = f"FROM message WHERE ended_at >= ? AND ended_at < ? AND state = {State.SENT:d} AND provider = ?"
_SELECT_OVERDUE = (
    f"SELECT id, provider, provider_id, accepted_at {_OVERDUE} ORDER BY ended_at, id"  # a constant
)
_COUNT_OVERDUE = f"SELECT count(*) {_OVERDUE}"  # a constant
_COUNTED = "SELECT overdue_until FROM provider WHERE name = ?"
_KEEP_COUNTED = "UPDATE provider SET overdue_until = ? WHERE name = ?"


def read_overdue(db: Db, until: Mapping[str, int]) -> list[OverdueMessage]:
    """Return the messages that were sent before these instants, by provider."""
    rows = (row for name, each in until.items() for row in db.execute(_SELECT_OVERDUE, (0, each, name)))
    return sorted((OverdueMessage(*row) for row in rows), key=lambda each: each.sent_at)


def count_overdue(provider: str, since: int | None, until: int, db: Db) -> int:
    """Count a provider's messages that were sent between two instants and never confirmed.

    `since` None: from where an earlier run ended.
    """
    if since is None:
        row = db.execute(_COUNTED, (provider,)).fetchone()
        since = row[0] if row is not None else 0
    (count,) = db.execute(_COUNT_OVERDUE, (since, until, provider)).fetchone()
    return int(count)


def keep_counted(db: Db, provider: str, until: int) -> None:
    """Note up to which instant a provider's messages were counted."""
    db.execute(KNOW_PROVIDER, (provider,))
    db.execute(_KEEP_COUNTED, (until, provider))
