"""The record of one message, read from PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from deliveryd.journal.history import (
    AttemptRecord,
    DecisionRecord,
    EventRecord,
    Life,
    MalformedRecord,
    ReceiptRecord,
    message_record,
)
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.outbox import ACCEPTED_AT, AT, HAPPENED, MOVES, PRESENT, WAITS
from deliveryd.journal.postgresql.pauses import pauses
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.tombstones import read_tombstones
from deliveryd.journal.postgresql.upkeep import meta
from deliveryd.journal.postgresql.values import LOCATED, VISIBLE
from deliveryd.model import message_key
from deliveryd.states import State

_OF_ONE = f"FROM unnest(ARRAY[%s::int8]) AS wanted (id) {LOCATED.format(id='wanted.id')}"
_LAST = 2**63 - 1
_MESSAGE = f"""
SELECT m.settings_id, m.customer_id, m.variables, m.state, m.taken_at, w.due_at, m.provider, m.tries, NULL,
    m.spent, m.doubt, m.ended_at, w.waits_for, ((a.confirm_by - coalesce(
        (SELECT value::int8 FROM meta WHERE key = 'listened'), 0)
        + coalesce((SELECT p.unheard FROM provider p WHERE p.name = a.provider), 0)) / 1e6)::float8,
    (SELECT h.id FROM worker o JOIN worker h ON h.id = o.holder WHERE o.id = m.owner)
{_OF_ONE} LEFT JOIN waiting w ON w.id = m.id LEFT JOIN awaited a ON a.id = m.id WHERE {VISIBLE}
"""
_ATTEMPTS = f"""
SELECT beginning, key, number, provider, started_at, ended_at, verdict, provider_id, reason, words FROM (
    SELECT u.beginning, u.key, u.number, u.provider, u.started_at, u.ended_at, u.verdict, u.provider_id,
        u.reason, u.words
    {_OF_ONE} JOIN unaccepted u ON u.message_id = m.id AND u.day = m.day WHERE {VISIBLE}
    UNION ALL SELECT m.beginning, m.key, m.number, m.provider, m.started_at, m.accepted_at,
        CASE WHEN m.accepted_at IS NOT NULL THEN 'accepted' END, m.provider_id, m.reason, NULL
    {_OF_ONE} WHERE {VISIBLE} AND (m.state = {State.SENDING:d} OR m.accepted_at IS NOT NULL)) AS attempt
ORDER BY key, number, ended_at IS NULL, ended_at
"""
_EVENTS = f"""
SELECT seq, status, body, settled_at, refused, log FROM (
    SELECT e.seq, e.status, e.body, {HAPPENED} AS happened, CASE WHEN {WAITS} OR {MOVES} THEN NULL
            ELSE coalesce(e.refused_at, {ACCEPTED_AT}) END AS settled_at,
        CASE WHEN NOT {MOVES} THEN e.refused END AS refused, e.seq >> {LOG_BITS} AS log
    FROM event e WHERE e.message_id = %s AND {PRESENT}
    UNION ALL SELECT i.seq, i.status, i.body, {_LAST}, NULL, NULL, NULL::int8
    FROM inbox i WHERE i.message_id = %s AND i.body IS NOT NULL) AS e
ORDER BY {AT}, happened, seq
"""
_NAMES = """
SELECT id, name FROM worker WHERE id = ANY(%(ids)s::int8[])
UNION ALL SELECT id, name FROM former WHERE id = ANY(%(ids)s::int8[])
"""
_RECEIPTS = f"""
SELECT r.provider, r.provider_id, r.delivered, r.status, r.reported_at, r.received_at
{_OF_ONE} JOIN receipt r ON r.message_id = m.id AND r.day = m.day WHERE {VISIBLE}
ORDER BY r.received_at, r.seq
"""
_MALFORMED = """
SELECT raw, reason, first_at, last_at, times FROM malformed WHERE message_id = %s ORDER BY first_at
"""
_DECISIONS = """
SELECT at, verb, kind, key, "user", caller, reason FROM decision
WHERE message_id = %s OR (message_id IS NULL AND kind = 'message' AND key = %s::text) ORDER BY seq
"""


def life_of(db: Db, message_id: int) -> Life:
    """Return everything about a message; for a read transaction."""

    def rows(query: str) -> list[Any]:
        return db.execute(query, (message_id,) * query.count("%s")).fetchall()

    namespace = meta(db, "namespace") or ""
    attempts = [
        AttemptRecord(message_key(namespace, message_id, each[2], beginning), *each)
        for beginning, *each in rows(_ATTEMPTS)
    ]
    messages, events = rows(_MESSAGE), rows(_EVENTS)
    workers = _workers(db, {row[-1] for row in [*messages, *events]})
    pause = next((each for each in pauses(db) if messages and each.waits_for == messages[0][12]), None)
    key = attempts[-1].key if attempts else None
    return Life(
        id=message_id,
        message=message_record(_named(messages[0], workers), key, pause) if messages else None,
        attempts=tuple(attempts),
        events=tuple(EventRecord(*_named(row, workers)) for row in events),
        receipts=tuple(ReceiptRecord(*row) for row in rows(_RECEIPTS)),
        malformed=tuple(MalformedRecord(*row) for row in rows(_MALFORMED)),
        decisions=tuple(DecisionRecord(*row) for row in rows(_DECISIONS)),
        tombstone=read_tombstones(db, [message_id]).get(message_id),
    )


def _workers(db: Db, ids: Collection[int | None]) -> Mapping[int, str]:
    """The names of workers, with their numbers: two may have one name."""
    wanted = [id_ for id_ in ids if id_ is not None]
    return {id_: f"{name} ({id_})" for id_, name in db.execute(_NAMES, {"ids": wanted})}


def _named(row: Sequence[Any], workers: Mapping[int, str]) -> Sequence[Any]:
    """The row with the name of the worker whose number stands in its last column."""
    *columns, worker = row
    return [*columns, workers.get(worker)]
