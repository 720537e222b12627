"""The audit: reconciles a whole journal, table against table, in SQL, so that memory stays bounded.

Each check is a query that finds the ids of what breaks it; a sound journal finds none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from deliveryd.errors import JournalUnusable
from deliveryd.journal.account import Lost, account, lost
from deliveryd.journal.base import Account
from deliveryd.journal.history import read
from deliveryd.journal.outbox import ACCEPTED_AT, HAPPENED, WATERMARK
from deliveryd.states import State

SHOWN = 20
"""How many ids are shown of what breaks a check."""

_ENDS = "(6, 7, 8, 9)"
_REAL = "settings_id IS NOT NULL"  # a malformed element with an id is a message without settings
_FIRST_STATUS = f"(SELECT status FROM event WHERE message_id = m.id ORDER BY {HAPPENED} LIMIT 1)"  # noqa: S608
_REFUSED_OR_AGAIN = f"(e.refused IS NOT NULL OR e.dropped_at IS NOT NULL OR e.seq > {WATERMARK})"
_UNACCEPTED = "SELECT 1 FROM unaccepted a WHERE a.message_id = m.id"
_IN_ITS_ROW = "(m.state = 4 OR m.accepted_at IS NOT NULL)"  # the latest attempt stands there


def _events(status: str, also: str = "TRUE") -> str:
    """How many different events of a status a message has; a repeat of one has the same body."""
    return (
        "(SELECT count(DISTINCT e.body) FROM event e"  # noqa: S608  # constants
        f" WHERE e.message_id = m.id AND e.status = '{status}' AND {also})"
    )


def _messages(broken: str) -> str:
    return f"SELECT m.id FROM message m WHERE {broken} ORDER BY m.id"  # noqa: S608  # constants


CHECKS: Mapping[str, str] = {
    "a state that there is": _messages("m.state NOT BETWEEN 1 AND 9"),
    "an end has its time, and nothing else has": _messages(
        f"(m.state IN {_ENDS}) <> (m.ended_at IS NOT NULL)"
    ),
    "what waits has a due time, and nothing else has": _messages("(m.state = 3) <> (m.due_at IS NOT NULL)"),
    "what was handed to a channel has one": _messages("m.state IN (4, 5, 6, 7) AND m.channel = ''"),
    "in doubt is what has an attempt in doubt": _messages(
        "(m.state = 5 AND NOT m.doubt) OR (m.state IN (1, 6, 7, 9) AND m.doubt)"
    ),
    "a doubt is about a try under the present key": _messages(
        f"m.doubt AND NOT EXISTS ({_UNACCEPTED} AND a.key = m.key AND a.verdict = 'in_doubt')"
    ),
    "content is kept as long as it may be repeated": _messages(
        f"m.content IS NOT NULL AND (m.state IN {_ENDS} OR m.number = 0)"
    ),
    "dequeued is the first event": _messages(f"coalesce({_FIRST_STATUS}, '') <> 'dequeued'"),
    "dequeued waits until it is accepted": _messages(
        f"m.state = 1 AND {_events('dequeued', f'e.seq > {WATERMARK}')} = 0"
    ),
    "dequeued was accepted before anything else": _messages(
        f"m.{_REAL} AND m.state BETWEEN 2 AND 8"
        f" AND {_events('dequeued', f'e.seq <= {WATERMARK} AND e.refused IS NULL')} = 0"
    ),
    "what is set aside had its dequeued refused": _messages(
        f"m.state = 9 AND {_events('dequeued', _REFUSED_OR_AGAIN)} = 0"
    ),
    "sent has one sent event and no other end": _messages(
        f"m.state = 6 AND ({_events('sent')} <> 1 OR {_events('delivered')} + {_events('error')} > 0)"
    ),
    "delivered has one sent and one delivered event": _messages(
        f"m.state = 7 AND ({_events('sent')} <> 1 OR {_events('delivered')} <> 1 OR {_events('error')} > 1)"
    ),
    "failed has one error event": _messages(
        f"m.state = 8 AND ({_events('error')} <> 1 OR {_events('delivered')} > 0)"
    ),
    "what hasn't ended has no event of an end": _messages(
        f"m.state NOT IN {_ENDS} AND {_events('sent')} + {_events('delivered')} + {_events('error')} > 0"
    ),
    "sent comes before delivered": _messages(
        f"m.state = 7 AND (SELECT min({HAPPENED}) FROM event WHERE message_id = m.id AND status = 'sent')"  # noqa: S608
        f" > (SELECT min({HAPPENED}) FROM event WHERE message_id = m.id AND status = 'delivered')"
    ),
    "sent and delivered have an accepted attempt": _messages(
        "m.state IN (6, 7) AND (m.accepted_at IS NULL OR m.started_at IS NULL OR m.number = 0)"
    ),
    "what isn't sent has no accepted attempt": _messages(
        f"(m.state IN (1, 2, 3, 4, 5, 9) AND m.accepted_at IS NOT NULL)"
        f" OR EXISTS ({_UNACCEPTED} AND a.verdict = 'accepted')"
    ),
    "tries are numbered without a gap": _messages(
        f"m.number <> {_IN_ITS_ROW} + (SELECT count(*) FROM unaccepted a WHERE a.message_id = m.id"  # noqa: S608
        f" AND a.key = m.key AND (a.number < m.number OR NOT {_IN_ITS_ROW}))"
        f" OR EXISTS ({_UNACCEPTED} GROUP BY a.key HAVING count(*) <> max(a.number))"
    ),
    "keys are numbered without a gap": _messages(
        f"EXISTS ({_UNACCEPTED} AND a.key > 1 AND NOT EXISTS"  # noqa: S608  # constants
        " (SELECT 1 FROM unaccepted b WHERE b.message_id = m.id AND b.key = a.key - 1)"
        " AND a.key - 1 <> m.key)"
        f" OR (m.key > 1 AND NOT EXISTS ({_UNACCEPTED} AND a.key = m.key - 1))"
    ),
    "what is being sent has one attempt without an outcome": _messages(
        "m.state = 4 AND (m.started_at IS NULL OR m.number = 0 OR m.accepted_at IS NOT NULL"
        f" OR EXISTS ({_UNACCEPTED} AND a.key = m.key AND a.number = m.number))"
    ),
    "nothing else has an attempt without an outcome": (
        "SELECT a.message_id FROM unaccepted a WHERE a.verdict IS NULL"
    ),
    "an attempt belongs to a message": (
        "SELECT a.message_id FROM unaccepted a"
        " WHERE NOT EXISTS (SELECT 1 FROM message WHERE id = a.message_id)"
    ),
    "an event belongs to a message, or to one that is forgotten": (
        "SELECT e.message_id FROM event e WHERE NOT EXISTS (SELECT 1 FROM message WHERE id = e.message_id)"
        " AND NOT EXISTS (SELECT 1 FROM tombstone WHERE id = e.message_id)"
    ),
    "a refused event is settled": (
        "SELECT message_id FROM event"  # noqa: S608  # a constant
        f" WHERE refused IS NOT NULL AND (refused_at IS NULL OR seq > {WATERMARK})"
    ),
    "what is settled was refused, or accepted in a post": (
        "SELECT message_id FROM event"  # noqa: S608  # constants
        f" WHERE seq <= {WATERMARK} AND refused IS NULL AND {ACCEPTED_AT} IS NULL"
    ),
    "no event waits that was accepted in a post": (
        f"SELECT message_id FROM event WHERE seq > {WATERMARK} AND {ACCEPTED_AT} IS NOT NULL"  # noqa: S608
    ),
    "a matched receipt belongs to a message": (
        "SELECT r.message_id FROM receipt r WHERE r.message_id IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM message WHERE id = r.message_id)"
    ),
    "nothing is forgotten and there": "SELECT id FROM message WHERE id IN (SELECT id FROM tombstone)",
}
"""By what is right: a query for the ids of messages where it isn't."""


class AuditFinding(NamedTuple):
    """A check that something breaks: of how many messages, and the first of their ids."""

    check: str
    messages: int
    ids: tuple[int, ...]


class Audit(NamedTuple):
    """What there is, by counting all of it; `ids_kept` are those of forgotten messages.

    `lost` are batches that never came whole from the queue: what they held besides was never a message here.
    """

    account: Account
    states: Mapping[State, int]
    ids_kept: int
    events_waiting: int
    events_refused: int
    lost: Lost
    findings: tuple[AuditFinding, ...]

    @property
    def gap(self) -> int:
        """How many messages are missing."""
        return self.account.taken - sum(self.states.values()) - self.ids_kept

    @property
    def is_balanced(self) -> bool:
        """Whether nothing is missing, and nothing contradicts anything."""
        return not self.gap and not self.account.gap and not self.findings


def audit_journal(path: Path) -> Audit:
    """Reconcile a journal as of one instant; works beside a running deliveryd. Raises JournalError."""

    def look(db: sqlite3.Connection) -> Audit:
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise JournalUnusable(
                f"{path} is damaged: {found.splitlines()[-1]}. It is left as it is: move it away to start"
                " with an empty one, or restore a backup"
            )
        return _audit(db)

    return read(path, look)


def _audit(db: sqlite3.Connection) -> Audit:
    states = db.execute("SELECT state, count(*) FROM message GROUP BY state ORDER BY state").fetchall()
    waiting, refused, kept = db.execute(
        f"SELECT (SELECT count(*) FROM event WHERE seq > {WATERMARK}),"  # noqa: S608  # a constant
        " (SELECT count(*) FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL),"
        " (SELECT count(*) FROM tombstone)"
    ).fetchone()
    return Audit(
        account(db),
        {State(state): number for state, number in states if state in set(State)},
        kept,
        waiting,
        refused,
        lost(db),
        tuple(finding for check, query in CHECKS.items() if (finding := _find(db, check, query)).messages),
    )


def _find(db: sqlite3.Connection, check: str, query: str) -> AuditFinding:
    count = 0
    ids: list[int] = []
    for (id_,) in db.execute(query):
        count += 1
        if len(ids) < SHOWN:
            ids.append(id_)
    return AuditFinding(check, count, tuple(ids))
