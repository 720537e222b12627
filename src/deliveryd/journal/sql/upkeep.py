"""Recovery at the start, counts for metrics, and the deletion of old data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from deliveryd import transitions
from deliveryd.journal.base import Counts, Doubtful, Recovery
from deliveryd.journal.sql.account import add_pruned, open_states
from deliveryd.journal.sql.beginnings import keep_beginnings
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.leaving import WAITING_KEYS, keys_of, leave_all
from deliveryd.journal.sql.outbox import WATERMARK
from deliveryd.journal.sql.pauses import IS_PAUSED, count_paused, paused_in_doubt_elsewhere
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.journal.sql.rows import ENTRY, entry_of, to_json
from deliveryd.journal.sql.schema import KEEP_VALUE
from deliveryd.journal.sql.tombstones import add_tombstones
from deliveryd.model import Entry
from deliveryd.runtime import waits
from deliveryd.states import State

_MOVING = "ended_at IS NULL AND due_at IS NULL"
_OPEN = f"SELECT {ENTRY} FROM message WHERE {_MOVING} AND state = ? ORDER BY id"  # noqa: S608  # constants
_TRIED = f"SELECT {ENTRY} FROM message WHERE {_MOVING} AND state = ? AND (number > 0 OR key > 1)"  # noqa: S608

_INTERRUPTED = f"""
UPDATE message SET state = {transitions.RUN_INTERRUPTED.after:d}, due_at = ?, waits_for = NULL
WHERE {_MOVING} AND state = {transitions.RUN_INTERRUPTED.before:d}
"""  # noqa: S608  # constants
_DUE_NOW = (  # messages that wait for an answer: nobody has asked for it since the restart
    "UPDATE message SET due_at = ?, waits_for = NULL WHERE waits_for IS NOT NULL AND due_at IS NOT NULL"  # noqa: S608
    f" AND waits_for NOT IN (SELECT value FROM json_each(?)) AND NOT ({IS_PAUSED})"
)
_HOLD_PAUSED = f"""
UPDATE message SET state = {transitions.CHANNEL_REMOVED.after:d}, due_at = NULL, waits_for = NULL WHERE id = ?
"""  # noqa: S608  # a constant
_CAUSES = f"""
SELECT NULL, waits_at, count(*) FROM message WHERE waits_at IS NOT NULL GROUP BY waits_at
UNION ALL SELECT min(waits_for), '', count(*) FROM message
    WHERE waits_for IS NOT NULL AND due_at IS NOT NULL AND NOT ({IS_PAUSED})
    GROUP BY iif(waits_for LIKE 'customer %', 'directory', waits_for)
"""  # noqa: S608  # a constant

SWEEP_ROUNDS = 10
"""Portions that one sweep reads at most while everything in them has to be kept."""

POSTS_PER_MESSAGE = 4
"""Posts that are examined for each message of the limit: a message's events were in two or three."""

SLACK = 4096
"""Free pages (16 MiB) that stay in the file for reuse, in addition to an eighth of all pages."""

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


def namespace_of(db: Db) -> str:
    """Return the prefix of all idempotency keys of this journal."""
    (namespace,) = db.execute("SELECT value FROM meta WHERE key = 'namespace'").fetchone()
    return str(namespace)


def value_of(db: Db, key: str) -> str:
    """Return one of the journal's own values, which there is."""
    (value,) = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(value)


def recover(db: Db, now: int, providers: Collection[str], matching: Matching) -> Recovery:
    """Bring the messages of an earlier run into states to continue from.

    Receipts were kept for those that were about to be repeated: they are applied, as nothing else may repeat
    them.
    """
    tried = [entry_of(row) for row in db.execute(_TRIED, (transitions.RUN_INTERRUPTED.before,))]
    db.execute(_INTERRUPTED, (now,))
    effects = matching.match_at_rest(db, tried, now)
    db.execute(_DUE_NOW, (now, to_json(keys_of(providers, WAITING_KEYS))))
    leave_all(db, _providers_of_waiting(db) - set(providers), now)
    db.executemany(_HOLD_PAUSED, [(id_,) for id_ in paused_in_doubt_elsewhere(db, providers)])
    taken = [entry_of(row) for row in db.execute(_OPEN, (State.TAKEN,))]
    doubtful = [
        Doubtful(entry, state, latest_doubt(db, entry))
        for state in (State.SENDING, State.IN_DOUBT)
        for entry in map(entry_of, db.execute(_OPEN, (state,)))
    ]
    paused = count_paused(db)
    waiting = open_states(db).get(State.WAITING, 0) - sum(paused.values())
    reporting = db.execute(
        f"SELECT message_id FROM event WHERE seq > {WATERMARK} AND status IN ('sent', 'error') ORDER BY seq"  # noqa: S608
    )
    return Recovery(
        taken,
        doubtful,
        waiting,
        list(dict.fromkeys(row[0] for row in reporting)),
        paused=paused,
        effects=tuple(effect._replace(waiting=0, paused=0) for effect in effects),
    )


def of_all_logs(found: Sequence[Recovery]) -> Recovery:
    """What was left in several logs."""
    if len(found) == 1:
        return found[0]
    paused: Counter[str] = Counter()
    for each in found:
        paused.update(each.paused)
    return Recovery(
        [entry for each in found for entry in each.taken],
        [doubtful for each in found for doubtful in each.doubtful],
        sum(each.waiting for each in found),
        [id_ for each in found for id_ in each.reporting],
        paused=paused,
        effects=[effect for each in found for effect in each.effects],
    )


def note_down(db: Db, since: Mapping[str, int]) -> None:
    """Keep since when these providers are down."""
    db.execute(KEEP_VALUE, ("down_since", to_json(dict(since))))


def down_since(db: Db) -> Mapping[str, int]:
    """Since when providers are down, as an earlier run noted it."""
    row = db.execute("SELECT value FROM meta WHERE key = 'down_since'").fetchone()
    return {} if row is None else dict(json.loads(row[0]))


def keep_clock(db: Db, record: str) -> None:
    """Keep what is known of the clock."""
    db.execute(KEEP_VALUE, ("clock", record))


def kept_clock(db: Db) -> str:
    """What an earlier run kept of its clock; "": nothing."""
    row = db.execute("SELECT value FROM meta WHERE key = 'clock'").fetchone()
    return "" if row is None else str(row[0])


def latest_doubt(db: Db, entry: Entry) -> str | None:
    """Return the reason of the latest try in doubt under a message's key."""
    row = db.execute(
        "SELECT reason FROM unaccepted WHERE message_id = ? AND key = ? AND verdict = 'in_doubt'"
        " ORDER BY number DESC LIMIT 1",
        (entry.id, entry.key),
    ).fetchone()
    return None if row is None else row[0]


def id_in_doubt(db: Db, message_id: int, key: int) -> str | None:
    """Return the provider's id of a message as the latest try in doubt under a key had it."""
    row = db.execute(
        "SELECT provider_id FROM unaccepted WHERE message_id = ? AND key = ? AND verdict = 'in_doubt'"
        " AND provider_id IS NOT NULL ORDER BY number DESC LIMIT 1",
        (message_id, key),
    ).fetchone()
    return None if row is None else row[0]


def _providers_of_waiting(db: Db) -> set[str]:
    """Return the providers with waiting messages: one index seek for each, however many messages wait."""
    providers: set[str] = set()
    provider = ""
    while True:
        (provider,) = db.execute(
            "SELECT min(waits_at) FROM message WHERE waits_at > ?", (provider,)
        ).fetchone()
        if provider is None:
            return providers
        providers.add(provider)


def counts(db: Db) -> Counts:
    """Count messages by state, and what waits for the service or for an operator."""
    events, refused, malformed, unmatched = db.execute(
        "SELECT (SELECT CAST(sum((SELECT count(*) FROM event WHERE seq > log.settled"
        " AND seq < (log.number + 1) << 40)) AS BIGINT) FROM log),"
        " (SELECT count(*) FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL),"
        " (SELECT count(*) FROM malformed WHERE dropped_at IS NULL),"
        " (SELECT count(*) FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL)"
    ).fetchone()
    return Counts(open_states(db), events, refused, malformed, unmatched, count_paused(db))


def sum_counts(found: Sequence[Counts]) -> Counts:
    """The sums of several logs, which share what belongs to no message."""
    if len(found) == 1:
        return found[0]
    states: Counter[State] = Counter()
    paused: Counter[str] = Counter()
    for each in found:
        states.update(each.states)
        paused.update(each.paused)
    return found[0]._replace(
        states=states,
        events_waiting=sum(each.events_waiting for each in found),
        events_refused=sum(each.events_refused for each in found),
        paused=paused,
    )


def largest_cause(db: Db) -> tuple[str, int]:
    """Return what most of the waiting messages wait for, and the number of them."""
    causes: Counter[str] = Counter()
    for waits_for, provider, count in db.execute(_CAUSES):
        causes[waits.cause(waits_for, provider)] += count
    return max(causes.items(), key=lambda item: item[1], default=("nothing", 0))


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


def give_back(db: Db, limit: int) -> int:
    """Return free pages beyond `SLACK` to the file system, at most `limit`; return how many.

    0 for a file without incremental vacuum, which can't shrink.
    """
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    surplus = min(free - SLACK - pages // 8, limit)
    if surplus <= 0 or db.execute("PRAGMA auto_vacuum").fetchone() != (_INCREMENTAL,):
        return 0
    for _ in range(surplus):  # sqlite3 steps a statement without columns once, which frees one page
        db.execute("PRAGMA incremental_vacuum(1)")
    return int(surplus)
