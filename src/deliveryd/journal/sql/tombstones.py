"""Tombstones: the id of a pruned message, and in few bytes the events to report again for a repeat."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from deliveryd.journal.rows import IDS, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.model import format_instant, parse_instant


class Tombstone(NamedTuple):
    """The JSON of a pruned message's `dequeued` and of its latest event, as they were reported."""

    dequeued: str | None
    latest: str | None


_EVENTS = """
SELECT (SELECT body FROM event WHERE message_id = ?1 AND status = 'dequeued' LIMIT 1),
    (SELECT body FROM event WHERE message_id = ?1 AND refused IS NULL ORDER BY seq DESC LIMIT 1)
"""
_ADD = "INSERT INTO tombstone (id, dequeued_at, at, status, rest) VALUES (?, ?, ?, ?, ?)"
_READ = f"SELECT id, dequeued_at, at, status, rest FROM tombstone WHERE id IN {IDS}"  # noqa: S608  # a constant
_KEPT_ALWAYS = frozenset({"channel", "reportedAt", "messageId"})


def add_tombstones(db: Db, ids: Sequence[tuple[int]]) -> None:
    """Write tombstones for messages, from their events."""
    db.executemany(_ADD, [(id_, *_columns(id_, *db.execute(_EVENTS, (id_,)).fetchone())) for (id_,) in ids])


def _columns(
    id_: int, dequeued: str | None, latest: str | None
) -> tuple[int | None, int | None, str | None, str | None]:
    """The columns of a tombstone behind its id."""
    at, status, rest = None, None, None
    if latest is not None:
        fields = json.loads(latest)
        at, status = parse_instant(fields.pop("timestamp")), fields.pop("status")
        if fields["messageId"] == id_:
            del fields["messageId"]
        rest = to_json(fields) if fields else None
    return None if dequeued is None else parse_instant(json.loads(dequeued)["timestamp"]), at, status, rest


def strip_details(db: Db, id_: int) -> None:
    """Remove from a tombstone all fields but those that the interface requires."""
    (rest,) = db.execute("SELECT rest FROM tombstone WHERE id = ?", (id_,)).fetchone() or (None,)
    db.execute("UPDATE tombstone SET rest = ? WHERE id = ?", (without_details(rest), id_))


def without_details(rest: str | None) -> str | None:
    """The column `rest` without all fields but those that the interface requires."""
    fields = {} if rest is None else json.loads(rest)
    kept = {name: value for name, value in fields.items() if name in _KEPT_ALWAYS}
    return to_json(kept) if kept else None


def read_tombstones(db: Db, ids: Collection[int]) -> Mapping[int, Tombstone]:
    """Read the tombstones of those of these messages that have one."""
    rows = db.execute(_READ, (to_json(list(ids)),))
    return {id_: tombstone_of(id_, *columns) for id_, *columns in rows}


def tombstone_of(
    message_id: int, dequeued_at: int | None, at: int | None, status: str, rest: str | None
) -> Tombstone:
    """Build a tombstone from the columns of its row."""
    fields = {} if rest is None else json.loads(rest)
    told_as = fields.pop("messageId", message_id)  # `number_of` an id beyond 64 bits isn't that id
    return Tombstone(
        None if dequeued_at is None else _body(told_as, dequeued_at, "dequeued", {}),
        None if at is None else _body(told_as, at, status, fields),
    )


def _body(message_id: int, at: int, status: str, fields: Mapping[str, Any]) -> str:
    """Return an event's JSON as `EventWriter` wrote it."""
    return to_json({"timestamp": format_instant(at), "messageId": message_id, "status": status, **fields})
