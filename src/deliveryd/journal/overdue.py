"""Messages that were sent and never confirmed. This module only reads, beside a worker or without one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from deliveryd.journal.attention import OverdueMessage
from deliveryd.journal.read_transaction import read
from deliveryd.states import State

_OVERDUE = f"FROM message WHERE ended_at >= ? AND ended_at < ? AND state = {State.SENT:d} AND provider = ?"
_SELECT = f"SELECT id, provider, provider_id, accepted_at {_OVERDUE} ORDER BY ended_at, id"  # a constant
_COUNT = f"SELECT count(*) {_OVERDUE}"  # a constant
_COUNTED = "SELECT overdue_until FROM provider WHERE name = ?"
_KEEP_COUNTED = """
INSERT INTO provider (name, overdue_until) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET overdue_until = ?2
"""


def read_overdue(path: Path, until: Mapping[str, int]) -> list[OverdueMessage]:
    """Read the messages that were sent before these instants, by provider. Raises JournalError."""
    return read(path, partial(_select, until))


def _select(until: Mapping[str, int], db: sqlite3.Connection) -> list[OverdueMessage]:
    rows = (row for name, each in until.items() for row in db.execute(_SELECT, (0, each, name)))
    return sorted((OverdueMessage(*row) for row in rows), key=lambda each: each.sent_at)


def count_overdue(provider: str, since: int | None, until: int, db: sqlite3.Connection) -> int:
    """Count a provider's messages that were sent between two instants and never confirmed.

    `since` None: from where an earlier run ended.
    """
    if since is None:
        row = db.execute(_COUNTED, (provider,)).fetchone()
        since = row[0] if row is not None else 0
    (count,) = db.execute(_COUNT, (since, until, provider)).fetchone()
    return int(count)


def keep_counted(db: sqlite3.Connection, provider: str, until: int) -> None:
    """Note up to which instant a provider's messages were counted."""
    db.execute(_KEEP_COUNTED, (provider, until))
