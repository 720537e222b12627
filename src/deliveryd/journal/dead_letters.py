"""Reads messages in doubt and dead letters of a file, beside a worker or without one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from deliveryd.journal.attention import DeadLetter, InDoubtMessage
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.read_transaction import read
from deliveryd.model import message_key
from deliveryd.states import State

_IN_DOUBT = f"""
SELECT m.id, (SELECT value FROM meta WHERE key = 'namespace'), m.beginning,
    m.provider, m.number, a.ended_at AS since, a.reason, (SELECT max(provider_id) FROM unaccepted
        WHERE message_id = m.id AND key = m.key AND verdict = 'in_doubt')
FROM message m JOIN unaccepted a ON a.message_id = m.id AND a.key = m.key AND a.number = (
    SELECT max(number) FROM unaccepted WHERE message_id = m.id AND key = m.key AND verdict = 'in_doubt')
WHERE m.ended_at IS NULL AND m.due_at IS NULL AND m.state = {State.IN_DOUBT:d}
"""  # noqa: S608  # a constant

_DEAD_LETTERS: Mapping[ItemKind, str] = {
    ItemKind.EVENT: f"""
SELECT 'event' AS kind, CAST(seq AS TEXT) AS key, message_id, refused_at AS at, status AS what,
    refused AS reason
FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL AND NOT (status = 'dequeued'
    AND EXISTS (SELECT 1 FROM message WHERE id = event.message_id AND state = {State.SET_ASIDE:d}))
""",  # noqa: S608  # a constant
    ItemKind.MESSAGE: f"""
SELECT 'message' AS kind, CAST(m.id AS TEXT) AS key, m.id AS message_id, max(e.refused_at) AS at,
    'set aside' AS what, e.refused AS reason
FROM event e JOIN message m ON m.id = e.message_id AND m.state = {State.SET_ASIDE:d}
WHERE e.refused IS NOT NULL AND e.dropped_at IS NULL AND e.status = 'dequeued' GROUP BY m.id
""",  # noqa: S608  # a constant
    ItemKind.MALFORMED: """
SELECT 'malformed' AS kind, substr(digest, 1, 16) AS key, message_id, last_at AS at,
    'came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END AS what, reason
FROM malformed WHERE dropped_at IS NULL
""",
    ItemKind.RECEIPT: """
SELECT 'receipt' AS kind, CAST(seq AS TEXT) AS key, NULL AS message_id, received_at AS at,
    provider || ' ' || status AS what, 'no attempt fits it' AS reason
FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL
""",
    ItemKind.REPORT: """
SELECT 'report' AS kind, substr(digest, 1, 16) AS key, NULL AS message_id, last_at AS at,
    provider || ', came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END AS what, reason
FROM unread WHERE dropped_at IS NULL
""",
}

_DEAD_LETTER: Mapping[ItemKind, str] = {
    ItemKind.EVENT: "SELECT message_id, status, body, refused_at, refused AS reason FROM event"
    " WHERE seq = ? AND refused IS NOT NULL AND dropped_at IS NULL",
    ItemKind.MESSAGE: "SELECT m.id AS message_id, m.settings_id, m.customer_id,"  # noqa: S608  # a constant
    " m.taken_at, e.body,"
    " e.refused_at, e.refused AS reason FROM message m JOIN event e ON e.message_id = m.id"
    f" WHERE m.id = ? AND m.state = {State.SET_ASIDE:d} AND e.refused IS NOT NULL AND e.dropped_at IS NULL"
    " ORDER BY e.seq DESC",
    ItemKind.MALFORMED: "SELECT message_id, raw, reason, first_at, last_at, times FROM malformed"
    " WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
    ItemKind.REPORT: "SELECT provider, raw, reason, first_at, last_at, times FROM unread"
    " WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
    ItemKind.RECEIPT: "SELECT substr(provider, 1, instr(provider || '/', '/') - 1) AS channel, provider,"
    " provider_id, reference, status, reported_at, received_at FROM receipt"
    " WHERE seq = ? AND message_id IS NULL AND dropped_at IS NULL",
}


def read_in_doubt(path: Path, channel: str | None, until: int | None) -> list[InDoubtMessage]:
    """Read the messages held in doubt since `until` or earlier, if given.

    `channel`: only those at its providers, or at one provider.

    Raises JournalError.
    """

    def query(db: sqlite3.Connection) -> list[InDoubtMessage]:
        rows = db.execute(
            f"{_IN_DOUBT} AND (?1 IS NULL OR instr(m.provider || '/', ?1 || '/') = 1)"
            " AND since <= coalesce(?2, since) ORDER BY m.id",
            (channel, until),
        )
        return [
            InDoubtMessage(id_, message_key(namespace, id_, provider, beginning), provider, *others)
            for id_, namespace, beginning, provider, *others in rows
        ]

    return read(path, query)


def read_dead_letters(path: Path, kinds: Sequence[ItemKind], since: int, reason: str) -> list[DeadLetter]:
    """Read dead letters set aside since an instant, with this text in their reason, oldest first.

    Raises JournalError.
    """
    union = " UNION ALL ".join(f"SELECT * FROM ({_DEAD_LETTERS[kind]})" for kind in kinds)  # noqa: S608  # constants

    def query(db: sqlite3.Connection) -> list[DeadLetter]:
        rows = db.execute(
            f"SELECT * FROM ({union}) WHERE at >= ? AND instr(lower(reason), lower(?)) ORDER BY at",  # noqa: S608
            (since, reason),
        )
        return [DeadLetter(ItemKind(row[0]), *row[1:]) for row in rows]

    return read(path, query)


def read_dead_letter(path: Path, kind: ItemKind, key: str) -> Mapping[str, object] | None:
    """Read everything about one dead letter, including a malformed element's raw text; None if there is none.

    Raises JournalError.
    """

    def query(db: sqlite3.Connection) -> Mapping[str, object] | None:
        db.row_factory = sqlite3.Row
        row = db.execute(_DEAD_LETTER[kind], (key,)).fetchone()
        return None if row is None else dict(row)

    return read(path, query)
