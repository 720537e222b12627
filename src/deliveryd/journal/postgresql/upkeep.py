"""Recovery at the start, and what is counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from deliveryd import transitions
from deliveryd.journal.base import Account, Counts, Open, Orphans, Recovery
from deliveryd.journal.postgresql.adoption import adopt_all
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.lease import Neighbours
from deliveryd.journal.postgresql.pauses import count_paused, pauses
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.steps import IN_DOUBT
from deliveryd.journal.postgresql.values import LOCATED, VISIBLE
from deliveryd.journal.postgresql.waiting import IS_PAUSED, held, hold_in_doubt, move_away
from deliveryd.journal.rows import to_json
from deliveryd.model import parse_instant
from deliveryd.runtime import waits
from deliveryd.states import ENDED, State

_KEYS = (waits.room, waits.repeat, waits.recovery, waits.alone)
_ALL = 2**31 - 1
_LOWEST = -(2**63)

_DUE_NOW = f"""
UPDATE waiting SET due_at = %(now)s, waits_for = NULL
WHERE waits_for IS NOT NULL AND waits_for <> ALL(%(keys)s::text[]) AND NOT {IS_PAUSED}
    AND provider <> ALL(%(others)s::text[])
"""
_DOUBT_ELSEWHERE = f"""
SELECT id FROM waiting WHERE doubt AND provider <> ALL(%s::text[])
    AND (waits_for IS NULL OR {IS_PAUSED}) ORDER BY id FOR UPDATE
"""
_ELSEWHERE = """
SELECT id FROM waiting WHERE waits_for IS NULL AND provider <> '' AND provider <> ALL(%s::text[])
ORDER BY id FOR UPDATE
"""
_STATES = f"""
SELECT state, count(*) FROM message WHERE owner IS NOT NULL GROUP BY state
UNION ALL SELECT {State.WAITING:d}, count(*) FROM waiting
"""
_COUNTS = f"""
SELECT (SELECT count(*) FROM worker w JOIN event e ON e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS})
        + (SELECT count(*) FROM inbox),
    (SELECT count(*) FROM event WHERE refused_at IS NOT NULL AND dropped_at IS NULL),
    (SELECT count(*) FROM malformed WHERE dropped_at IS NULL),
    (SELECT count(*) FROM unmatched WHERE dropped_at IS NULL)
"""
_CAUSES = f"""
SELECT NULL, provider, count(*) FROM waiting WHERE waits_for IS NULL GROUP BY provider
UNION ALL SELECT min(waits_for), '', count(*) FROM waiting WHERE waits_for IS NOT NULL AND NOT {IS_PAUSED}
    GROUP BY CASE WHEN waits_for LIKE 'customer %%' THEN 'directory' ELSE waits_for END
"""
_SUMS = "SELECT sum(taken)::int8, sum(pruned)::int8, sum(forgotten)::int8 FROM worker"
_ENDS = f"""
SELECT m.state, count(*) FROM message m
WHERE m.state IN ({", ".join(f"{end:d}" for end in sorted(ENDED))}) AND {VISIBLE} GROUP BY m.state
"""
_OPEN_WAITING = f"""
SELECT CASE WHEN waits_for IS NULL THEN provider
        WHEN split_part(waits_for, ' ', 1) IN ('provider', 'alone', 'room', 'repeat')
        THEN substr(waits_for, strpos(waits_for, ' ') + 1) ELSE '' END AS place, count(*), min(id)
FROM waiting WHERE {IS_PAUSED} IS NOT TRUE GROUP BY place
"""
_OLDEST = f"""
SELECT min(at) FROM (
    SELECT m.taken_at AS at FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
    UNION ALL SELECT taken_at FROM message WHERE owner > {IN_DOUBT}) AS taken
"""
_FIRST_EVENTS = f"""
SELECT e.body FROM worker w CROSS JOIN LATERAL (
    SELECT body FROM event WHERE seq > w.settled AND seq < (w.id + 1) << {LOG_BITS} ORDER BY seq LIMIT 1) AS e
"""
_ID_IN_DOUBT = """
SELECT provider_id FROM unaccepted WHERE message_id = %s AND key = %s AND verdict = 'in_doubt'
    AND provider_id IS NOT NULL ORDER BY number DESC LIMIT 1
"""
_NOTE_DOWN = """
INSERT INTO meta VALUES ('down_since', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
WHERE meta.value <> excluded.value
"""
_AT_PROVIDER = (
    "(waits_for = ANY(%(names)s::text[])"
    f" OR (provider = %(provider)s AND (waits_for IS NULL OR {IS_PAUSED})))"
)
_ORPHANS = f"""
SELECT (SELECT count(*) FROM message WHERE owner = {IN_DOUBT} AND provider = %(provider)s),
    (SELECT count(*) FROM waiting WHERE doubt AND {_AT_PROVIDER}),
    (SELECT count(*) FROM waiting WHERE NOT doubt AND {_AT_PROVIDER}),
    (SELECT count(*) FROM message m WHERE m.ended_at >= %(since)s AND m.state = {State.SENT:d}
        AND m.provider = %(provider)s AND {VISIBLE}),
    (SELECT count(*) FROM awaited WHERE provider = %(provider)s AND confirm_by IS NOT NULL)
"""


def meta(db: Db, key: str) -> str | None:
    """Return one of the journal's own values."""
    row = db.execute("SELECT value FROM meta WHERE key = %s", (key,)).fetchone()
    return None if row is None else str(row[0])


def recover(
    db: Db,
    worker: int,
    now: int,
    providers: Collection[str],
    neighbours: Neighbours,
) -> Recovery:
    """Bring what ended workers left into states to continue from, and take what of it is this one's.

    What waits at providers that others have, and what waits for an answer that a live one may have asked for,
    is left as it is.
    """
    others = neighbours.providers
    there = frozenset(providers)
    adopted = adopt_all(db, worker, now, providers, others, over=neighbours.over)
    keys = [key(provider) for provider in there for key in _KEYS]
    db.execute(
        _DUE_NOW, {"now": now, "keys": keys, "others": ["", *others] if neighbours.live else sorted(others)}
    )
    known = sorted(there.union(others))
    hold_in_doubt(db, [id_ for (id_,) in db.execute(_DOUBT_ELSEWHERE, (known,))])
    move_away(db, [id_ for (id_,) in db.execute(_ELSEWHERE, (known,))], now, transitions.left)
    paused = count_paused(db)
    foreign = frozenset(others) - there
    in_doubt = [each for each in held(db, None, _LOWEST, _ALL) if each.entry.provider not in foreign]
    return Recovery(
        adopted.taken,
        [*(each for each in adopted.doubtful if each.state is State.SENDING), *in_doubt],
        _one(db, "SELECT count(*) FROM waiting") - sum(paused.values()),
        adopted.reporting,
        down_since(db),
        pauses(db),
        paused,
        others,
    )


def note_down(db: Db, since: Mapping[str, int]) -> None:
    """Keep since when these providers are down."""
    if db.execute(_NOTE_DOWN, (to_json(dict(since)),)).rowcount:
        db.execute("UPDATE version SET number = number + 1 WHERE kind = 'down'")


def down_since(db: Db) -> Mapping[str, int]:
    text = meta(db, "down_since")
    return {} if text is None else dict(json.loads(text))


def id_in_doubt(db: Db, message_id: int, key: int) -> str | None:
    """Return the provider's id of a message as the latest try in doubt under a key had it."""
    row = db.execute(_ID_IN_DOUBT, (message_id, key)).fetchone()
    return None if row is None else row[0]


def open_states(db: Db) -> dict[State, int]:
    """Count the messages in each state that isn't an end."""
    return {State(state): number for state, number in db.execute(_STATES) if number}


def counts(db: Db) -> Counts:
    """Count messages by state, and what waits for the service or for an operator."""
    events, refused, malformed, unmatched = db.execute(_COUNTS).fetchone() or (0,) * 4
    return Counts(open_states(db), events, refused, malformed, unmatched, count_paused(db))


def largest_cause(db: Db) -> tuple[str, int]:
    """Return what most of the waiting messages wait for, and the number of them."""
    causes: Counter[str] = Counter()
    for waits_for, provider, count in db.execute(_CAUSES, ()):
        causes[waits.cause(waits_for, provider)] += count
    return max(causes.items(), key=lambda item: item[1], default=("nothing", 0))


def account(db: Db) -> Account:
    """Read the account: the sums of all workers, and the messages by state."""
    taken, pruned, forgotten = db.execute(_SUMS).fetchone() or (0, 0, 0)
    ends = {State(state): number for state, number in db.execute(_ENDS)}
    return Account(taken, open_states(db), ends, pruned, forgotten)


def open_work(db: Db) -> Open:
    """Read what hasn't ended, by provider, and the oldest of it."""
    waiting = db.execute(_OPEN_WAITING).fetchall()
    in_doubt = db.execute(
        f"SELECT provider, count(*) FROM message WHERE owner = {IN_DOUBT} GROUP BY provider"
    )
    events = [parse_instant(json.loads(body)["timestamp"]) for (body,) in db.execute(_FIRST_EVENTS)]
    return Open(
        {provider: count for provider, count, _ in waiting},
        dict(in_doubt.fetchall()),
        _one(db, _OLDEST, ([first for *_, first in waiting],)),
        min(events, default=None),
    )


def count_orphans(db: Db, provider: str, sent_since: int) -> Orphans:
    """Count what the removal of a provider would leave."""
    values = {"provider": provider, "since": sent_since, "names": [key(provider) for key in _KEYS]}
    held_there, doubtful, waiting, unconfirmed, deadlines = (
        db.execute(_ORPHANS, values).fetchone() or (0,) * 5
    )
    return Orphans(held_there + doubtful, waiting, unconfirmed, deadlines)


def _one(db: Db, query: str, values: Any = ()) -> Any:
    row = db.execute(query, values).fetchone()
    return None if row is None else row[0]
