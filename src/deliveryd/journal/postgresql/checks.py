"""What must be true of every message, in SQL; the rules are those of a journal in a file.

Each check is a query for the ids that violate it; in a sound journal it returns none. `sharing` has the rules
that only a journal of several workers can break.
"""

from __future__ import annotations

from collections.abc import Mapping

from deliveryd.journal.orders import Action
from deliveryd.journal.postgresql.outbox import ACCEPTED_AT, AT, HAPPENED, PRESENT, WAITS
from deliveryd.journal.postgresql.values import VISIBLE
from deliveryd.states import ENDED, State


def _is(*states: State) -> str:
    """SQL for whether a message is in one of these states."""
    return f"m.state IN ({', '.join(f'{state:d}' for state in states)})"


_IS_ENDED = _is(*sorted(ENDED))
_REAL = (
    "m.settings_id IS NOT NULL"  # a malformed element with an id is recorded as a message without settings
)
_OWN = "e.message_id = m.id AND e.day = m.day"
_FIRST_STATUS = f"(SELECT e.status FROM event e WHERE {_OWN} ORDER BY {AT}, {HAPPENED} LIMIT 1)"
_REFUSED_OR_AGAIN = f"(e.refused_at IS NOT NULL OR e.dropped_at IS NOT NULL OR {WAITS})"
_ANEW = (  # how often an operator had it begin anew after it had failed
    "(SELECT count(*) FROM decision d WHERE d.message_id = m.id AND d.verb IN"
    f" ('{Action.BEGIN_ANEW}', '{Action.BEGIN_ANEW_ANYWAY}'))"
)
_UNACCEPTED = "SELECT 1 FROM unaccepted a WHERE a.message_id = m.id AND a.day = m.day"
_COUNT = _UNACCEPTED.replace("SELECT 1", "SELECT count(*)")
_LEFT = f"({_COUNT} AND a.verdict = 'accepted')"  # tries that were accepted and not confirmed in time
_IN_ITS_ROW = (  # whether the latest attempt is part of it
    f"({_is(State.SENDING)} OR m.accepted_at IS NOT NULL)"
)
_TRY_OF = "(a.day, a.message_id) > (SELECT r.day, r.id FROM retired r)"
"""SQL for whether a try isn't pruned with its message."""


def _events(status: str, also: str) -> str:
    """SQL for the number of different events of a status that a message has; a repeat has the same body."""
    return f"(SELECT count(DISTINCT e.body) FROM event e WHERE {_OWN} AND e.status = '{status}' AND {also})"


def _told(status: str) -> str:
    """The same, with those that are in an inbox: others will write them into their log."""
    return (
        "(SELECT count(DISTINCT body) FROM ("
        f"SELECT e.body FROM event e WHERE {_OWN} AND e.status = '{status}'"
        f" UNION ALL SELECT i.body FROM inbox i WHERE i.message_id = m.id AND i.status = '{status}') AS told)"
    )


def _first(status: str) -> str:
    """SQL for the place of a message's first event of a status, by time: it may be in any log."""
    return (
        f"(SELECT row({AT}, {HAPPENED}) FROM event e WHERE {_OWN} AND e.status = '{status}'"
        f" ORDER BY {AT}, {HAPPENED} LIMIT 1)"
    )


def messages(broken: str) -> str:
    """Return SQL for the ids of messages that break a rule."""
    return f"SELECT m.id FROM message m WHERE {VISIBLE} AND ({broken})"


_LOST = "NOT EXISTS (SELECT 1 FROM message m WHERE m.id = {0}.message_id AND m.day = {0}.day)"

CHECKS: Mapping[str, str] = {
    "every state is known": messages(f"NOT {_is(*State)}"),
    "only an ended message has an end time": messages(f"({_IS_ENDED}) <> (m.ended_at IS NOT NULL)"),
    "only a waiting message has a due time": messages(
        f"({_is(State.WAITING)}) <> EXISTS (SELECT 1 FROM waiting w WHERE w.id = m.id)"
    ),
    "a message that was handed to a provider names it": messages(
        f"{_is(State.SENDING, State.IN_DOUBT, State.SENT, State.DELIVERED)} AND m.provider = ''"
    ),
    "a message in doubt may have arrived": messages(
        f"({_is(State.IN_DOUBT)} AND NOT m.doubt AND m.content IS NULL)"
        f" OR ({_is(State.TAKEN, State.SENT, State.DELIVERED, State.SET_ASIDE)} AND m.doubt)"
    ),
    "an attempt in doubt has the message's present key": messages(
        f"m.doubt AND NOT EXISTS ({_UNACCEPTED} AND a.key = m.key AND a.verdict = 'in_doubt')"
    ),
    "content is stored only while it may be repeated": messages(
        f"m.content IS NOT NULL AND ({_IS_ENDED} OR m.number = 0)"
    ),
    "dequeued is the first event": messages(f"coalesce({_FIRST_STATUS}, '') <> 'dequeued'"),
    "a taken message has an unsettled dequeued event": messages(
        f"{_is(State.TAKEN)} AND {_events('dequeued', WAITS)} = 0"
        " AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.message_id = m.id)"
    ),
    "dequeued was accepted before the message moved on": messages(
        f"{_REAL} AND NOT {_is(State.TAKEN, State.SET_ASIDE)}"
        f" AND {_events('dequeued', f'{ACCEPTED_AT} IS NOT NULL')} = 0"
    ),
    "a message set aside has a refused dequeued event": messages(
        f"{_is(State.SET_ASIDE)} AND {_events('dequeued', _REFUSED_OR_AGAIN)} = 0"
    ),
    "a sent message has one sent event for each acceptance, and an error for each new beginning": messages(
        f"{_is(State.SENT)}"
        f" AND ({_told('sent')} <> 1 + {_LEFT} OR {_told('delivered')} > 0"
        f" OR {_told('error')} <> {_ANEW})"
    ),
    "a delivered message has one sent event for each acceptance and one delivered event": messages(
        f"{_is(State.DELIVERED)}"
        f" AND ({_told('sent')} <> 1 + {_LEFT} OR {_told('delivered')} <> 1"
        f" OR {_told('error')} > 1 + {_ANEW})"
    ),
    "a failed message has one error event for each beginning": messages(
        f"{_is(State.FAILED)} AND ({_told('error')} <> 1 + {_ANEW} OR {_told('delivered')} > 0)"
    ),
    "a message that hasn't ended has no final event": messages(
        f"NOT {_IS_ENDED}"
        f" AND ({_told('sent')} <> {_LEFT} OR {_told('delivered')} > 0"
        f" OR {_told('error')} <> {_ANEW})"
    ),
    "sent comes before delivered": messages(
        f"{_is(State.DELIVERED)} AND {_first('sent')} > {_first('delivered')}"
    ),
    "a sent or delivered message has an accepted attempt": messages(
        f"{_is(State.SENT, State.DELIVERED)}"
        " AND (m.accepted_at IS NULL OR m.started_at IS NULL OR m.number = 0)"
    ),
    "a message that wasn't sent has no accepted attempt": messages(
        f"NOT {_is(State.SENT, State.DELIVERED, State.FAILED)} AND m.accepted_at IS NOT NULL"
    ),
    "a message that wasn't confirmed in time has its accepted attempt": messages(
        "m.sent_by IS NOT NULL AND NOT EXISTS"
        f" ({_UNACCEPTED} AND a.verdict = 'accepted' AND a.provider = m.sent_by)"
    ),
    "only a sent message has a receipt deadline": messages(
        f"NOT {_is(State.SENT)} AND EXISTS (SELECT 1 FROM awaited a WHERE a.id = m.id)"
    ),
    "tries are numbered without a gap": messages(
        f"m.number <> {_IN_ITS_ROW}::int + ({_COUNT}"
        f" AND a.key = m.key AND (a.number < m.number OR NOT {_IN_ITS_ROW}))"
        f" OR EXISTS ({_UNACCEPTED} GROUP BY a.key HAVING count(*) <> max(a.number))"
    ),
    "keys are numbered without a gap": messages(
        f"EXISTS ({_UNACCEPTED} AND a.key > 1 AND NOT EXISTS"
        " (SELECT 1 FROM unaccepted b WHERE b.message_id = m.id AND b.day = m.day AND b.key = a.key - 1)"
        " AND a.key - 1 <> m.key)"
        f" OR (m.key > 1 AND NOT EXISTS ({_UNACCEPTED} AND a.key = m.key - 1))"
    ),
    "a message being sent has one attempt without an outcome": messages(
        f"{_is(State.SENDING)} AND (m.started_at IS NULL OR m.number = 0 OR m.accepted_at IS NOT NULL"
        f" OR EXISTS ({_UNACCEPTED} AND a.key = m.key AND a.number = m.number))"
    ),
    "no other message has an attempt without an outcome": (
        f"SELECT a.message_id FROM unaccepted a WHERE a.verdict IS NULL AND {_TRY_OF}"
    ),
    "an attempt belongs to a message": (
        f"SELECT a.message_id FROM unaccepted a WHERE {_TRY_OF} AND {_LOST.format('a')}"
    ),
    "an event belongs to a message or a tombstone": (
        f"SELECT e.message_id FROM event e WHERE {PRESENT} AND {_LOST.format('e')}"
        " AND NOT EXISTS (SELECT 1 FROM tombstone t WHERE t.id = e.message_id)"
    ),
    "a refused event is settled": (
        "SELECT e.message_id FROM event e"
        f" WHERE e.refused IS NOT NULL AND (e.refused_at IS NULL OR {WAITS}) AND {PRESENT}"
    ),
    "a settled event was refused, or accepted in a post": (
        "SELECT e.message_id FROM event e"
        f" WHERE NOT {WAITS} AND e.refused IS NULL AND {ACCEPTED_AT} IS NULL AND {PRESENT}"
    ),
    "a matched receipt belongs to a message": (
        "SELECT r.message_id FROM receipt r"
        " WHERE (r.day, r.message_id) > (SELECT p.day, p.id FROM retired p)"
        f" AND {_LOST.format('r')}"
    ),
    "no beginning is used again": messages(
        f"{_REAL} AND EXISTS (SELECT 1 FROM beginning b WHERE b.id = m.id AND m.beginning <= b.count)"
    ),
    "no message has a tombstone": messages("EXISTS (SELECT 1 FROM tombstone t WHERE t.id = m.id)"),
}
"""By the rule: a query for the ids of messages that violate it."""
