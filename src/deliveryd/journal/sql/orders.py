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
from deliveryd.journal.sql import dead_letters, pauses
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import LATEST, erase_message, forget_message
from deliveryd.journal.sql.obstacles import OBSTACLES
from deliveryd.journal.sql.operations import Operations
from deliveryd.journal.sql.outbox import Outbox
from deliveryd.journal.sql.own_values import forget_parts, stop_key_of
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.journal.sql.stopped import DIGEST_PREFIX, digest_named, record_stops
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
INSERT INTO unaccepted SELECT id, stay, stay_tries, provider, generation, started_at, accepted_at, 'accepted',
    provider_id, reason, NULL FROM message WHERE id = ? AND accepted_at IS NOT NULL
ON CONFLICT (message_id, stay, stay_tries) DO UPDATE SET verdict = 'accepted', ended_at = excluded.ended_at,
    provider_id = excluded.provider_id,
    reason = coalesce(unaccepted.reason || '; ' || excluded.reason, unaccepted.reason, excluded.reason)
"""
_LEAVE = """
UPDATE message SET sent_by = NULL, started_at = NULL, accepted_at = NULL, provider_id = NULL, reason = NULL,
    confirm_by = NULL, confirm_within = NULL, failed_next = NULL
WHERE id = ?
"""
_NOTE_ORDER = """
UPDATE unaccepted SET reason = ?1 || coalesce('; ' || reason, '')
WHERE message_id = ?2 AND stay = ?3 AND instr(coalesce(reason, ''), ?1) = 0 AND stay_tries = (
    SELECT max(stay_tries) FROM unaccepted WHERE message_id = ?2 AND stay = ?3 AND verdict = 'in_doubt')
"""
"""Notes beside the latest try in doubt under a key that an operator ordered the repeat."""

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
        """The key of everything that has a number."""
        return _number(_NUMBER, self.key)

    @property
    def own_key(self) -> int | str:
        """The key of what was set aside: a number, or the start of a digest."""
        is_digest = self.order.kind in (ItemKind.MALFORMED, ItemKind.REPORT)
        return self.key if is_digest else self.number


class _Done(NamedTuple):
    """What a case led to: the message that it concerned, and the change of the recorder's counts."""

    message_id: int | None
    effect: Effect = Effect()
    key: str | None = None
    """What is recorded in place of the key, which may be an address."""


class _Skip(Exception):
    """The order can't be carried out for this key; the text has the reason, and nothing was written."""


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
    entry = _in_doubt(case)
    if entry.provider not in case.providers:
        raise _Skip(f"its provider {entry.provider} isn't configured")
    case.db.execute(_NOTE_ORDER, (transitions.REPEAT_ORDERED, entry.id, entry.stay))
    return _move(case, transitions.ordered_resend(entry, case.at))


def _resend_anew(case: _Case) -> _Done:
    entry = _in_doubt(case)
    if entry.is_sent_in_part:
        raise _Skip("some of the customer's devices have it; resend it without a new key, or settle it")
    return _move(case, transitions.ordered_resend(entry.anew(), case.at))


def _settle_as_sent(case: _Case) -> _Done:
    return _move(case, transitions.ordered_sent(_in_doubt(case), case.at))


def _settle_as_failed(case: _Case) -> _Done:
    return _move(case, transitions.ordered_failed(_in_doubt(case), case.at))


def _in_doubt(case: _Case) -> Entry:
    return _in_state(case, State.IN_DOUBT, "it isn't held in doubt")


def _move(case: _Case, transition: Transition) -> _Done:
    case.log.operations.change(case.db, [transition])
    if transition.after is State.WAITING:
        return _Done(transition.entry.id, Effect(waiting=1))
    count = len(transition.events)
    ended = Effect(ended=(transition.after,), events=count, provider=transition.entry.provider)
    return _Done(transition.entry.id, ended)


# messages that ended


def _begin_anew(case: _Case) -> _Done:
    """A try that was accepted, and failed by a receipt, is kept: a later receipt may still prove it."""
    _check_obstacles(case)
    query = f"SELECT {LATEST}, {ENTRY} FROM message WHERE id = ?"  # noqa: S608  # constants
    (count, *row) = case.db.execute(query, (case.number,)).fetchone()
    case.db.execute(_LEAVE_ACCEPTED, (case.number,))
    case.db.execute(_LEAVE, (case.number,))
    return _move(case, transitions.ordered_anew(entry_of(row)._replace(generation=count), case.at))


def _forget_message(case: _Case) -> _Done:
    """The decision is kept, and names the message by its key alone."""
    _check_obstacles(case)
    forget_message(case.db, case.number)
    return _Done(None)


def _erase_message(case: _Case) -> _Done:
    """The decision names no message: it is kept when all else of the message is erased."""
    _check_obstacles(case)
    erase_message(case.db, case.number)
    return _Done(None)


def _check_obstacles(case: _Case) -> None:
    hindrance = OBSTACLES[case.order.verb](case.db, case.number)
    if hindrance is not None:
        raise _Skip(hindrance)


# messages, events and receipts that were set aside


def _retry_message(case: _Case) -> _Done:
    entry = _in_state(case, State.SET_ASIDE, "it isn't set aside")
    again = dead_letters.set_aside_events(case.db, entry.id)
    if not again:
        raise _Skip("it was dropped")
    case.log.outbox.put_last(case.db, again)
    case.log.operations.change(case.db, [transitions.ordered_retry(entry, case.at)])
    return _Done(entry.id, Effect(taken=entry, events=len(again)))


def _retry_event(case: _Case) -> _Done:
    """The latest event of its message is reported last, whatever was reported since."""
    message_id = _refused_event(case)
    case.log.outbox.put_last(case.db, dead_letters.with_waiting(case.db, case.number, message_id))
    latest = dead_letters.latest_event(case.db, message_id)
    if latest.waits:  # behind the others that wait
        return _Done(message_id, Effect(events=1))
    case.log.outbox.put_again(case.db, [(message_id, latest.status, latest.body)])
    return _Done(message_id, Effect(events=2))


def _retry_receipt(case: _Case) -> _Done:
    _only_one(case)
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
    if not dead_letters.drop_events_set_aside(case.db, entry.id, case.at):
        raise _Skip("it was dropped already")
    return _Done(entry.id)


def _drop_event(case: _Case) -> _Done:
    _refused_event(case)
    return _drop(case)


def _drop(case: _Case) -> _Done:
    found = _only_one(case)
    dead_letters.drop_set_aside(case.db, case.order.kind, found.key, case.at)
    return _Done(found.message_id)


def _erase(case: _Case) -> _Done:
    """The decision names no message, as when one is erased."""
    found = dead_letters.erase_set_aside(case.db, case.order.kind, case.own_key)
    if not found:
        raise _Skip(_NOT_ERASED.get(case.order.kind, "it isn't there any more"))
    if found > 1:
        raise _Skip(_AMBIGUOUS)
    return _Done(None)


def _change_recipient(case: _Case, *, stopped: bool) -> _Done:
    channel, _, recipient = case.key.partition(" ")
    digest = digest_named(stop_key_of(case.db), channel, recipient)
    if digest is None:
        raise _Skip("not an address, and no digest either")
    if not channel.isprintable():
        raise _Skip("not the name of a channel")
    change = StopChange(channel, digest, case.at, stopped, None, "operator")
    (changed,) = record_stops(case.db, [change])
    if not changed:
        raise _Skip(f"is suppressed already on {channel}" if stopped else f"isn't suppressed on {channel}")
    return _Done(None, Effect(stop=change), f"{channel} {DIGEST_PREFIX}{digest.hex()}")


# pauses


def _pause(kind: PauseKind, case: _Case) -> _Done:
    hindrance = _hindrance(kind, case)
    if hindrance is not None:
        raise _Skip(hindrance)
    order = case.order
    until = None if order.lasts is None else case.at + int(order.lasts * SECOND)
    if kind is PauseKind.SETTINGS:
        forget_parts(case.db, case.key)
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


def _only_one(case: _Case) -> dead_letters.SetAside:
    """The one thing of the order's kind that isn't dropped and has this key."""
    found = dead_letters.set_aside_named(case.db, case.order.kind, case.own_key)
    if not found:
        raise _Skip(_NOT_THERE[case.order.kind])
    if len(found) > 1:
        raise _Skip(_AMBIGUOUS)
    return found[0]


def _refused_event(case: _Case) -> int:
    """The message of an event that the service refused, and that isn't set aside with it."""
    id_ = _only_one(case).message_id
    if dead_letters.is_aside_with_message(case.db, case.number):
        raise _Skip(f"its message is set aside with it: message:{id_} is what to {case.order.verb}")
    return id_ or 0


_NOT_THERE = {
    ItemKind.EVENT: "it isn't refused, or was dropped",
    ItemKind.RECEIPT: "it isn't unmatched, or was dropped",
    ItemKind.MALFORMED: "it isn't there, or was dropped",
    ItemKind.REPORT: "it isn't there, or was dropped",
}
_AMBIGUOUS = "more than one has such a key"
_NOT_ERASED = {ItemKind.RECEIPT: "it isn't there any more, or fits an attempt by now"}

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
    (Action.DROP, ItemKind.RECEIPT): _drop,
    (Action.DROP, ItemKind.MALFORMED): _drop,
    (Action.DROP, ItemKind.REPORT): _drop,
    (Action.STOP, ItemKind.RECIPIENT): partial(_change_recipient, stopped=True),
    (Action.LIFT, ItemKind.RECIPIENT): partial(_change_recipient, stopped=False),
    (Action.BEGIN_ANEW, ItemKind.MESSAGE): _begin_anew,
    (Action.BEGIN_ANEW_ANYWAY, ItemKind.MESSAGE): _begin_anew,
    (Action.FORGET, ItemKind.MESSAGE): _forget_message,
    (Action.FORGET_ANYWAY, ItemKind.MESSAGE): _forget_message,
    (Action.ERASE, ItemKind.MESSAGE): _erase_message,
    (Action.ERASE, ItemKind.RECEIPT): _erase,
    (Action.ERASE, ItemKind.REPORT): _erase,
    (Action.ERASE, ItemKind.MALFORMED): _erase,
    **{(Action.PAUSE, ItemKind(kind)): partial(_pause, kind) for kind in PauseKind},
    **{(Action.RESUME, ItemKind(kind)): partial(_resume, kind) for kind in PauseKind},
}
"""What can be ordered, by verb and kind."""
