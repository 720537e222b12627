"""What waits for room, fetched so that settings ids take turns: no backlog of one delays another by more.

An id's messages that were tried before come before its others; both go in the order in which they are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deliveryd.journal.base import LOWEST_ID, MOST_COUNTED, FetchPortion, Turn
from deliveryd.journal.rows import ENTRY, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.model import SECOND
from deliveryd.runtime import waits

_NOTHING = ""
"""What no message waits for."""

_WAITS = "waits_for = {} AND due_at IS NOT NULL"
_AFTER = f"SELECT min(settings_id) AS id FROM message WHERE {_WAITS} AND settings_id > ring.settings_id"  # noqa: S608  # constants
# Each step is a look into an index, however many messages an id has.
_RING = f"""
WITH RECURSIVE ring (settings_id) AS (
    SELECT CAST(?3 AS BIGINT)
    UNION ALL
    SELECT (SELECT min(behind.id) FROM ({_AFTER.format("?1")} UNION ALL {_AFTER.format("?2")}) AS behind)
    FROM ring WHERE settings_id IS NOT NULL
)
SELECT settings_id FROM ring WHERE settings_id IS NOT NULL LIMIT ?4
"""  # noqa: S608  # constants
_OF_ID = f"n.id FROM message AS n WHERE n.{_WAITS} AND n.settings_id = {{}}"
_IN_ORDER = "ORDER BY n.due_at, n.id LIMIT 1"
_FIRST = f"SELECT {_OF_ID} {_IN_ORDER}"
_OF_GIVEN = "CAST(given.value AS BIGINT)"
_OF_LAST = _OF_ID.format("last.waits_for", "last.settings_id")
# Two looks: for one by both columns SQLite would pass all that are due at the same time.
_NEXT = f"""
(SELECT {_OF_LAST} AND n.due_at = last.due_at AND n.id > last.id {_IN_ORDER}),
(SELECT {_OF_LAST} AND n.due_at > last.due_at {_IN_ORDER})
"""
# The recursion takes the first message of each id, then the second of each, and so on.
_TURNS = f"""
WITH RECURSIVE turn (message_id) AS (
    SELECT coalesce(({_FIRST.format("?1", _OF_GIVEN)}), ({_FIRST.format("?2", _OF_GIVEN)}))
    FROM json_each(?3) AS given
    UNION ALL
    SELECT coalesce({_NEXT}, iif(last.waits_for = ?2, NULL, ({_FIRST.format("?2", "last.settings_id")})))
    FROM turn JOIN message AS last ON last.id = turn.message_id
)
SELECT {ENTRY} FROM (SELECT message_id FROM turn WHERE message_id IS NOT NULL LIMIT ?4) AS chosen
JOIN message ON message.id = chosen.message_id
"""  # noqa: S608  # constants
_AHEAD = f"""
SELECT count(*) FROM (
    SELECT 1 FROM message WHERE {_WAITS.format("?1")} AND settings_id = ?2
        AND (due_at < ?3 OR (due_at = ?3 AND id < ?4))
    UNION ALL SELECT 1 FROM message WHERE {_WAITS.format("?5")} AND ?5 <> ?1 AND settings_id = ?2
    LIMIT ?6) AS first
"""  # noqa: S608  # constants
_WAIT_FOR_ROOM = """
UPDATE message SET waits_for = iif(stay_tries > 0 OR stay > 1, ?1, ?2), due_at = ?3
WHERE id IN (SELECT id FROM message WHERE waits_at = ?4 AND due_at <= ?5 ORDER BY due_at LIMIT ?6)
"""


def next_by_turns(
    db: Db, waits_for: Sequence[str], portion: FetchPortion, most: int
) -> Sequence[Sequence[Any]]:
    """Return rows of entries that wait for one of these, in the order of the turns, `most` at most.

    `waits_for` are two at most: an id's messages that wait for the first come before those for the second.
    """
    first, second = (*waits_for, _NOTHING)[:2]
    if portion.only is None:
        ids = _ring(db, first, second, portion, most)
    else:
        ids = sorted(portion.only, key=lambda id_: (id_ <= portion.after, id_))
    rows: Sequence[Sequence[Any]] = (
        db.execute(_TURNS, (first, second, to_json(ids), most)).fetchall() if ids else ()
    )
    return rows


def _ring(db: Db, first: str, second: str, portion: FetchPortion, most: int) -> list[int]:
    """The settings ids with messages that wait: from the one behind `after` on, then the lowest."""
    limit = most + len(portion.without) + 1
    ids: list[int] = []
    for after in (portion.after, LOWEST_ID):
        if len(ids) < most:
            _after, *behind = (id_ for (id_,) in db.execute(_RING, (first, second, after, limit)))
            ids += [id_ for id_ in behind if id_ not in portion.without]
    return list(dict.fromkeys(ids))[:most]


def turn_of(db: Db, message_id: int, settings_id: int, waits_for: str, due_at: int) -> Turn | None:
    """Return which turn a message has that waits for room; None: it waits for something else."""
    provider = waits_for.partition(" ")[2]
    keys = waits.repeat(provider), waits.room(provider)
    if waits_for not in keys:
        return None
    values = waits_for, settings_id, due_at, message_id, keys[0], MOST_COUNTED
    (ahead,) = db.execute(_AHEAD, values).fetchone()
    others = len(_ring(db, *keys, FetchPortion(0, without=frozenset({settings_id})), MOST_COUNTED))
    return Turn(ahead, others)


def have_wait_for_room(db: Db, provider: str, now: int, limit: int) -> int:
    """Have messages that are due at a provider and found no room wait for it; return how many.

    They are looked at again after the longest wait: they may have expired.
    """
    until = now + int(waits.LONGEST_ANSWER_WAIT * SECOND)
    values = waits.repeat(provider), waits.room(provider), until, provider, now, limit
    return db.execute(_WAIT_FOR_ROOM, values).rowcount
