"""Reports that can't be read, kept for an operator: the latest, once each however often they come."""

from __future__ import annotations

from collections.abc import Sequence

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.values import plain
from deliveryd.journal.unread_reports import MOST_UNREAD, row_of_report
from deliveryd.model import UnreadReport

_KEEP = """
INSERT INTO unread AS kept (digest, provider, raw, reason, first_at, last_at, times)
VALUES (%(digest)s, %(provider)s, %(raw)s, %(reason)s, %(at)s, %(at)s, 1)
ON CONFLICT (digest) DO UPDATE
SET times = kept.times + 1, last_at = excluded.last_at, reason = excluded.reason, dropped_at = NULL
"""
_MAKE_ROOM = """
DELETE FROM unread WHERE digest IN (
    SELECT digest FROM unread ORDER BY last_at DESC OFFSET %s)
"""


def keep_unread(db: Db, reports: Sequence[UnreadReport]) -> None:
    """Keep reports that can't be read, and no more than `MOST_UNREAD` of all."""
    for report in reports:
        digest, provider, raw, reason, at = row_of_report(*report)
        values = {
            "digest": digest,
            "provider": provider,
            "raw": plain(raw),
            "reason": plain(reason),
            "at": at,
        }
        db.execute(_KEEP, values)
    if reports:
        db.execute(_MAKE_ROOM, (MOST_UNREAD,))
