"""Tombstones: the id of a pruned message, and in few bytes the events to report again for a repeat."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.outbox import AT, PRESENT
from deliveryd.journal.postgresql.values import arrays
from deliveryd.journal.rows import to_json
from deliveryd.journal.tombstones import Tombstone, tombstone_of, without_details
from deliveryd.model import parse_instant
from deliveryd.states import State

_READ = "SELECT id, dequeued_at, at, status, rest FROM tombstone WHERE id = ANY(%s::int8[])"
_EVENTS = f"""
SELECT wanted.id,
    (SELECT e.body FROM event e WHERE e.message_id = wanted.id AND e.status = 'dequeued' AND {PRESENT}
        LIMIT 1),
    (SELECT e.body FROM event e WHERE e.message_id = wanted.id AND e.refused IS NULL AND {PRESENT}
        ORDER BY {AT} DESC, e.seq DESC LIMIT 1)
FROM unnest(%s::int8[]) AS wanted (id)
"""
_ADD = """
INSERT INTO tombstone SELECT * FROM unnest(%s::int8[], %s::int8[], %s::int8[], %s::text[], %s::text[])
"""
_STRIP = "UPDATE tombstone SET rest = %s WHERE id = %s"
_KEEP_BEGINNINGS = f"""
INSERT INTO beginning (id, count, doubt) SELECT id, count, doubt FROM (
    SELECT m.id, greatest(m.beginning, coalesce((SELECT max(u.beginning) FROM unaccepted u
            WHERE u.message_id = m.id AND u.day = m.day), 1)) AS count,
        m.state = {State.FAILED:d} AND (m.doubt OR m.sent_by IS NOT NULL) AS doubt
    FROM unnest(%s::int8[]) AS wanted (id) JOIN seen ON seen.id = wanted.id
    JOIN message m ON m.day = seen.day AND m.id = seen.id) AS kept
WHERE count > 1 OR doubt
ON CONFLICT (id) DO UPDATE SET count = greatest(beginning.count, excluded.count), doubt = excluded.doubt
"""


def add_tombstones(db: Db, ids: Collection[int]) -> None:
    """Write tombstones for messages, from their events, and keep how often they began."""
    rows = [(row[0], *_columns(*row)) for row in db.execute(_EVENTS, (list(ids),))]
    if rows:
        db.execute(_ADD, arrays(rows))
        keep_beginnings(db, ids)


def _columns(
    id_: int, dequeued: str | None, latest: str | None
) -> tuple[int | None, int | None, str | None, str | None]:
    at, status, rest = None, None, None
    if latest is not None:
        fields = json.loads(latest)
        at, status = parse_instant(fields.pop("timestamp")), fields.pop("status")
        if fields["messageId"] == id_:
            del fields["messageId"]
        rest = to_json(fields) if fields else None
    return None if dequeued is None else parse_instant(json.loads(dequeued)["timestamp"]), at, status, rest


def keep_beginnings(db: Db, ids: Collection[int]) -> None:
    """Keep how often messages began that are about to be deleted."""
    db.execute(_KEEP_BEGINNINGS, (list(ids),))


def strip_details(db: Db, id_: int) -> None:
    """Remove from a tombstone all fields but those that the interface requires."""
    (rest,) = db.execute("SELECT rest FROM tombstone WHERE id = %s", (id_,)).fetchone() or (None,)
    db.execute(_STRIP, (without_details(rest), id_))


def read_tombstones(db: Db, ids: Sequence[int]) -> Mapping[int, Tombstone]:
    """Read the tombstones of those of these messages that have one."""
    return {id_: tombstone_of(id_, *row) for id_, *row in db.execute(_READ, (list(ids),))} if ids else {}
