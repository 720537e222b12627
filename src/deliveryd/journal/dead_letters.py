"""What lies aside and waits for a decision: messages in doubt, and what was refused or fits nothing.

Only reads, beside a worker or without one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deliveryd.journal.history import read
from deliveryd.journal.orders import ItemKind
from deliveryd.model import message_key


class DoubtfulMessage(NamedTuple):
    """A message that is held since nobody knows what became of a try; `since`: when that was found.

    `tries` is how many were made under its key.
    """

    message_id: int
    key: str
    channel: str
    tries: int
    since: int
    reason: str | None


class Dead(NamedTuple):
    """Something that goes no further by itself; `at` is when it was set aside, or last seen."""

    kind: ItemKind
    key: str
    message_id: int | None
    at: int
    what: str
    reason: str


_IN_DOUBT = """
SELECT m.id, (SELECT value FROM meta WHERE key = 'namespace'), m.key,
    m.channel, m.number, a.ended_at AS since, a.reason
FROM message m JOIN unaccepted a ON a.message_id = m.id AND a.key = m.key AND a.number = (
    SELECT max(number) FROM unaccepted WHERE message_id = m.id AND key = m.key AND verdict = 'in_doubt')
WHERE m.ended_at IS NULL AND m.due_at IS NULL AND m.state = 5
"""

_DEAD: Mapping[ItemKind, str] = {
    ItemKind.EVENT: """
SELECT 'event' AS kind, CAST(seq AS TEXT) AS key, message_id, refused_at AS at, status AS what,
    refused AS reason
FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL AND NOT
    (status = 'dequeued' AND EXISTS (SELECT 1 FROM message WHERE id = event.message_id AND state = 9))
""",
    ItemKind.MESSAGE: """
SELECT 'message' AS kind, CAST(m.id AS TEXT) AS key, m.id AS message_id, max(e.refused_at) AS at,
    'set aside' AS what, e.refused AS reason
FROM event e JOIN message m ON m.id = e.message_id AND m.state = 9
WHERE e.refused IS NOT NULL AND e.dropped_at IS NULL AND e.status = 'dequeued' GROUP BY m.id
""",
    ItemKind.MALFORMED: """
SELECT 'malformed' AS kind, substr(digest, 1, 16) AS key, message_id, last_at AS at,
    'came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END AS what, reason
FROM malformed WHERE dropped_at IS NULL
""",
    ItemKind.RECEIPT: """
SELECT 'receipt' AS kind, CAST(seq AS TEXT) AS key, NULL AS message_id, received_at AS at,
    channel || ' ' || status AS what, 'no attempt fits it' AS reason
FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL
""",
}

_SHOWN: Mapping[ItemKind, str] = {
    ItemKind.EVENT: "SELECT message_id, status, body, refused_at, refused AS reason FROM event"
    " WHERE seq = ? AND refused IS NOT NULL AND dropped_at IS NULL",
    ItemKind.MESSAGE: "SELECT m.id AS message_id, m.settings_id, m.customer_id, m.taken_at, e.body,"
    " e.refused_at, e.refused AS reason FROM message m JOIN event e ON e.message_id = m.id"
    " WHERE m.id = ? AND m.state = 9 AND e.refused IS NOT NULL AND e.dropped_at IS NULL ORDER BY e.seq DESC",
    ItemKind.MALFORMED: "SELECT message_id, raw, reason, first_at, last_at, times FROM malformed"
    " WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
    ItemKind.RECEIPT: "SELECT channel, provider_id, reference, status, reported_at, received_at FROM receipt"
    " WHERE seq = ? AND message_id IS NULL AND dropped_at IS NULL",
}


def doubtful_messages(path: Path, channel: str | None, until: int | None) -> list[DoubtfulMessage]:
    """Messages held in doubt, of one channel, or since some instant or earlier. Raises JournalError."""

    def query(db: sqlite3.Connection) -> list[DoubtfulMessage]:
        rows = db.execute(
            f"{_IN_DOUBT} AND m.channel = coalesce(?, m.channel) AND since <= coalesce(?, since)"
            " ORDER BY m.id",
            (channel, until),
        )
        return [
            DoubtfulMessage(id_, message_key(namespace, id_, key), *others)
            for id_, namespace, key, *others in rows
        ]

    return read(path, query)


def dead_letters(path: Path, kinds: Sequence[ItemKind], since: int, reason: str) -> list[Dead]:
    """What was set aside since an instant, with this text in its reason, the oldest first.

    Raises JournalError.
    """
    union = " UNION ALL ".join(f"SELECT * FROM ({_DEAD[kind]})" for kind in kinds)  # noqa: S608  # constants

    def query(db: sqlite3.Connection) -> list[Dead]:
        rows = db.execute(
            f"SELECT * FROM ({union}) WHERE at >= ? AND instr(lower(reason), lower(?)) ORDER BY at",  # noqa: S608
            (since, reason),
        )
        return [Dead(ItemKind(row[0]), *row[1:]) for row in rows]

    return read(path, query)


def shown(path: Path, kind: ItemKind, key: str) -> Mapping[str, object] | None:
    """All about one thing that lies aside, the raw text of malformed elements too. Raises JournalError."""

    def query(db: sqlite3.Connection) -> Mapping[str, object] | None:
        db.row_factory = sqlite3.Row
        row = db.execute(_SHOWN[kind], (key,)).fetchone()
        return None if row is None else dict(row)

    return read(path, query)
