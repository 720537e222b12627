"""The audit: checks a whole journal for contradictions between its tables, in SQL, with bounded memory.

Each check is a query for the ids that violate it; in a sound journal it returns none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from deliveryd.journal.attention import SHOWN, Audit, AuditFinding
from deliveryd.journal.orders import Action
from deliveryd.journal.sql.account import account, lost_batches
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import ACCEPTED_AT, HAPPENED, WAITS
from deliveryd.states import ENDED, State


def _is(*states: State) -> str:
    """SQL for whether a message is in one of these states."""
    return f"m.state IN ({', '.join(f'{state:d}' for state in states)})"


_IS_ENDED = _is(*sorted(ENDED))
_REAL = "settings_id IS NOT NULL"  # a malformed element with an id is recorded as a message without settings
_FIRST_STATUS = f"(SELECT status FROM event WHERE message_id = m.id ORDER BY {HAPPENED} LIMIT 1)"  # noqa: S608
_REFUSED_OR_AGAIN = f"(e.refused IS NOT NULL OR e.dropped_at IS NOT NULL OR {WAITS})"
_ACCEPTED = f"{ACCEPTED_AT} IS NOT NULL".replace("event.", "e.")
_ANEW = (  # how often an operator had it begin again after it had failed
    "(SELECT count(*) FROM decision d WHERE d.message_id = m.id AND d.verb IN"  # noqa: S608  # constants
    f" ('{Action.BEGIN_ANEW}', '{Action.BEGIN_ANEW_ANYWAY}'))"
)
_UNACCEPTED = "SELECT 1 FROM unaccepted a WHERE a.message_id = m.id"
_LEFT = (  # stays whose provider accepted it, for some of several devices, or without confirming it in time
    "(SELECT count(DISTINCT a.stay) FROM unaccepted a WHERE a.message_id = m.id AND a.verdict = 'accepted')"
)
_LEFT_BEFORE = _LEFT.replace("a.message_id = m.id", "a.message_id = m.id AND a.stay <> m.stay")
_IN_PART = "(m.sent_by IS NOT NULL AND m.sent_by = m.provider)"  # some of its customer's devices have it
_IN_ITS_ROW = (
    f"({_is(State.SENDING)} OR m.accepted_at IS NOT NULL)"  # whether the latest attempt is part of it
)


def _events(status: str, also: str = "TRUE") -> str:
    """SQL for the number of different events of a status that a message has; a repeat has the same body."""
    return (
        "(SELECT count(DISTINCT e.body) FROM event e"  # noqa: S608  # constants
        f" WHERE e.message_id = m.id AND e.status = '{status}' AND {also})"
    )


def _messages(broken: str) -> str:
    return f"SELECT m.id FROM message m WHERE {broken} ORDER BY m.id"  # noqa: S608  # constants


CHECKS: Mapping[str, str] = {
    "every state is known": _messages(f"NOT {_is(*State)}"),
    "only an ended message has an end time": _messages(f"({_IS_ENDED}) <> (m.ended_at IS NOT NULL)"),
    "only a waiting message has a due time": _messages(f"({_is(State.WAITING)}) <> (m.due_at IS NOT NULL)"),
    "a message that was handed to a provider names it": _messages(
        f"{_is(State.SENDING, State.IN_DOUBT, State.SENT, State.DELIVERED)} AND m.provider = ''"
    ),
    "a message in doubt may have arrived": _messages(
        f"({_is(State.IN_DOUBT)} AND m.doubt = 0 AND m.content IS NULL)"
        f" OR ({_is(State.TAKEN, State.SENT, State.DELIVERED, State.SET_ASIDE)} AND m.doubt = 1)"
    ),
    "an attempt in doubt has the message's present stay": _messages(
        f"m.doubt = 1 AND NOT {_IN_PART}"
        f" AND NOT EXISTS ({_UNACCEPTED} AND a.stay = m.stay AND a.verdict = 'in_doubt')"
    ),
    "content is stored only while it may be repeated": _messages(
        f"m.content IS NOT NULL AND ({_IS_ENDED} OR m.stay_tries = 0)"
    ),
    "dequeued is the first event": _messages(f"coalesce({_FIRST_STATUS}, '') <> 'dequeued'"),
    "a taken message has an unsettled dequeued event": _messages(
        f"{_is(State.TAKEN)} AND {_events('dequeued', WAITS)} = 0"
    ),
    "dequeued was accepted before the message moved on": _messages(
        f"m.{_REAL} AND NOT {_is(State.TAKEN, State.SET_ASIDE)} AND {_events('dequeued', _ACCEPTED)} = 0"
    ),
    "a message set aside has a refused dequeued event": _messages(
        f"{_is(State.SET_ASIDE)} AND {_events('dequeued', _REFUSED_OR_AGAIN)} = 0"
    ),
    "a sent message has one sent event for each acceptance, and an error for each new generation": _messages(
        f"{_is(State.SENT)}"
        f" AND ({_events('sent')} <> 1 + {_LEFT_BEFORE} OR {_events('delivered')} > 0"
        f" OR {_events('error')} <> {_ANEW})"
    ),
    "a delivered message has one sent event for each acceptance and one delivered event": _messages(
        f"{_is(State.DELIVERED)}"
        f" AND ({_events('sent')} <> 1 + {_LEFT_BEFORE} OR {_events('delivered')} <> 1"
        f" OR {_events('error')} > 1 + {_ANEW})"
    ),
    "a failed message has one error event for each generation": _messages(
        f"{_is(State.FAILED)} AND ({_events('error')} <> 1 + {_ANEW} OR {_events('delivered')} > 0)"
    ),
    "a message that hasn't ended has no final event": _messages(
        f"NOT {_IS_ENDED}"
        f" AND ({_events('sent')} <> {_LEFT} OR {_events('delivered')} > 0"
        f" OR {_events('error')} <> {_ANEW})"
    ),
    "sent comes before delivered": _messages(
        f"{_is(State.DELIVERED)}"  # noqa: S608  # constants
        f" AND (SELECT min({HAPPENED}) FROM event WHERE message_id = m.id AND status = 'sent')"
        f" > (SELECT min({HAPPENED}) FROM event WHERE message_id = m.id AND status = 'delivered')"
    ),
    "a sent or delivered message has an accepted attempt": _messages(
        f"{_is(State.SENT, State.DELIVERED)}"
        " AND (m.accepted_at IS NULL OR m.started_at IS NULL OR m.stay_tries = 0)"
    ),
    "a message that wasn't sent has no accepted attempt": _messages(
        f"NOT {_is(State.SENT, State.DELIVERED, State.FAILED)} AND m.accepted_at IS NOT NULL"
    ),
    "a message that wasn't confirmed in time has its accepted attempt": _messages(
        f"m.sent_by IS NOT NULL AND NOT EXISTS"
        f" ({_UNACCEPTED} AND a.verdict = 'accepted' AND a.provider = m.sent_by)"
        f" AND NOT ({_IN_PART} AND m.accepted_at IS NOT NULL)"
    ),
    "only a sent message has a receipt deadline": _messages(
        f"NOT {_is(State.SENT)} AND (m.confirm_by IS NOT NULL OR m.failed_next IS NOT NULL)"
    ),
    "tries are numbered without a gap": _messages(
        f"m.stay_tries <> iif({_IN_ITS_ROW}, 1, 0) + (SELECT count(*) FROM unaccepted a"  # noqa: S608
        " WHERE a.message_id = m.id AND a.stay = m.stay"
        f" AND (a.stay_tries < m.stay_tries OR NOT {_IN_ITS_ROW}))"
        f" OR EXISTS ({_UNACCEPTED} GROUP BY a.stay HAVING count(*) <> max(a.stay_tries)"
        f" - iif({_IN_ITS_ROW} AND a.stay = m.stay AND max(a.stay_tries) > m.stay_tries, 1, 0))"
    ),
    "stays are numbered without a gap": _messages(
        f"EXISTS ({_UNACCEPTED} AND a.stay > 1 AND NOT EXISTS"  # noqa: S608  # constants
        " (SELECT 1 FROM unaccepted b WHERE b.message_id = m.id AND b.stay = a.stay - 1)"
        " AND a.stay - 1 <> m.stay)"
        f" OR (m.stay > 1 AND NOT EXISTS ({_UNACCEPTED} AND a.stay = m.stay - 1))"
    ),
    "a message being sent has one attempt without an outcome": _messages(
        f"{_is(State.SENDING)} AND (m.started_at IS NULL OR m.stay_tries = 0 OR m.accepted_at IS NOT NULL"
        f" OR EXISTS ({_UNACCEPTED} AND a.stay = m.stay AND a.stay_tries = m.stay_tries))"
    ),
    "no other message has an attempt without an outcome": (
        "SELECT a.message_id FROM unaccepted a WHERE a.verdict IS NULL"
    ),
    "an attempt belongs to a message": (
        "SELECT a.message_id FROM unaccepted a"
        " WHERE NOT EXISTS (SELECT 1 FROM message WHERE id = a.message_id)"
    ),
    "an event belongs to a message or a tombstone": (
        "SELECT e.message_id FROM event e WHERE NOT EXISTS (SELECT 1 FROM message WHERE id = e.message_id)"
        " AND NOT EXISTS (SELECT 1 FROM tombstone WHERE id = e.message_id)"
    ),
    "a refused event is settled": (
        "SELECT message_id FROM event"  # noqa: S608  # a constant
        f" WHERE refused IS NOT NULL AND (refused_at IS NULL OR {WAITS})"
    ),
    "a settled event was refused, or accepted in a post": (
        "SELECT message_id FROM event"  # noqa: S608  # constants
        f" WHERE NOT {WAITS} AND refused IS NULL AND {ACCEPTED_AT} IS NULL"
    ),
    "a matched receipt belongs to a message": (
        "SELECT r.message_id FROM receipt r WHERE r.message_id IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM message WHERE id = r.message_id)"
    ),
    "no generation is used again": (
        "SELECT m.id FROM message m JOIN generation b ON b.id = m.id"
        " WHERE m.settings_id IS NOT NULL AND m.generation <= b.count"
    ),
    "no message has a tombstone": "SELECT id FROM message WHERE id IN (SELECT id FROM tombstone)",
}
"""By the rule: a query for the ids of messages that violate it."""


def audit_journal(db: Db, more: Mapping[str, str] = MappingProxyType({})) -> Audit:
    """Audit a journal; for one read transaction. `more` are checks of its store."""
    checks = {**CHECKS, **more}
    states = db.execute("SELECT state, count(*) FROM message GROUP BY state ORDER BY state").fetchall()
    waiting, refused, kept = db.execute(
        f"SELECT (SELECT count(*) FROM event WHERE {WAITS}),"  # noqa: S608  # a constant
        " (SELECT count(*) FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL),"
        " (SELECT count(*) FROM tombstone)"
    ).fetchone()
    return Audit(
        account(db),
        {State(state): number for state, number in states if state in set(State)},
        kept,
        waiting,
        refused,
        lost_batches(db),
        tuple(finding for check, query in checks.items() if (finding := _find(db, check, query)).messages),
        len(checks),
    )


def _find(db: Db, check: str, query: str) -> AuditFinding:
    count = 0
    ids: list[int] = []
    for (id_,) in db.execute(query):
        count += 1
        if len(ids) < SHOWN:
            ids.append(id_)
    return AuditFinding(check, count, tuple(ids))
