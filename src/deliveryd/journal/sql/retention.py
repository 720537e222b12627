"""Deletes what is past its retention: messages, of which tombstones stay, and what belongs to none."""

from __future__ import annotations

from deliveryd.journal.sql.account import add_pruned
from deliveryd.journal.sql.beginnings import keep_beginnings
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import WATERMARK
from deliveryd.journal.sql.tombstones import add_tombstones

SWEEP_ROUNDS = 10
"""Portions that one sweep reads at most while everything in them has to be kept."""

POSTS_PER_MESSAGE = 4
"""Posts that are examined for each message of the limit: a message's events were in two or three."""

_BEGINNING = (-(2**63), 0, 0)
_OLD = f"""
SELECT ended_at, state, id, EXISTS (
    SELECT 1 FROM event WHERE message_id = message.id
    AND (seq > {WATERMARK} OR (refused IS NOT NULL AND dropped_at IS NULL))
) FROM message WHERE ended_at >= ?1 AND (ended_at, state, id) > (?1, ?2, ?3) AND ended_at < ?4
ORDER BY ended_at, state, id LIMIT ?5
"""  # noqa: S608  # a constant
_POSTS = """
SELECT last, at, EXISTS (SELECT 1 FROM event WHERE seq BETWEEN first AND last) FROM post
WHERE last > ? ORDER BY last LIMIT ?
"""

DELETE_MESSAGE = (
    "DELETE FROM event WHERE message_id = ?",
    "DELETE FROM unaccepted WHERE message_id = ?",
    "DELETE FROM receipt WHERE message_id = ?",
    "DELETE FROM decision WHERE message_id = ?",
    "DELETE FROM pause WHERE kind = 'message' AND key = CAST(? AS TEXT)",
    "DELETE FROM message WHERE id = ?",
)
"""Statements that delete a message and everything that belongs to it, by its id."""

_DELETE_OTHERS = (
    "DELETE FROM malformed WHERE digest IN (SELECT digest FROM malformed WHERE last_at < ? LIMIT ?)",
    "DELETE FROM unread WHERE digest IN (SELECT digest FROM unread WHERE last_at < ? LIMIT ?)",
    (
        "DELETE FROM receipt WHERE seq IN"
        " (SELECT seq FROM receipt WHERE message_id IS NULL AND received_at < ? LIMIT ?)"
    ),
    (
        "DELETE FROM decision WHERE seq IN"
        " (SELECT seq FROM decision WHERE message_id IS NULL AND at < ? LIMIT ?)"
    ),
    (
        "DELETE FROM stopped WHERE (channel, digest) IN"
        " (SELECT channel, digest FROM stopped WHERE lifted_at < ? LIMIT ?)"
    ),
)


class RetentionSweep:
    """Deletes messages past their retention, in portions, from the oldest to the newest and over again."""

    def __init__(self) -> None:
        self._after = _BEGINNING
        self._after_post = 0

    def step(self, db: Db, before: int, limit: int) -> int:
        """Delete one portion of old messages, leaving tombstones.

        Messages with an unsettled or refused event are skipped, and examined again only in the next round.
        Returns the number of deleted messages.
        """
        rows: list[tuple[int]] = []
        for _ in range(SWEEP_ROUNDS):
            old = db.execute(_OLD, (*self._after, before, limit)).fetchall()
            rows = [(id_,) for *_, id_, stays in old if not stays]
            self._after = old[-1][:3] if len(old) == limit else _BEGINNING
            if rows or self._after is _BEGINNING:
                break
        add_tombstones(db, rows)
        keep_beginnings(db, rows)
        for statement in DELETE_MESSAGE:
            db.executemany(statement, rows)
        add_pruned(db, len(rows))
        self._forget_posts(db, before, POSTS_PER_MESSAGE * limit)
        return len(rows)

    def _forget_posts(self, db: Db, before: int, limit: int) -> None:
        """Delete old posts without any event left, from the oldest on, then over again."""
        posts = db.execute(_POSTS, (self._after_post, limit)).fetchall()
        old = [post for post in posts if post[1] < before]
        db.executemany(
            "DELETE FROM post WHERE last = ?", [(last,) for last, _at, is_needed in old if not is_needed]
        )
        self._after_post = posts[-1][0] if len(old) == limit else 0


def delete_others(db: Db, before: int, limit: int) -> int:
    """Delete a portion of old records that belong to no message; return how many."""
    return sum(db.execute(statement, (before, limit)).rowcount for statement in _DELETE_OTHERS)
