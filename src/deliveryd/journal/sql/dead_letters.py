"""Reads messages in doubt and dead letters, beside a worker or without one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from deliveryd.journal.attention import DeadLetter, InDoubtMessage
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.sql.db import Db
from deliveryd.model import INT64, message_key
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
SELECT 'message' AS kind, CAST(m.id AS TEXT) AS key, m.id AS message_id, e.refused_at AS at,
    'set aside' AS what, e.refused AS reason
FROM event e JOIN message m ON m.id = e.message_id AND m.state = {State.SET_ASIDE:d}
WHERE e.refused IS NOT NULL AND e.dropped_at IS NULL AND e.status = 'dequeued' AND e.seq = (
    SELECT seq FROM event WHERE message_id = m.id AND refused IS NOT NULL AND dropped_at IS NULL
        AND status = 'dequeued' ORDER BY refused_at DESC, seq DESC LIMIT 1)
""",  # noqa: S608  # a constant
    ItemKind.MALFORMED: """
SELECT 'malformed' AS kind, substr(digest, 1, 16) AS key, message_id, last_at AS at,
    'came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END AS what, reason
FROM malformed WHERE dropped_at IS NULL
""",
    ItemKind.RECEIPT: """
SELECT 'receipt' AS kind, CAST(seq AS TEXT) AS key, CAST(NULL AS BIGINT) AS message_id, received_at AS at,
    provider || ' ' || status AS what, 'no attempt fits it' AS reason
FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL
""",
    ItemKind.REPORT: """
SELECT 'report' AS kind, substr(digest, 1, 16) AS key, CAST(NULL AS BIGINT) AS message_id, last_at AS at,
    provider || ', came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END AS what, reason
FROM unread WHERE dropped_at IS NULL
""",
}

_CHANNEL = "substr(provider, 1, instr(provider || '/', '/') - 1)"
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_DEAD_LETTER: Mapping[ItemKind, str] = {
    ItemKind.EVENT: """
SELECT message_id, status, body, refused_at, refused AS reason FROM event
WHERE seq = ? AND refused IS NOT NULL AND dropped_at IS NULL
""",
    ItemKind.MESSAGE: f"""
SELECT m.id AS message_id, m.settings_id, m.customer_id, m.taken_at, e.body, e.refused_at, e.refused AS reason
FROM message m JOIN event e ON e.message_id = m.id
WHERE m.id = ? AND m.state = {State.SET_ASIDE:d} AND e.refused IS NOT NULL AND e.dropped_at IS NULL
ORDER BY e.seq DESC
""",  # noqa: S608  # a constant
    ItemKind.MALFORMED: """
SELECT message_id, raw, reason, first_at, last_at, times FROM malformed
WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL
""",
    ItemKind.REPORT: """
SELECT provider, raw, reason, first_at, last_at, times FROM unread
WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL
""",
    ItemKind.RECEIPT: f"""
SELECT {_CHANNEL} AS channel, provider, provider_id, reference, status, reported_at, received_at FROM receipt
WHERE seq = ? AND message_id IS NULL AND dropped_at IS NULL
""",  # noqa: S608  # a constant
}


def read_in_doubt(db: Db, channel: str | None, until: int | None) -> list[InDoubtMessage]:
    """Return the messages held in doubt since `until` or earlier, if given.

    `channel`: only those at its providers, or at one provider.
    """
    rows = db.execute(
        f"{_IN_DOUBT} AND (CAST(?1 AS TEXT) IS NULL OR instr(m.provider || '/', ?1 || '/') = 1)"
        " AND a.ended_at <= coalesce(?2, a.ended_at) ORDER BY m.id",
        (channel, until),
    )
    return [
        InDoubtMessage(id_, message_key(namespace, id_, provider, beginning), provider, *others)
        for id_, namespace, beginning, provider, *others in rows
    ]


def read_dead_letters(db: Db, kinds: Sequence[ItemKind], since: int, reason: str) -> list[DeadLetter]:
    """Return dead letters set aside since an instant, with this text in their reason, oldest first."""
    union = " UNION ALL ".join(f"SELECT * FROM ({_DEAD_LETTERS[kind]}) AS dead" for kind in kinds)  # noqa: S608  # constants
    rows = db.execute(
        f"SELECT * FROM ({union}) AS dead WHERE at >= ? AND instr(lower(reason), lower(?)) > 0 ORDER BY at",  # noqa: S608
        (since, reason),
    )
    return [DeadLetter(ItemKind(row[0]), *row[1:]) for row in rows]


def read_dead_letter(db: Db, kind: ItemKind, key: str) -> Mapping[str, object] | None:
    """Return everything about one dead letter, with its raw text; None: there is none."""
    is_number = kind not in (ItemKind.MALFORMED, ItemKind.REPORT)
    if is_number and (_NUMBER.fullmatch(key) is None or int(key) not in INT64):
        return None
    rows = db.execute(_DEAD_LETTER[kind], (int(key) if is_number else key,))
    row = rows.fetchone()
    return None if row is None else dict(zip((each[0] for each in rows.description), row, strict=True))
