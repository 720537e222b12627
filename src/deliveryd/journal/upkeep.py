"""What the journal does at its start, for its sums, and for forgetting: plain functions on a connection."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection

from deliveryd import transitions
from deliveryd.journal.account import add_forgotten, open_states
from deliveryd.journal.base import Counts, Doubtful, Recovery
from deliveryd.journal.outbox import WATERMARK
from deliveryd.journal.rows import ENTRY, entry_of, to_json
from deliveryd.journal.tombstones import keep
from deliveryd.model import Entry
from deliveryd.runtime import waits
from deliveryd.states import State

_MOVING = "ended_at IS NULL AND due_at IS NULL"
_OPEN = f"SELECT {ENTRY} FROM message WHERE {_MOVING} AND state = ? ORDER BY id"  # noqa: S608  # constants

_BOUND = f"state = {transitions.CHANNEL_REMOVED.before:d} AND waits_for IS NULL AND channel = ?"
_DUE_NOW = (  # all that wait for something, but those that wait for a channel's room, or its provider
    "UPDATE message SET due_at = ?, waits_for = NULL WHERE waits_for IS NOT NULL AND due_at IS NOT NULL"
    " AND waits_for NOT IN (SELECT value FROM json_each(?))"
)
_CAUSES = """
SELECT NULL, channel, count(*) FROM message WHERE state = 3 AND waits_for IS NULL GROUP BY channel
UNION ALL SELECT min(waits_for), '', count(*) FROM message
    WHERE waits_for IS NOT NULL AND due_at IS NOT NULL
    GROUP BY iif(waits_for LIKE 'customer %', 'directory', waits_for)
"""

UPKEEP_ROUNDS = 10
"""How many times its limit one step of forgetting looks at, when all that it finds has to stay."""

POSTS = 4
"""How many posts are looked at for each message that is forgotten: it has been in two or three."""

SLACK = 4096
"""Free pages that a journal may keep for what comes next, and besides an eighth of its pages: 16 MiB."""

_INCREMENTAL = 2
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

OF_A_MESSAGE = (
    "DELETE FROM event WHERE message_id = ?",
    "DELETE FROM unaccepted WHERE message_id = ?",
    "DELETE FROM receipt WHERE message_id = ?",
    "DELETE FROM decision WHERE message_id = ?",
    "DELETE FROM message WHERE id = ?",
)
"""What removes a message and all that belongs to it."""

_OF_NO_MESSAGE = (
    "DELETE FROM malformed WHERE digest IN (SELECT digest FROM malformed WHERE last_at < ? LIMIT ?)",
    (
        "DELETE FROM receipt WHERE seq IN"
        " (SELECT seq FROM receipt WHERE message_id IS NULL AND received_at < ? LIMIT ?)"
    ),
    (
        "DELETE FROM decision WHERE seq IN"
        " (SELECT seq FROM decision WHERE message_id IS NULL AND at < ? LIMIT ?)"
    ),
)


def namespace_of(db: sqlite3.Connection) -> str:
    """What the keys of all messages of this journal begin with."""
    (namespace,) = db.execute("SELECT value FROM meta WHERE key = 'namespace'").fetchone()
    return str(namespace)


def recover(db: sqlite3.Connection, now: int, channels: Collection[str]) -> Recovery:
    """Put in order what an earlier run left."""
    db.execute(
        f"UPDATE message SET state = ?, due_at = ?, waits_for = NULL WHERE {_MOVING} AND state = ?",  # noqa: S608
        (transitions.RUN_INTERRUPTED.after, now, transitions.RUN_INTERRUPTED.before),
    )
    for_channels = [
        key(channel) for channel in channels for key in (waits.room, waits.repeat, waits.recovery)
    ]
    db.execute(_DUE_NOW, (now, to_json(for_channels)))
    for channel in _channels_of_waiting(db) - set(channels):
        db.execute(
            f"UPDATE message SET state = ?, due_at = NULL WHERE {_BOUND} AND doubt",  # noqa: S608  # constants
            (transitions.CHANNEL_REMOVED.after, channel),
        )
        db.execute(f"UPDATE message SET channel = '', tries = 0 WHERE {_BOUND}", (channel,))  # noqa: S608
    taken = [entry_of(row) for row in db.execute(_OPEN, (State.TAKEN,))]
    doubtful = [
        Doubtful(entry, state, _latest_doubt(db, entry))
        for state in (State.SENDING, State.IN_DOUBT)
        for entry in map(entry_of, db.execute(_OPEN, (state,)))
    ]
    waiting = open_states(db).get(State.WAITING, 0)
    reporting = db.execute(
        f"SELECT message_id FROM event WHERE seq > {WATERMARK} AND status IN ('sent', 'error') ORDER BY seq"  # noqa: S608
    )
    return Recovery(taken, doubtful, waiting, list(dict.fromkeys(row[0] for row in reporting)))


def _latest_doubt(db: sqlite3.Connection, entry: Entry) -> str | None:
    """Why the latest try in doubt under a message's key is so."""
    row = db.execute(
        "SELECT reason FROM unaccepted WHERE message_id = ? AND key = ? AND verdict = 'in_doubt'"
        " ORDER BY number DESC LIMIT 1",
        (entry.id, entry.key),
    ).fetchone()
    return None if row is None else row[0]


def _channels_of_waiting(db: sqlite3.Connection) -> set[str]:
    """The channels that messages wait for, from one to the next, however many wait."""
    channels: set[str] = set()
    channel = ""
    while True:
        (channel,) = db.execute(
            "SELECT min(channel) FROM message WHERE state = 3 AND waits_for IS NULL AND channel > ?",
            (channel,),
        ).fetchone()
        if channel is None:
            return channels
        channels.add(channel)


def counts(db: sqlite3.Connection) -> Counts:
    """The sums of what is open."""
    return Counts(
        open_states(db),
        *db.execute(
            f"SELECT (SELECT count(*) FROM event WHERE seq > {WATERMARK}),"  # noqa: S608  # a constant
            " (SELECT count(*) FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL),"
            " (SELECT count(*) FROM malformed WHERE dropped_at IS NULL),"
            " (SELECT count(*) FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL)"
        ).fetchone(),
    )


def largest_cause(db: sqlite3.Connection) -> tuple[str, int]:
    """What most of the waiting messages wait for, and how many they are."""
    causes: Counter[str] = Counter()
    for waits_for, channel, count in db.execute(_CAUSES):
        causes[waits.cause(waits_for, channel)] += count
    return max(causes.items(), key=lambda item: item[1], default=("nothing", 0))


class Forgetting:
    """Deletes what ended long ago, a few messages at a time, from the oldest to the newest and then anew."""

    def __init__(self) -> None:
        self._after = _BEGINNING
        self._after_post = 0

    def step(self, db: sqlite3.Connection, before: int, limit: int) -> int:
        """Delete old ended messages, keeping what a repeat would need, and what else is as old.

        Those that have to stay, for an event that waits or was refused, are passed over, and not looked at
        again before all others. Returns how many of anything were deleted.
        """
        rows: list[tuple[int]] = []
        for _ in range(UPKEEP_ROUNDS):
            old = db.execute(_OLD, (*self._after, before, limit)).fetchall()
            rows = [(id_,) for *_, id_, stays in old if not stays]
            self._after = old[-1][:3] if len(old) == limit else _BEGINNING
            if rows or self._after is _BEGINNING:
                break
        keep(db, rows)
        for statement in OF_A_MESSAGE:
            db.executemany(statement, rows)
        others = sum(db.execute(statement, (before, limit)).rowcount for statement in _OF_NO_MESSAGE)
        add_forgotten(db, len(rows))
        self._forget_posts(db, before, POSTS * limit)
        return len(rows) + others

    def _forget_posts(self, db: sqlite3.Connection, before: int, limit: int) -> None:
        """Delete what is known of old posts of which no event is left, from the oldest on and then anew."""
        posts = db.execute(_POSTS, (self._after_post, limit)).fetchall()
        old = [post for post in posts if post[1] < before]
        db.executemany(
            "DELETE FROM post WHERE last = ?", [(last,) for last, _at, is_needed in old if not is_needed]
        )
        self._after_post = posts[-1][0] if len(old) == limit else 0


def give_back(db: sqlite3.Connection, limit: int) -> int:
    """Take pages off the file's end, when more of them are free than what comes next will need.

    Returns how many; 0 as well for a file that was made before journals could give space back.
    """
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    surplus = min(free - SLACK - pages // 8, limit)
    if surplus <= 0 or db.execute("PRAGMA auto_vacuum").fetchone() != (_INCREMENTAL,):
        return 0
    for _ in range(surplus):  # the driver takes one step of a statement without columns, and a step is a page
        db.execute("PRAGMA incremental_vacuum(1)")
    return int(surplus)
