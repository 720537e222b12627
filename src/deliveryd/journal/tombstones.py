"""Tombstones: the id of a pruned message, and in few bytes the events to report again for a repeat."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from deliveryd.journal.rows import to_json
from deliveryd.model import format_instant


class Tombstone(NamedTuple):
    """The JSON of a pruned message's `dequeued` and of its latest event, as they were reported."""

    dequeued: str | None
    latest: str | None


def _instant(body: str) -> str:
    """SQL for an event's timestamp in microseconds: it has a fixed place in the JSON (see `EventWriter`)."""
    return (
        f"CAST(strftime('%s', substr({body}, 15, 19)) AS INTEGER) * 1000000"
        f" + CAST(substr({body}, 35, 6) AS INTEGER)"
    )


_COLUMNS = (
    f"id, {_instant('dequeued')}, {_instant('latest')}, json_extract(latest, '$.status'),"
    " nullif(json_remove(latest, '$.timestamp', '$.messageId', '$.status'), '{}')"
)
"""SQL for the columns of `tombstone` from `id`, and `dequeued` and `latest` as JSON."""

_ADD_TOMBSTONE = (
    f"INSERT INTO tombstone SELECT {_COLUMNS} FROM (SELECT ?1 AS id,"  # noqa: S608  # constants
    " (SELECT body FROM event WHERE message_id = ?1 AND status = 'dequeued' LIMIT 1) AS dequeued,"
    " (SELECT body FROM event WHERE message_id = ?1 AND refused IS NULL ORDER BY seq DESC LIMIT 1) AS latest)"
)
_STRIP = (
    "UPDATE tombstone SET rest = iif(json_extract(rest, '$.channel') IS NULL, NULL, json_object("
    "'channel', json_extract(rest, '$.channel'), 'reportedAt', json_extract(rest, '$.reportedAt')))"
    " WHERE id = ? AND rest IS NOT NULL"
)


def add_tombstones(db: sqlite3.Connection, ids: Sequence[tuple[int]]) -> None:
    """Write tombstones for messages, from their events."""
    db.executemany(_ADD_TOMBSTONE, ids)


def strip_details(db: sqlite3.Connection, id_: int) -> None:
    """Remove from a tombstone all fields but those that the interface requires with `delivered`."""
    db.execute(_STRIP, (id_,))


def read_tombstone(db: sqlite3.Connection, message_id: int) -> Tombstone | None:
    """Read a message's tombstone; None if it has none."""
    row = db.execute(
        "SELECT dequeued_at, at, status, rest FROM tombstone WHERE id = ?", (message_id,)
    ).fetchone()
    if row is None:
        return None
    return tombstone_of(message_id, *row)


def tombstone_of(
    message_id: int, dequeued_at: int | None, at: int | None, status: str, rest: str | None
) -> Tombstone:
    """Build a tombstone from the columns of its row."""
    return Tombstone(
        None if dequeued_at is None else _body(message_id, dequeued_at, "dequeued", None),
        None if at is None else _body(message_id, at, status, rest),
    )


def _body(message_id: int, at: int, status: str, rest: str | None) -> str:
    """Return an event's JSON as `EventWriter` wrote it."""
    body = {"timestamp": format_instant(at), "messageId": message_id, "status": status}
    return to_json(body | (json.loads(rest) if rest is not None else {}))
