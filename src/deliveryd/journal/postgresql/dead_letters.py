"""Reads messages in doubt and dead letters of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg.rows import dict_row

from deliveryd.journal.attention import DeadLetter, InDoubtMessage
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.outbox import MOVES
from deliveryd.journal.postgresql.steps import IN_DOUBT
from deliveryd.journal.postgresql.upkeep import meta
from deliveryd.journal.postgresql.values import LOCATED, plain
from deliveryd.model import message_key
from deliveryd.states import State

_IN_DOUBT = f"""
SELECT m.id, m.beginning, m.provider, m.number, a.ended_at, a.reason,
    (SELECT max(u.provider_id) FROM unaccepted u WHERE u.message_id = m.id AND u.day = m.day
        AND u.key = m.key AND u.verdict = 'in_doubt')
FROM message m CROSS JOIN LATERAL (
    SELECT u.ended_at, u.reason FROM unaccepted u WHERE u.message_id = m.id AND u.day = m.day
        AND u.key = m.key AND u.verdict = 'in_doubt' ORDER BY u.number DESC LIMIT 1) AS a
WHERE m.owner = {IN_DOUBT}
    AND (%(channel)s::text IS NULL OR starts_with(m.provider || '/', %(channel)s || '/'))
    AND (%(until)s::int8 IS NULL OR a.ended_at <= %(until)s)
ORDER BY m.id
"""
_IS_SET_ASIDE = f"""EXISTS (SELECT 1 FROM seen JOIN message m ON m.day = seen.day AND m.id = seen.id
    WHERE seen.id = e.message_id AND m.state = {State.SET_ASIDE:d})"""
_TIMES = "'came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END"
_DEAD_LETTERS: Mapping[ItemKind, str] = {
    ItemKind.EVENT: f"""
SELECT 'event' AS kind, e.seq::text AS key, e.message_id, e.refused_at AS at, e.status AS what,
    e.refused AS reason
FROM event e WHERE e.refused_at IS NOT NULL AND e.dropped_at IS NULL
    AND NOT (e.status = 'dequeued' AND {_IS_SET_ASIDE}) AND NOT {MOVES}
""",
    ItemKind.MESSAGE: f"""
SELECT 'message', m.id::text, m.id, e.refused_at, 'set aside', e.refused FROM (
    SELECT DISTINCT ON (e.message_id) e.message_id, e.refused_at, e.refused FROM event e
    WHERE e.refused_at IS NOT NULL AND e.dropped_at IS NULL AND e.status = 'dequeued'
    ORDER BY e.message_id, e.refused_at DESC) AS e
{LOCATED.format(id="e.message_id")} WHERE m.state = {State.SET_ASIDE:d}
""",
    ItemKind.MALFORMED: f"""
SELECT 'malformed', left(digest, 16), message_id, last_at, {_TIMES}, reason
FROM malformed WHERE dropped_at IS NULL
""",
    ItemKind.RECEIPT: """
SELECT 'receipt', seq::text, NULL::int8, received_at, provider || ' ' || status, 'no attempt fits it'
FROM unmatched WHERE dropped_at IS NULL
""",
    ItemKind.REPORT: f"""
SELECT 'report', left(digest, 16), NULL::int8, last_at, provider || ', ' || {_TIMES}, reason
FROM unread WHERE dropped_at IS NULL
""",
}
_NUMBERED = frozenset({ItemKind.EVENT, ItemKind.MESSAGE, ItemKind.RECEIPT})
_DEAD_LETTER: Mapping[ItemKind, str] = {
    ItemKind.EVENT: """
SELECT message_id, status, body, refused_at, refused AS reason FROM event
WHERE seq = %(key)s AND refused_at IS NOT NULL AND dropped_at IS NULL
""",
    ItemKind.MESSAGE: f"""
SELECT m.id AS message_id, m.settings_id, m.customer_id, m.taken_at, e.body, e.refused_at, e.refused AS reason
FROM unnest(ARRAY[%(key)s::int8]) AS wanted (id) {LOCATED.format(id="wanted.id")}
JOIN event e ON e.message_id = m.id AND e.day = m.day
WHERE m.state = {State.SET_ASIDE:d} AND e.refused_at IS NOT NULL AND e.dropped_at IS NULL
ORDER BY e.seq DESC LIMIT 1
""",
    ItemKind.MALFORMED: """
SELECT message_id, raw, reason, first_at, last_at, times FROM malformed
WHERE digest >= %(key)s AND digest < %(key)s || 'g' AND dropped_at IS NULL ORDER BY digest LIMIT 1
""",
    ItemKind.REPORT: """
SELECT provider, raw, reason, first_at, last_at, times FROM unread
WHERE digest >= %(key)s AND digest < %(key)s || 'g' AND dropped_at IS NULL ORDER BY digest LIMIT 1
""",
    ItemKind.RECEIPT: """
SELECT split_part(provider, '/', 1) AS channel, provider, provider_id, reference, status, reported_at,
    received_at
FROM unmatched WHERE seq = %(key)s AND dropped_at IS NULL
""",
}


def read_in_doubt(db: Db, channel: str | None, until: int | None) -> list[InDoubtMessage]:
    """Return the messages held in doubt since `until` or earlier, if given."""
    namespace = meta(db, "namespace") or ""
    rows = db.execute(_IN_DOUBT, {"channel": plain(channel), "until": until})
    return [
        InDoubtMessage(id_, message_key(namespace, id_, provider, beginning), provider, *others)
        for id_, beginning, provider, *others in rows
    ]


def read_dead_letters(db: Db, kinds: Sequence[ItemKind], since: int, reason: str) -> list[DeadLetter]:
    """Return dead letters set aside since an instant, with this text in their reason, oldest first."""
    union = " UNION ALL ".join(
        f"SELECT * FROM ({_DEAD_LETTERS[kind]}) AS {kind} (kind, key, message_id, at, what, reason)"
        for kind in kinds
    )
    rows = db.execute(
        f"SELECT * FROM ({union}) AS dead"
        " WHERE at >= %s AND strpos(lower(reason), lower(%s)) > 0 ORDER BY at",
        (since, plain(reason)),
    )
    return [DeadLetter(ItemKind(row[0]), *row[1:]) for row in rows]


def read_dead_letter(db: Db, kind: ItemKind, key: str) -> Mapping[str, object] | None:
    """Return everything about one dead letter; None: there is none of this name."""
    values: dict[str, object] = {"key": plain(key)}
    if kind in _NUMBERED:
        try:
            values["key"] = int(key)
        except ValueError:
            return None
    with db.cursor(row_factory=dict_row) as rows:
        return rows.execute(_DEAD_LETTER[kind], values).fetchone()
