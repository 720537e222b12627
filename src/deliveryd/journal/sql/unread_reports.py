"""Reports that can't be read, kept for an operator: the latest, once each however often they come."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from deliveryd.journal.rows import to_text
from deliveryd.journal.sql.db import Db
from deliveryd.model import UnreadReport

MOST_UNREAD = 1000
"""How many are kept; the one that came last the longest ago makes room."""

_KEEP = """
INSERT INTO unread (digest, provider, raw, reason, first_at, last_at) VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT (digest) DO UPDATE SET times = unread.times + 1, last_at = ?5, reason = ?4, dropped_at = NULL
"""
_MAKE_ROOM = """
DELETE FROM unread WHERE digest IN (
    SELECT digest FROM unread ORDER BY last_at LIMIT max(0, (SELECT count(*) FROM unread) - ?)
)
"""


def keep_unread(db: Db, reports: Sequence[UnreadReport]) -> None:
    """Keep reports that can't be read, and no more than `MOST_UNREAD` of all."""
    if not reports:
        return
    db.executemany(_KEEP, [row_of_report(*report) for report in reports])
    db.execute(_MAKE_ROOM, (MOST_UNREAD,))


def row_of_report(
    provider: str, raw: str, reason: str, at: int
) -> tuple[str, str, str | None, str | None, int]:
    """The columns of a report that is kept."""
    text = f"{provider} {raw}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest(), provider, to_text(raw), to_text(reason), at


def erase_unread(db: Db, digest: str) -> str | None:
    """Erase a report by the start of its digest; return why not if it can't be erased."""
    erased = db.execute("DELETE FROM unread WHERE digest >= ?1 AND digest < ?1 || 'g'", (digest,)).rowcount
    return None if erased else "it isn't there any more"
