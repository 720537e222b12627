"""Messages that were sent and never confirmed, and how far a provider's were counted."""

from __future__ import annotations

from collections.abc import Mapping

from deliveryd.journal.attention import OverdueMessage
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.schema import KNOW_PROVIDER
from deliveryd.states import State

_OVERDUE = f"FROM message WHERE ended_at >= ? AND ended_at < ? AND state = {State.SENT:d} AND provider = ?"
_SELECT = f"SELECT id, provider, provider_id, accepted_at {_OVERDUE} ORDER BY ended_at, id"  # a constant
_COUNT = f"SELECT count(*) {_OVERDUE}"  # a constant
_COUNTED = "SELECT overdue_until FROM provider WHERE name = ?"
_KEEP_COUNTED = "UPDATE provider SET overdue_until = ? WHERE name = ?"


def read_overdue(db: Db, until: Mapping[str, int]) -> list[OverdueMessage]:
    """Return the messages that were sent before these instants, by provider."""
    rows = (row for name, each in until.items() for row in db.execute(_SELECT, (0, each, name)))
    return sorted((OverdueMessage(*row) for row in rows), key=lambda each: each.sent_at)


def count_overdue(provider: str, since: int | None, until: int, db: Db) -> int:
    """Count a provider's messages that were sent between two instants and never confirmed.

    `since` None: from where an earlier run ended.
    """
    if since is None:
        row = db.execute(_COUNTED, (provider,)).fetchone()
        since = row[0] if row is not None else 0
    (count,) = db.execute(_COUNT, (since, until, provider)).fetchone()
    return int(count)


def keep_counted(db: Db, provider: str, until: int) -> None:
    """Note up to which instant a provider's messages were counted."""
    db.execute(KNOW_PROVIDER, (provider,))
    db.execute(_KEEP_COUNTED, (until, provider))
