"""Messages in doubt, and dead letters: what was set aside for an operator.

These are events that the service refused, with their messages, and what nobody could read or match. They are
kept, read beside a worker or without one, and dropped or erased in the transaction of an order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deliveryd.journal.attention import DeadLetter, InDoubtMessage
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.rows import to_text
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.history import ids_as_told
from deliveryd.journal.sql.outbox import AT, HAPPENED, WATERMARK
from deliveryd.model import INT64, UnreadReport, message_key
from deliveryd.states import State

_IN_DOUBT = f"""
SELECT m.id, (SELECT value FROM meta WHERE key = 'namespace'), m.generation,
    m.provider, m.stay_tries, a.ended_at AS since, a.reason, (SELECT max(provider_id) FROM unaccepted
        WHERE message_id = m.id AND stay = m.stay AND verdict = 'in_doubt')
FROM message m JOIN unaccepted a ON a.message_id = m.id AND a.stay = m.stay AND a.stay_tries = (
    SELECT max(stay_tries) FROM unaccepted WHERE message_id = m.id AND stay = m.stay AND verdict = 'in_doubt')
WHERE m.ended_at IS NULL AND m.due_at IS NULL AND m.state = {State.IN_DOUBT:d}
"""  # noqa: S608  # a constant

_DEAD_LETTERS: Mapping[ItemKind, str] = {
    ItemKind.EVENT: f"""
SELECT 'event' AS kind, CAST(seq AS TEXT) AS key, message_id, refused_at AS at, status AS what,
    refused AS reason
FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL AND NOT (status = 'dequeued'
    AND EXISTS (SELECT 1 FROM message WHERE id = event.message_id AND state = {State.SET_ASIDE:d}))
""",  # noqa: S608  # a constant
    ItemKind.MESSAGE: f"""
SELECT 'message' AS kind, CAST(m.id AS TEXT) AS key, m.id AS message_id, e.refused_at AS at,
    'set aside' AS what, e.refused AS reason
FROM event e JOIN message m ON m.id = e.message_id AND m.state = {State.SET_ASIDE:d}
WHERE e.refused IS NOT NULL AND e.dropped_at IS NULL AND e.status = 'dequeued' AND e.seq = (
    SELECT seq FROM event WHERE message_id = m.id AND refused IS NOT NULL AND dropped_at IS NULL
        AND status = 'dequeued' ORDER BY refused_at DESC, seq DESC LIMIT 1)
""",  # noqa: S608  # a constant
    ItemKind.MALFORMED: """
SELECT 'malformed' AS kind, substr(digest, 1, 16) AS key, message_id, last_at AS at,
    'came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END AS what, reason
FROM malformed WHERE dropped_at IS NULL
""",
    ItemKind.RECEIPT: """
SELECT 'receipt' AS kind, CAST(seq AS TEXT) AS key, CAST(NULL AS BIGINT) AS message_id, received_at AS at,
    provider || ' ' || status AS what, 'no attempt fits it' AS reason
FROM receipt WHERE message_id IS NULL AND dropped_at IS NULL
""",
    ItemKind.REPORT: """
SELECT 'report' AS kind, substr(digest, 1, 16) AS key, CAST(NULL AS BIGINT) AS message_id, last_at AS at,
    provider || ', came ' || times || CASE times WHEN 1 THEN ' time' ELSE ' times' END AS what, reason
FROM unread WHERE dropped_at IS NULL
""",
}

_CHANNEL = "substr(provider, 1, instr(provider || '/', '/') - 1)"
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_SHOWN: Mapping[ItemKind, str] = {
    ItemKind.EVENT: "message_id, status, body, refused_at, refused AS reason",
    ItemKind.MALFORMED: "message_id, raw, reason, first_at, last_at, times",
    ItemKind.REPORT: "provider, raw, reason, first_at, last_at, times",
    ItemKind.RECEIPT: (
        f"{_CHANNEL} AS channel, provider, provider_id, reference, status, reported_at, received_at"
    ),
}
"""What is shown of one dead letter."""

_MESSAGE = f"""
SELECT m.id AS message_id, m.settings_id, m.customer_id, m.taken_at, e.body, e.refused_at, e.refused AS reason
FROM message m JOIN event e ON e.message_id = m.id
WHERE m.id = ? AND m.state = {State.SET_ASIDE:d} AND e.refused IS NOT NULL AND e.dropped_at IS NULL
ORDER BY e.seq DESC
"""  # noqa: S608  # a constant
_SET_ASIDE_EVENTS = (  # refused, or reported once more since the queue handed the message out again
    f"status = 'dequeued' AND dropped_at IS NULL AND (refused IS NOT NULL OR seq > {WATERMARK})"
)
_OPEN = "dropped_at IS NULL"

MOST_UNREAD = 1000
"""How many unreadable reports are kept; the one that came last the longest ago makes room."""

_KEEP_UNREAD = """
INSERT INTO unread (digest, provider, raw, reason, first_at, last_at) VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT (digest) DO UPDATE SET times = unread.times + 1, last_at = ?5, reason = ?4, dropped_at = NULL
"""
_MAKE_ROOM = """
DELETE FROM unread WHERE digest IN (
    SELECT digest FROM unread ORDER BY last_at LIMIT max(0, (SELECT count(*) FROM unread) - ?)
)
"""


class _KeptIn(NamedTuple):
    """Where things of a kind are kept.

    The column of their keys, which are numbers or digests; SQL for what is true of all of them, and for the
    message that one concerns.
    """

    table: str
    key: str
    rule: str
    message: str

    def named(self) -> str:
        """SQL for those that the first parameter names: a number, or the start of a digest."""
        name = "seq = ?1" if self.key == "seq" else "digest >= ?1 AND digest < ?1 || 'g'"
        return f"FROM {self.table} WHERE {name} AND {self.rule}"


_KEPT: Mapping[ItemKind, _KeptIn] = {
    ItemKind.EVENT: _KeptIn("event", "seq", "refused IS NOT NULL", "message_id"),
    ItemKind.RECEIPT: _KeptIn("receipt", "seq", "message_id IS NULL", "NULL"),
    ItemKind.MALFORMED: _KeptIn("malformed", "digest", "TRUE", "message_id"),
    ItemKind.REPORT: _KeptIn("unread", "digest", "TRUE", "NULL"),
}


class SetAside(NamedTuple):
    """Something that was set aside: its own key, and the message that it concerns."""

    key: int | str
    message_id: int | None


class LatestEvent(NamedTuple):
    """The event that happened last of those that weren't refused, and whether it still waits."""

    status: str
    body: str
    waits: bool


def read_in_doubt(db: Db, channel: str | None, until: int | None) -> list[InDoubtMessage]:
    """Return the messages held in doubt since `until` or earlier, if given.

    `channel`: only those at its providers, or at one provider.
    """
    rows = db.execute(
        f"{_IN_DOUBT} AND (CAST(?1 AS TEXT) IS NULL OR instr(m.provider || '/', ?1 || '/') = 1)"
        " AND a.ended_at <= coalesce(?2, a.ended_at) ORDER BY m.id",
        (channel, until),
    )
    return [
        InDoubtMessage(id_, message_key(namespace, id_, provider, generation), provider, *others)
        for id_, namespace, generation, provider, *others in rows
    ]


def read_dead_letters(db: Db, kinds: Sequence[ItemKind], since: int, reason: str) -> list[DeadLetter]:
    """Return dead letters set aside since an instant, with this text in their reason, oldest first."""
    union = " UNION ALL ".join(f"SELECT * FROM ({_DEAD_LETTERS[kind]}) AS dead" for kind in kinds)  # noqa: S608  # constants
    rows = db.execute(
        f"SELECT * FROM ({union}) AS dead WHERE at >= ? AND instr(lower(reason), lower(?)) > 0 ORDER BY at",  # noqa: S608
        (since, reason),
    ).fetchall()
    told = ids_as_told(db, [id_ for _, _, id_, *_ in rows if id_ is not None])
    return [DeadLetter(ItemKind(kind), key, told.get(id_, id_), *rest) for kind, key, id_, *rest in rows]


def read_dead_letter(db: Db, kind: ItemKind, key: str) -> Mapping[str, object] | None:
    """Return everything about one dead letter, with its raw text; None: there is none."""
    is_number = kind not in (ItemKind.MALFORMED, ItemKind.REPORT)
    if is_number and (_NUMBER.fullmatch(key) is None or int(key) not in INT64):
        return None
    query = _MESSAGE
    if kind is not ItemKind.MESSAGE:
        query = f"SELECT {_SHOWN[kind]} {_KEPT[kind].named()} AND {_OPEN}"  # constants
    rows = db.execute(query, (int(key) if is_number else key,))
    row = rows.fetchone()
    if row is None:
        return None
    shown = dict(zip((each[0] for each in rows.description), row, strict=True))
    if (id_ := shown.get("message_id")) is not None:
        shown["message_id"] = ids_as_told(db, [id_]).get(id_, id_)
    return shown


# what orders need


def set_aside_named(db: Db, kind: ItemKind, key: int | str) -> Sequence[SetAside]:
    """What isn't dropped of a kind, and has this number, or a digest that begins so."""
    kept = _KEPT[kind]
    query = f"SELECT {kept.key}, {kept.message} {kept.named()} AND {_OPEN}"  # constants
    return [SetAside(*row) for row in db.execute(query, (key,))]


def drop_set_aside(db: Db, kind: ItemKind, key: int | str, at: int) -> None:
    """Mark something as dropped; what is given up stays recorded, and is listed no more."""
    kept = _KEPT[kind]
    db.execute(f"UPDATE {kept.table} SET dropped_at = ? WHERE {kept.key} = ?", (at, key))  # noqa: S608


def erase_set_aside(db: Db, kind: ItemKind, key: int | str) -> int:
    """Erase something that belongs to no message; return how many have that key: it is erased if one has."""
    named = _KEPT[kind].named()
    (count,) = db.execute(f"SELECT count(*) {named}", (key,)).fetchone()
    if count == 1:
        db.execute(f"DELETE {named}", (key,))
    return int(count)


def set_aside_events(db: Db, id_: int) -> Sequence[int]:
    """The numbers of a message's `dequeued` that was refused, and of its repeat that waits."""
    query = f"SELECT seq FROM event WHERE message_id = ? AND {_SET_ASIDE_EVENTS} ORDER BY seq"  # noqa: S608
    return [seq for (seq,) in db.execute(query, (id_,))]


def drop_events_set_aside(db: Db, id_: int, at: int) -> bool:
    """Mark the `dequeued` of a message as dropped; return whether there was one."""
    query = f"UPDATE event SET dropped_at = ? WHERE message_id = ? AND {_SET_ASIDE_EVENTS}"  # noqa: S608
    return db.execute(query, (at, id_)).rowcount > 0


def is_aside_with_message(db: Db, seq: int) -> bool:
    """Whether an event is the `dequeued` of a message that is set aside with it."""
    query = (
        "SELECT 1 FROM event JOIN message ON message.id = event.message_id"  # noqa: S608  # a constant
        f" WHERE seq = ? AND status = 'dequeued' AND state = {State.SET_ASIDE:d}"
    )
    return db.execute(query, (seq,)).fetchone() is not None


def with_waiting(db: Db, seq: int, id_: int) -> Sequence[int]:
    """The numbers of a refused event and of those of its message that wait, as they happened."""
    query = (
        f"SELECT seq FROM event WHERE message_id = ? AND (seq = ? OR seq > {WATERMARK})"  # noqa: S608
        f" ORDER BY {AT}, {HAPPENED}"
    )
    return [number for (number,) in db.execute(query, (id_, seq))]


def latest_event(db: Db, id_: int) -> LatestEvent:
    """A message's latest event, in the order in which things happened."""
    status, body, waits = db.execute(
        f"SELECT status, body, max(seq) > {WATERMARK} FROM event"  # noqa: S608  # constants
        " WHERE message_id = ? GROUP BY status, body HAVING count(refused) < count(*)"
        f" ORDER BY min({HAPPENED}) DESC LIMIT 1",
        (id_,),
    ).fetchone()
    return LatestEvent(status, body, bool(waits))


def keep_unread(db: Db, reports: Sequence[UnreadReport]) -> None:
    """Keep reports that can't be read: the latest, once each however often they come."""
    if not reports:
        return
    rows = []
    for provider, raw, reason, at in reports:
        digest = hashlib.sha256(f"{provider} {raw}".encode("utf-8", "surrogatepass")).hexdigest()
        rows.append((digest, provider, to_text(raw), to_text(reason), at))
    db.executemany(_KEEP_UNREAD, rows)
    db.execute(_MAKE_ROOM, (MOST_UNREAD,))
