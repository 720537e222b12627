"""Messages that were sent and never confirmed."""

from __future__ import annotations

from collections.abc import Mapping

from deliveryd.journal.attention import OverdueMessage
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.values import VISIBLE, plain
from deliveryd.states import State

_SELECT = f"""
SELECT m.id, m.provider, m.provider_id, m.accepted_at FROM message m
WHERE m.ended_at < %s AND m.state = {State.SENT:d} AND m.provider = %s AND {VISIBLE} ORDER BY m.ended_at, m.id
"""


def read_overdue(db: Db, until: Mapping[str, int]) -> list[OverdueMessage]:
    """Return the messages that were sent before these instants, by provider, oldest first."""
    rows = (row for name, each in until.items() for row in db.execute(_SELECT, (each, plain(name))))
    return sorted((OverdueMessage(*row) for row in rows), key=lambda each: each.sent_at)
