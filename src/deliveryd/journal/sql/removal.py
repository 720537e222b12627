"""Providers that are removed while the worker runs: what they would leave behind, and what is held there."""

from __future__ import annotations

from collections.abc import Collection

from deliveryd.journal.base import Doubtful, Orphans
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.leaving import WAITING_KEYS, keys_of
from deliveryd.journal.sql.pauses import IS_PAUSED
from deliveryd.journal.sql.rows import ENTRY, entry_of, to_json
from deliveryd.journal.sql.upkeep import latest_doubt
from deliveryd.states import State

_HELD = f"""
SELECT {ENTRY} FROM message WHERE ended_at IS NULL AND due_at IS NULL AND state = {State.IN_DOUBT:d}
    AND provider IN (SELECT value FROM json_each(?)) AND id > ? ORDER BY id LIMIT ?
"""  # noqa: S608  # constants
_IN_DOUBT = f"""
SELECT count(*) FROM message
WHERE ended_at IS NULL AND due_at IS NULL AND (state = {State.IN_DOUBT:d} OR doubt = 1) AND provider = ?
"""  # noqa: S608  # a constant
_WAITING = f"""
SELECT doubt, count(*) FROM (
    SELECT doubt FROM message WHERE waits_for IN (SELECT value FROM json_each(?1)) AND due_at IS NOT NULL
    UNION ALL SELECT doubt FROM message WHERE waits_at = ?2
    UNION ALL SELECT doubt FROM message INDEXED BY message_held WHERE {IS_PAUSED} AND provider = ?2
) GROUP BY doubt
"""  # noqa: S608  # constants
_UNCONFIRMED = f"""
SELECT count(*) FROM message WHERE ended_at >= ? AND state = {State.SENT:d} AND provider = ?
"""  # noqa: S608  # a constant
_DEADLINES = "SELECT count(*) FROM message WHERE confirms_at = ?"


def held(db: Db, providers: Collection[str], after: int, limit: int) -> list[Doubtful]:
    """Return messages held in doubt at these providers, with the reasons."""
    entries = map(entry_of, db.execute(_HELD, (to_json(list(providers)), after, limit)))
    return [Doubtful(entry, State.IN_DOUBT, latest_doubt(db, entry)) for entry in entries]


def count_orphans(provider: str, sent_since: int, db: Db) -> Orphans:
    """Count what the removal of a provider would leave."""
    waiting = dict(db.execute(_WAITING, (to_json(keys_of([provider], WAITING_KEYS)), provider)))
    (in_doubt,) = db.execute(_IN_DOUBT, (provider,)).fetchone()
    (unconfirmed,) = db.execute(_UNCONFIRMED, (sent_since, provider)).fetchone()
    (deadlines,) = db.execute(_DEADLINES, (provider,)).fetchone()
    return Orphans(in_doubt + waiting.get(1, 0), waiting.get(0, 0), unconfirmed, deadlines)
