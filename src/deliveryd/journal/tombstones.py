"""What is kept of forgotten messages, for ever: the id, and in few bytes what a repeat must report again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from deliveryd.journal.rows import to_json
from deliveryd.model import format_instant


class Kept(NamedTuple):
    """The JSON of a forgotten message's `dequeued` and of its latest event, as the service was told."""

    dequeued: str | None
    latest: str | None


def _instant(body: str) -> str:
    """SQL for the timestamp of an event's JSON, in microseconds: it stands first (see `EventWriter`)."""
    return (
        f"CAST(strftime('%s', substr({body}, 15, 19)) AS INTEGER) * 1000000"
        f" + CAST(substr({body}, 35, 6) AS INTEGER)"
    )


COMPACT = (
    f"id, {_instant('dequeued')}, {_instant('latest')}, json_extract(latest, '$.status'),"
    " nullif(json_remove(latest, '$.timestamp', '$.messageId', '$.status'), '{}')"
)
"""SQL that turns `id, dequeued, latest`, both as JSON, into the columns of `tombstone`."""

_KEEP = (
    f"INSERT INTO tombstone SELECT {COMPACT} FROM (SELECT ?1 AS id,"  # noqa: S608  # constants
    " (SELECT body FROM event WHERE message_id = ?1 AND status = 'dequeued' LIMIT 1) AS dequeued,"
    " (SELECT body FROM event WHERE message_id = ?1 AND refused IS NULL ORDER BY seq DESC LIMIT 1) AS latest)"
)
_BARE = (
    "UPDATE tombstone SET rest = iif(json_extract(rest, '$.channel') IS NULL, NULL, json_object("
    "'channel', json_extract(rest, '$.channel'), 'reportedAt', json_extract(rest, '$.reportedAt')))"
    " WHERE id = ? AND rest IS NOT NULL"
)


def keep(db: sqlite3.Connection, ids: Sequence[tuple[int]]) -> None:
    """Keep what a repeat of these messages needs, from their events."""
    db.executemany(_KEEP, ids)


def keep_no_details(db: sqlite3.Connection, id_: int) -> None:
    """Keep of a message's latest event only what has to be reported with `delivered`."""
    db.execute(_BARE, (id_,))


def kept(db: sqlite3.Connection, message_id: int) -> Kept | None:
    """What is kept of a message; None when it isn't among the forgotten ones."""
    row = db.execute(
        "SELECT dequeued_at, at, status, rest FROM tombstone WHERE id = ?", (message_id,)
    ).fetchone()
    if row is None:
        return None
    dequeued_at, at, status, rest = row
    return Kept(
        None if dequeued_at is None else _body(message_id, dequeued_at, "dequeued", None),
        None if at is None else _body(message_id, at, status, rest),
    )


def _body(message_id: int, at: int, status: str, rest: str | None) -> str:
    """An event as it was written once (see `EventWriter`)."""
    body = {"timestamp": format_instant(at), "messageId": message_id, "status": status}
    return to_json(body | (json.loads(rest) if rest is not None else {}))
