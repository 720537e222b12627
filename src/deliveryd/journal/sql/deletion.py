"""Deletes messages that ended: past their retention, or on an operator's order; and what stays of them.

A tombstone has the id of a message, and in few bytes the events to report again for a repeat. How often it
began is kept apart, so that no idempotency key is ever used again: only what began more than once, may have
arrived though it failed, or was forgotten has a row of that kind.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from deliveryd.journal.rows import IDS, to_json
from deliveryd.journal.sql.account import count_more
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import WATERMARK
from deliveryd.model import format_instant, parse_instant
from deliveryd.states import State


class Tombstone(NamedTuple):
    """The JSON of a pruned message's `dequeued` and of its latest event, as they were reported."""

    dequeued: str | None
    latest: str | None


_TO_REPORT_AGAIN = """
SELECT (SELECT body FROM event WHERE message_id = ?1 AND status = 'dequeued' LIMIT 1),
    (SELECT body FROM event WHERE message_id = ?1 AND refused IS NULL ORDER BY seq DESC LIMIT 1)
"""
_ADD_TOMBSTONE = "INSERT INTO tombstone (id, dequeued_at, at, status, rest) VALUES (?, ?, ?, ?, ?)"
_TOMBSTONES = f"SELECT id, dequeued_at, at, status, rest FROM tombstone WHERE id IN {IDS}"  # noqa: S608  # a constant
_KEPT_ALWAYS = frozenset({"channel", "reportedAt", "messageId"})


def _add_tombstones(db: Db, ids: Sequence[tuple[int]]) -> None:
    """Write tombstones for messages, from their events."""
    db.executemany(
        _ADD_TOMBSTONE,
        [(id_, *_columns(id_, *db.execute(_TO_REPORT_AGAIN, (id_,)).fetchone())) for (id_,) in ids],
    )


def _columns(
    id_: int, dequeued: str | None, latest: str | None
) -> tuple[int | None, int | None, str | None, str | None]:
    """The columns of a tombstone behind its id."""
    at, status, rest = None, None, None
    if latest is not None:
        fields = json.loads(latest)
        at, status = parse_instant(fields.pop("timestamp")), fields.pop("status")
        if fields["messageId"] == id_:
            del fields["messageId"]
        rest = to_json(fields) if fields else None
    return None if dequeued is None else parse_instant(json.loads(dequeued)["timestamp"]), at, status, rest


def _strip_details(db: Db, id_: int) -> None:
    """Remove from a tombstone all fields but those that the interface requires."""
    (rest,) = db.execute("SELECT rest FROM tombstone WHERE id = ?", (id_,)).fetchone() or (None,)
    fields = {} if rest is None else json.loads(rest)
    kept = {name: value for name, value in fields.items() if name in _KEPT_ALWAYS}
    db.execute("UPDATE tombstone SET rest = ? WHERE id = ?", (to_json(kept) if kept else None, id_))


def read_tombstones(db: Db, ids: Collection[int]) -> Mapping[int, Tombstone]:
    """Read the tombstones of those of these messages that have one."""
    rows = db.execute(_TOMBSTONES, (to_json(list(ids)),))
    return {id_: _tombstone_of(id_, *columns) for id_, *columns in rows}


def _tombstone_of(
    message_id: int, dequeued_at: int | None, at: int | None, status: str, rest: str | None
) -> Tombstone:
    """Build a tombstone from the columns of its row."""
    fields = {} if rest is None else json.loads(rest)
    told_as = fields.pop("messageId", message_id)  # `number_of` an id beyond 64 bits isn't that id
    return Tombstone(
        None if dequeued_at is None else _body(told_as, dequeued_at, "dequeued", {}),
        None if at is None else _body(told_as, at, status, fields),
    )


def _body(message_id: int, at: int, status: str, fields: Mapping[str, Any]) -> str:
    """Return an event's JSON as `EventWriter` wrote it."""
    return to_json({"timestamp": format_instant(at), "messageId": message_id, "status": status, **fields})


MAY_HAVE_ARRIVED = (
    f"(message.state = {State.FAILED:d} AND (message.doubt = 1 OR message.sent_by IS NOT NULL))"
)
"""SQL for whether a failed message may have arrived: an outcome is unknown, or an acceptance unconfirmed."""

LATEST = (
    "max(message.generation, coalesce((SELECT max(u.generation) FROM unaccepted u"
    " WHERE u.message_id = message.id), 1))"
)
"""SQL for how often a message began: a receipt may have brought it back to the key of an earlier time."""

_KEEP_GENERATION = f"""
INSERT INTO generation (id, count, doubt) SELECT id, count, doubt FROM (
    SELECT id, {LATEST} AS count, iif({MAY_HAVE_ARRIVED}, 1, 0) AS doubt FROM message WHERE id = ?) AS kept
WHERE count > 1 OR doubt = 1
ON CONFLICT (id) DO UPDATE SET count = max(generation.count, excluded.count), doubt = excluded.doubt
"""  # noqa: S608  # constants
_KEEP_FORGOTTEN = """
INSERT INTO generation (id, count) VALUES (?, 1) ON CONFLICT (id) DO UPDATE SET doubt = 0
"""
_HIGHEST_BEGUN = "SELECT max(id) FROM generation"
_GENERATIONS = f"SELECT id, count FROM generation WHERE id IN {IDS}"  # noqa: S608  # a constant


def _keep_generations(db: Db, ids: Sequence[tuple[int]]) -> None:
    """Keep how often messages began that are about to be deleted."""
    db.executemany(_KEEP_GENERATION, ids)


def was_in_doubt(db: Db, id_: int) -> bool:
    """Whether a message may have arrived whose row is deleted, though it failed."""
    row = db.execute("SELECT doubt FROM generation WHERE id = ?", (id_,)).fetchone()
    return row is not None and bool(row[0])


def generations_of(db: Db, ids: Collection[int]) -> Mapping[int, int]:
    """Return with which generation new messages start, of those that began before."""
    (highest,) = db.execute(_HIGHEST_BEGUN).fetchone()
    if highest is None or not ids or highest < min(ids):
        return {}
    return {id_: count + 1 for id_, count in db.execute(_GENERATIONS, (to_json(list(ids)),))}


SWEEP_ROUNDS = 10
"""Portions that one sweep reads at most while everything in them has to be kept."""

POSTS_PER_MESSAGE = 4
"""Posts that are examined for each message of the limit: a message's events were in two or three."""

_START = (-(2**63), 0, 0)
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

_DELETE_MESSAGE = (
    "DELETE FROM event WHERE message_id = ?",
    "DELETE FROM unaccepted WHERE message_id = ?",
    "DELETE FROM receipt WHERE message_id = ?",
    "DELETE FROM decision WHERE message_id = ?",
    "DELETE FROM pause WHERE kind = 'message' AND key = CAST(? AS TEXT)",
    "DELETE FROM message WHERE id = ?",
)
"""Statements that delete a message and everything that belongs to it, by its id."""

_DELETE_MALFORMED = "DELETE FROM malformed WHERE message_id = ?"
_KEEP_DECISIONS = "UPDATE decision SET message_id = NULL WHERE message_id = ?"
"""Those about the message itself name it by their key as well."""

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
    (
        "DELETE FROM budget WHERE (name, since, until) IN"
        " (SELECT name, since, until FROM budget WHERE until < ? LIMIT ?)"
    ),
    "DELETE FROM capped WHERE customer IN (SELECT customer FROM capped WHERE until < ? LIMIT ?)",
)


class RetentionSweep:
    """Deletes messages past their retention, in portions, from the oldest to the newest and over again."""

    def __init__(self) -> None:
        self._after = _START
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
            self._after = old[-1][:3] if len(old) == limit else _START
            if rows or self._after is _START:
                break
        _delete(db, rows)
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


def _delete(db: Db, ids: Sequence[tuple[int]]) -> None:
    """Delete messages and everything that belongs to them, but for their tombstones."""
    _add_tombstones(db, ids)
    _keep_generations(db, ids)
    for statement in _DELETE_MESSAGE:
        db.executemany(statement, ids)
    count_more(db, pruned=len(ids))


def erase_message(db: Db, id_: int) -> None:
    """Erase an ended message: what is left is a tombstone without the details of its latest event.

    By that the journal still recognizes a repeat of it.
    """
    _delete(db, [(id_,)])
    _strip_details(db, id_)
    db.execute(_DELETE_MALFORMED, (id_,))


def forget_message(db: Db, id_: int) -> None:
    """Delete a message, or what is kept of one, so that its id is taken as new if the queue gives it again.

    How often it began outlives that, so that its keys are new ones.
    """
    _keep_generations(db, [(id_,)])
    db.execute(_KEEP_DECISIONS, (id_,))
    for statement in (*_DELETE_MESSAGE, _DELETE_MALFORMED):
        db.execute(statement, (id_,))
    was_pruned = db.execute("DELETE FROM tombstone WHERE id = ?", (id_,)).rowcount
    db.execute(_KEEP_FORGOTTEN, (id_,))
    count_more(db, pruned=-was_pruned, forgotten=1)
