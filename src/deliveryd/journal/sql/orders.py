"""Operators' orders, carried out in a log, each key for itself: what an order requires and does."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.journal.orders import NOT_RETRIED, PAUSING, Action, Decided, Effect, ItemKind, Order
from deliveryd.journal.pauses import INTAKE, Pause, PauseKind
from deliveryd.journal.rows import ENTRY, entry_of
from deliveryd.journal.sql import pauses, set_aside
from deliveryd.journal.sql.beginnings import LATEST
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.erasure import erase_malformed, erase_message, erase_receipt, forget_message
from deliveryd.journal.sql.obstacles import obstacle_to_beginning_anew, obstacle_to_forgetting
from deliveryd.journal.sql.operations import Operations
from deliveryd.journal.sql.outbox import Outbox
from deliveryd.journal.sql.own_values import stop_key_of
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.journal.sql.stopped import DIGEST_PREFIX, digest_named, record_stops
from deliveryd.journal.sql.unread_reports import erase_unread
from deliveryd.model import SECOND, Entry, StopChange, Transition, channel_of
from deliveryd.states import State

OVER = "its time is over"
"""The reason of the decision that is recorded when a pause ends by itself."""

RECORD = (
    'INSERT INTO decision (at, verb, kind, key, message_id, "user", caller, reason)'
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
"""Records that an order was carried out for a key."""

_LEAVE_ACCEPTED = """
INSERT INTO unaccepted SELECT id, key, number, provider, beginning, started_at, accepted_at, 'accepted',
    provider_id, reason, NULL FROM message WHERE id = ? AND accepted_at IS NOT NULL
ON CONFLICT (message_id, key, number) DO UPDATE SET verdict = 'accepted', ended_at = excluded.ended_at,
    provider_id = excluded.provider_id,
    reason = coalesce(unaccepted.reason || '; ' || excluded.reason, unaccepted.reason, excluded.reason)
"""
_LEAVE = """
UPDATE message SET sent_by = NULL, started_at = NULL, accepted_at = NULL, provider_id = NULL, reason = NULL,
    confirm_by = NULL, confirm_within = NULL, failed_next = NULL
WHERE id = ?
"""

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NO_NUMBER = "its id is no integer of 64 bits"


class Orders:
    """Carries out orders in a log."""

    def __init__(self, operations: Operations, matching: Matching, outbox: Outbox) -> None:
        self.operations = operations
        self.matching = matching
        self.outbox = outbox

    def carry_out(self, db: Db, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an order for each of its keys, where that can be done."""
        decide = _TABLE.get((order.verb, order.kind), _refuse)
        done: list[str] = []
        skipped: dict[str, str] = {}
        effects: list[Effect] = []
        for key in order.keys:
            try:
                message_id, effect, recorded = decide(_Case(self, db, order, key, at, providers))
            except _Skip as reason:
                skipped[key] = str(reason)
                continue
            _note(db, order, recorded or key, message_id, at)
            done.append(key)
            effects.append(effect)
        in_force = pauses.pauses(db) if order.verb in PAUSING else None
        return Decided(tuple(done), skipped, tuple(effects), in_force)

    def end_pauses(self, db: Db, now: int) -> Sequence[Pause]:
        """Resume what was paused until now, and record that; return all other pauses."""
        for kind, key, *_ in pauses.ended_pauses(db, now):
            if pauses.end_pause(db, kind, key):  # else another worker was first
                order = Order(Action.RESUME, ItemKind(kind), (key,), reason=OVER)
                _note(db, order, key, _paused_message(db, kind, key), now)
        return pauses.pauses(db)


class _Case(NamedTuple):
    """One key of an order, the log, and the transaction that is open."""

    log: Orders
    db: Db
    order: Order
    key: str
    at: int
    providers: Collection[str]

    @property
    def number(self) -> int:
        """The key of everything but malformed elements."""
        return _number(_NUMBER, self.key)


class _Done(NamedTuple):
    """What a case led to: the message that it concerned, and the change of the recorder's counts."""

    message_id: int | None
    effect: Effect = Effect()
    key: str | None = None
    """What is recorded in place of the key, which may be an address."""


class _Skip(Exception):
    """The order can't be carried out for this key; the text says why, and nothing was written."""


def _number(form: re.Pattern[str], key: str) -> int:
    if form.fullmatch(key) is None or not -(2**63) <= int(key) < 2**63:
        raise _Skip(_NO_NUMBER)
    return int(key)


def _note(db: Db, order: Order, key: str, message_id: int | None, at: int) -> None:
    """Record that an order was carried out for a key."""
    by = order.user, order.caller, order.reason
    db.execute(RECORD, (at, order.verb, order.kind, key, message_id, *by))


# messages in doubt


def _resend(case: _Case) -> _Done:
    entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt")
    if entry.provider not in case.providers:
        raise _Skip(f"its provider {entry.provider} isn't configured")
    return _move(case, transitions.ordered_resend(entry, case.at))


def _resend_anew(case: _Case) -> _Done:
    entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt").anew()
    return _move(case, transitions.ordered_resend(entry, case.at))


def _settle_as_sent(case: _Case) -> _Done:
    entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt")
    return _move(case, transitions.ordered_sent(entry, case.at))


def _settle_as_failed(case: _Case) -> _Done:
    entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt")
    return _move(case, transitions.ordered_failed(entry, case.at))


# messages that failed


def _begin_anew(case: _Case, *, accepted: bool) -> _Done:
    hindrance = obstacle_to_beginning_anew(case.db, case.number, accepted=accepted)
    if hindrance is not None:
        raise _Skip(hindrance)
    return _move(case, _step_anew(case.db, case.number, case.at))


def _step_anew(db: Db, id_: int, at: int) -> Transition:
    """Write what the step of a failed message leaves behind, and return the step.

    A try that was accepted, and failed by a receipt, is kept: a later receipt may still prove it.
    """
    (count, *row) = db.execute(f"SELECT {LATEST}, {ENTRY} FROM message WHERE id = ?", (id_,)).fetchone()  # noqa: S608
    db.execute(_LEAVE_ACCEPTED, (id_,))
    db.execute(_LEAVE, (id_,))
    return transitions.ordered_anew(entry_of(tuple(row))._replace(beginning=count), at)


def _move(case: _Case, transition: Transition) -> _Done:
    case.log.operations.change(case.db, [transition])
    if transition.after is State.WAITING:
        return _Done(transition.entry.id, Effect(waiting=1))
    ended = Effect(ended=(transition.after,), events=1, provider=transition.entry.provider)
    return _Done(transition.entry.id, ended)


# messages, events and receipts that were set aside


def _retry_message(case: _Case) -> _Done:
    entry = _in_state(case, State.SET_ASIDE, "it isn't set aside")
    again = set_aside.set_aside_events(case.db, entry.id)
    if not again:
        raise _Skip("it was dropped")
    case.log.outbox.put_last(case.db, again)
    case.log.operations.change(case.db, [transitions.ordered_retry(entry, case.at)])
    return _Done(entry.id, Effect(taken=entry, events=len(again)))


def _retry_event(case: _Case) -> _Done:
    event = _refused_event(case)
    if event.status == "dequeued" and event.is_message_aside:
        raise _Skip(f"its message is set aside with it: message:{event.message_id} is what to retry")
    case.log.outbox.put_last(case.db, set_aside.with_waiting(case.db, case.number, event.message_id))
    return _Done(event.message_id, Effect(events=1 + _report_latest_again(case, event.message_id)))


def _report_latest_again(case: _Case, message_id: int) -> int:
    """Report the latest event last, whatever was reported since; return how many events that takes."""
    latest = set_aside.latest_event(case.db, message_id)
    if latest.waits:  # behind the others that wait
        return 0
    case.log.outbox.put_again(case.db, [(message_id, latest.status, latest.body)])
    return 1


def _retry_receipt(case: _Case) -> _Done:
    _unmatched(case)
    effect = case.log.matching.match_again(case.db, case.number, case.at)
    if effect is None:
        raise _Skip("it still fits no attempt")
    (id_,) = case.db.execute("SELECT message_id FROM receipt WHERE seq = ?", (case.number,)).fetchone()
    return _Done(id_, effect)


def _refuse(case: _Case) -> _Done:
    order = case.order
    if order.verb is Action.RETRY and order.kind in NOT_RETRIED:
        raise _Skip(NOT_RETRIED[order.kind])
    raise _Skip(f'there is no order "{order.verb}" for the kind {order.kind}')


def _drop_message(case: _Case) -> _Done:
    entry = _in_state(case, State.SET_ASIDE, "it isn't set aside")
    _dropped(set_aside.drop_events_set_aside(case.db, entry.id, case.at))
    return _Done(entry.id)


def _drop_event(case: _Case) -> _Done:
    event = _refused_event(case)
    if event.status == "dequeued" and event.is_message_aside:
        raise _Skip(f"its message is set aside with it: message:{event.message_id} is what to drop")
    _dropped(set_aside.drop_event(case.db, case.number, case.at))
    return _Done(event.message_id)


def _drop_receipt(case: _Case) -> _Done:
    _unmatched(case)
    _dropped(set_aside.drop_receipt(case.db, case.number, case.at))
    return _Done(None)


def _drop_malformed(case: _Case) -> _Done:
    found = set_aside.malformed_named(case.db, case.key)
    if len(found) != 1:
        raise _Skip("it isn't there, or was dropped" if not found else "more than one element has such a key")
    [(digest, message_id)] = found
    _dropped(set_aside.drop_malformed(case.db, digest, case.at))
    return _Done(message_id)


def _drop_report(case: _Case) -> _Done:
    digests = set_aside.reports_named(case.db, case.key)
    if len(digests) != 1:
        raise _Skip(
            "it isn't there, or was dropped" if not digests else "more than one report has such a key"
        )
    _dropped(set_aside.drop_report(case.db, digests[0], case.at))
    return _Done(None)


def _dropped(was_marked: bool) -> None:
    """What is given up stays recorded, and is listed no more."""
    if not was_marked:
        raise _Skip("it was dropped already")


def _stop(case: _Case) -> _Done:
    return _change_recipient(case, stopped=True, otherwise="is stopped already")


def _lift(case: _Case) -> _Done:
    return _change_recipient(case, stopped=False, otherwise="isn't stopped")


def _change_recipient(case: _Case, *, stopped: bool, otherwise: str) -> _Done:
    channel, _, recipient = case.key.partition(" ")
    digest = digest_named(stop_key_of(case.db), channel, recipient)
    if digest is None:
        raise _Skip("not an address, and no digest either")
    if not channel.isprintable():
        raise _Skip("not the name of a channel")
    change = StopChange(channel, digest, case.at, stopped, None, "operator")
    (changed,) = record_stops(case.db, [change])
    if not changed:
        raise _Skip(f"{otherwise} on {channel}")
    return _Done(None, Effect(stop=change), f"{channel} {DIGEST_PREFIX}{digest.hex()}")


def _forget(case: _Case, *, accepted: bool) -> _Done:
    """The decision is kept, and names the message by its key alone."""
    hindrance = obstacle_to_forgetting(case.db, case.number, accepted=accepted)
    if hindrance is not None:
        raise _Skip(hindrance)
    forget_message(case.db, case.number)
    return _Done(None)


def _erased(hindrance: str | None) -> _Done:
    """The decision names no message: it is kept when all else of the message is erased."""
    if hindrance is not None:
        raise _Skip(hindrance)
    return _Done(None)


# pauses


def _pause(kind: PauseKind, case: _Case) -> _Done:
    hindrance = _hindrance(kind, case)
    if hindrance is not None:
        raise _Skip(hindrance)
    order = case.order
    until = None if order.lasts is None else case.at + int(order.lasts * SECOND)
    pauses.begin_pause(case.db, Pause(kind, case.key, case.at, until, order.user, order.caller, order.reason))
    return _Done(_paused_message(case.db, kind, case.key))


def _hindrance(kind: PauseKind, case: _Case) -> str | None:
    match kind:
        case PauseKind.INTAKE:
            return None if case.key == INTAKE else "there is one intake only"
        case PauseKind.CHANNEL:
            is_there = case.key in map(channel_of, case.providers)
            return None if is_there else "no such channel is configured"
        case PauseKind.PROVIDER:
            return None if case.key in case.providers else "no such provider is configured"
    number = _number(_PLAIN_NUMBER, case.key)
    return pauses.hindrance_to_pause(case.db, number) if kind is PauseKind.MESSAGE else None


def _resume(kind: PauseKind, case: _Case) -> _Done:
    if not pauses.end_pause(case.db, kind, case.key):
        raise _Skip("it isn't paused")
    return _Done(_paused_message(case.db, kind, case.key))


def _paused_message(db: Db, kind: PauseKind, key: str) -> int | None:
    """The message that a decision is about; None: none, or one that isn't there yet."""
    if kind is not PauseKind.MESSAGE:
        return None
    row = db.execute("SELECT 1 FROM main.message WHERE id = ?", (int(key),)).fetchone()
    return None if row is None else int(key)


# what a case needs


def _in_state(case: _Case, state: State, otherwise: str) -> Entry:
    query = f"SELECT {ENTRY} FROM message WHERE id = ? AND state = ?"  # noqa: S608  # a constant
    row = case.db.execute(query, (case.number, state)).fetchone()
    if row is None:
        raise _Skip(otherwise)
    return entry_of(row)


def _refused_event(case: _Case) -> set_aside.EventRefused:
    event = set_aside.refused_event(case.db, case.number)
    if event is None:
        raise _Skip("it isn't refused, or was dropped")
    return event


def _unmatched(case: _Case) -> None:
    if not set_aside.is_unmatched(case.db, case.number):
        raise _Skip("it isn't unmatched, or was dropped")


_TABLE: Mapping[tuple[Action, ItemKind], Callable[[_Case], _Done]] = {
    (Action.RESEND, ItemKind.MESSAGE): _resend,
    (Action.RESEND_ANEW, ItemKind.MESSAGE): _resend_anew,
    (Action.SETTLE_SENT, ItemKind.MESSAGE): _settle_as_sent,
    (Action.SETTLE_FAILED, ItemKind.MESSAGE): _settle_as_failed,
    (Action.RETRY, ItemKind.MESSAGE): _retry_message,
    (Action.RETRY, ItemKind.EVENT): _retry_event,
    (Action.RETRY, ItemKind.RECEIPT): _retry_receipt,
    (Action.DROP, ItemKind.MESSAGE): _drop_message,
    (Action.DROP, ItemKind.EVENT): _drop_event,
    (Action.DROP, ItemKind.RECEIPT): _drop_receipt,
    (Action.DROP, ItemKind.MALFORMED): _drop_malformed,
    (Action.DROP, ItemKind.REPORT): _drop_report,
    (Action.STOP, ItemKind.RECIPIENT): _stop,
    (Action.LIFT, ItemKind.RECIPIENT): _lift,
    (Action.BEGIN_ANEW, ItemKind.MESSAGE): partial(_begin_anew, accepted=False),
    (Action.BEGIN_ANEW_ANYWAY, ItemKind.MESSAGE): partial(_begin_anew, accepted=True),
    (Action.FORGET, ItemKind.MESSAGE): partial(_forget, accepted=False),
    (Action.FORGET_ANYWAY, ItemKind.MESSAGE): partial(_forget, accepted=True),
    (Action.ERASE, ItemKind.MESSAGE): lambda case: _erased(erase_message(case.db, case.number)),
    (Action.ERASE, ItemKind.RECEIPT): lambda case: _erased(erase_receipt(case.db, case.number)),
    (Action.ERASE, ItemKind.REPORT): lambda case: _erased(erase_unread(case.db, case.key)),
    (Action.ERASE, ItemKind.MALFORMED): lambda case: _erased(erase_malformed(case.db, case.key)),
    **{(Action.PAUSE, ItemKind(kind)): partial(_pause, kind) for kind in PauseKind},
    **{(Action.RESUME, ItemKind(kind)): partial(_resume, kind) for kind in PauseKind},
}
"""What can be ordered, by verb and kind."""
