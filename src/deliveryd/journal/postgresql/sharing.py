"""What must be true of a journal that several workers share, in SQL: whose each message and each log is."""

from __future__ import annotations

from collections.abc import Mapping

from deliveryd.journal.postgresql.checks import messages
from deliveryd.journal.postgresql.outbox import PRESENT
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.steps import IN_DOUBT
from deliveryd.journal.postgresql.values import VISIBLE
from deliveryd.states import State

_IN_HAND = f"m.state IN ({State.TAKEN:d}, {State.READY:d}, {State.SENDING:d})"
_LOCATED = "FROM seen JOIN message m ON m.day = seen.day AND m.id = seen.id WHERE seen.id = {0}.id"
_HAS_ITS_OWN = "(w.ended IS NOT NULL OR w.holder IS NOT DISTINCT FROM w.id)"
"""SQL for whether a worker has what is its own; of one that ended others take it over."""

_UNSETTLED = (
    "SELECT e.message_id, w.id AS log FROM worker w"
    f" JOIN event e ON e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS}"
)

SHARING_CHECKS: Mapping[str, str] = {
    "only what is taken, ready or being sent belongs to a worker": messages(
        f"{_IN_HAND} <> coalesce(m.owner <> {IN_DOUBT}, false)"
    ),
    "only what is held in doubt is marked as nobody's": messages(
        f"(m.state = {State.IN_DOUBT:d}) <> coalesce(m.owner = {IN_DOUBT}, false)"
    ),
    "the worker that a message belongs to has it, or has ended": messages(
        f"m.owner <> {IN_DOUBT} AND NOT EXISTS"
        f" (SELECT 1 FROM worker w WHERE w.id = m.owner AND {_HAS_ITS_OWN})"
    ),
    "a message is in the partition that its id leads to": messages(
        "NOT EXISTS (SELECT 1 FROM seen WHERE seen.id = m.id AND seen.day = m.day)"
    ),
    "an event is in the partition of its message": (
        "SELECT e.message_id FROM event e JOIN seen ON seen.id = e.message_id"
        f" JOIN message m ON m.day = seen.day AND m.id = seen.id WHERE {PRESENT} AND {VISIBLE}"
        " AND e.day <> seen.day"
    ),
    "what waits is a message that waits, at the same provider": (
        f"SELECT w.id FROM waiting w WHERE NOT EXISTS (SELECT 1 {_LOCATED.format('w')} AND {VISIBLE}"
        f" AND m.state = {State.WAITING:d} AND m.provider = w.provider AND m.doubt = w.doubt)"
    ),
    "what a receipt is awaited of is a sent message": (
        f"SELECT a.id FROM awaited a WHERE NOT EXISTS (SELECT 1 {_LOCATED.format('a')} AND {VISIBLE}"
        f" AND m.state = {State.SENT:d} AND m.provider = a.provider)"
    ),
    "all events of a message that wait are in one log": (
        f"SELECT message_id FROM ({_UNSETTLED} UNION ALL SELECT message_id, log FROM inbox) AS waits"
        " GROUP BY message_id HAVING count(DISTINCT log) > 1"
    ),
    "an inbox belongs to a log that is there": (
        "SELECT i.message_id FROM inbox i WHERE NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = i.log)"
    ),
    "what is in an inbox belongs to a message or a tombstone": (
        "SELECT i.message_id FROM inbox i WHERE NOT EXISTS"
        " (SELECT 1 FROM seen JOIN message m ON m.day = seen.day AND m.id = seen.id"
        f" WHERE seen.id = i.message_id AND {VISIBLE})"
        " AND NOT EXISTS (SELECT 1 FROM tombstone t WHERE t.id = i.message_id)"
    ),
    "the watermark of a log is within it": (
        f"SELECT e.message_id FROM event e JOIN worker w ON w.id = e.seq >> {LOG_BITS}"
        f" WHERE w.settled >> {LOG_BITS} <> w.id"
    ),
    "somebody reports the events that wait": (
        f"SELECT message_id FROM ({_UNSETTLED} WHERE NOT {_HAS_ITS_OWN}) AS waits"
    ),
}
"""By the rule: a query for the ids of messages that violate it."""
