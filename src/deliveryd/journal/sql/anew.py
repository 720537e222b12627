"""Has failed messages begin anew: what that writes beside the step."""

from __future__ import annotations

from deliveryd import transitions
from deliveryd.journal.sql.beginnings import LATEST
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.rows import ENTRY, entry_of
from deliveryd.model import Transition

_LEAVE_ACCEPTED = """
INSERT INTO unaccepted SELECT id, key, number, provider, beginning, started_at, accepted_at, 'accepted',
    provider_id, reason, NULL FROM message WHERE id = ? AND accepted_at IS NOT NULL
ON CONFLICT (message_id, key, number) DO UPDATE SET verdict = 'accepted', ended_at = excluded.ended_at,
    provider_id = excluded.provider_id,
    reason = coalesce(unaccepted.reason || '; ' || excluded.reason, unaccepted.reason, excluded.reason)
"""
_LEAVE = """
UPDATE message SET sent_by = NULL, started_at = NULL, accepted_at = NULL, provider_id = NULL, reason = NULL,
    confirm_by = NULL, confirm_within = NULL, failed_next = NULL
WHERE id = ?
"""


def begin_anew(db: Db, id_: int, at: int) -> Transition:
    """Write what the step of a failed message leaves behind, and return the step.

    A try that was accepted, and failed by a receipt, is kept: a later receipt may still prove it.
    """
    (count, *row) = db.execute(f"SELECT {LATEST}, {ENTRY} FROM message WHERE id = ?", (id_,)).fetchone()  # noqa: S608
    db.execute(_LEAVE_ACCEPTED, (id_,))
    db.execute(_LEAVE, (id_,))
    return transitions.ordered_anew(entry_of(tuple(row))._replace(beginning=count), at)
