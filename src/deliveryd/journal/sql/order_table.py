"""Carries out operators' orders, each key for itself: what an order requires and does, for every journal."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.journal.orders import NOT_RETRIED, Action, Decided, Effect, ItemKind, Order
from deliveryd.journal.sql.records import EventRefused, Records
from deliveryd.journal.sql.stopped import DIGEST_PREFIX, digest_named
from deliveryd.model import Entry, StopChange, Transition
from deliveryd.states import State

_NUMBER = re.compile(r"-?[0-9]{1,19}")


class _Case(NamedTuple):
    """One key of an order."""

    records: Records
    key: str
    at: int
    providers: Collection[str]

    @property
    def number(self) -> int:
        """The key of everything but malformed elements."""
        if _NUMBER.fullmatch(self.key) is None or not -(2**63) <= int(self.key) < 2**63:
            raise _Skip("its id is no integer of 64 bits")
        return int(self.key)


class _Done(NamedTuple):
    """What a case led to: the message that it concerned, and the change of the recorder's counts."""

    message_id: int | None
    effect: Effect = Effect()
    key: str | None = None
    """What is recorded in place of the key, which may be an address."""


class _Skip(Exception):
    """The order can't be carried out for this key; the text says why, and nothing was written."""


def carry_out_order(records: Records, order: Order, at: int, providers: Collection[str]) -> Decided:
    """Carry out an order for each of its keys, where that can be done."""
    decide = _TABLE.get((order.verb, order.kind), partial(_refuse, order))
    done: list[str] = []
    skipped: dict[str, str] = {}
    effects: list[Effect] = []
    for key in order.keys:
        try:
            message_id, effect, recorded = decide(_Case(records, key, at, providers))
        except _Skip as reason:
            skipped[key] = str(reason)
            continue
        records.note(order, recorded or key, message_id, at)
        done.append(key)
        effects.append(effect)
    return Decided(tuple(done), skipped, tuple(effects))


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
    hindrance = case.records.obstacle_to_beginning_anew(case.number, accepted=accepted)
    if hindrance is not None:
        raise _Skip(hindrance)
    return _move(case, case.records.begin_anew(case.number, case.at))


def _move(case: _Case, transition: Transition) -> _Done:
    case.records.change(transition)
    if transition.after is State.WAITING:
        return _Done(transition.entry.id, Effect(waiting=1))
    ended = Effect(ended=(transition.after,), events=1, provider=transition.entry.provider)
    return _Done(transition.entry.id, ended)


# messages, events and receipts that were set aside


def _retry_message(case: _Case) -> _Done:
    entry = _in_state(case, State.SET_ASIDE, "it isn't set aside")
    again = case.records.set_aside_events(entry.id)
    if not again:
        raise _Skip("it was dropped")
    case.records.put_last(again)
    case.records.change(transitions.ordered_retry(entry, case.at))
    return _Done(entry.id, Effect(taken=entry, events=len(again)))


def _retry_event(case: _Case) -> _Done:
    event = _refused_event(case)
    if event.status == "dequeued" and event.is_message_aside:
        raise _Skip(f"its message is set aside with it: message:{event.message_id} is what to retry")
    case.records.put_last(case.records.with_waiting(case.number, event.message_id))
    return _Done(event.message_id, Effect(events=1 + _report_latest_again(case, event.message_id)))


def _report_latest_again(case: _Case, message_id: int) -> int:
    """Report the latest event last, whatever was reported since; return how many events that takes."""
    latest = case.records.latest_event(message_id)
    if latest.waits:  # behind the others that wait
        return 0
    case.records.put_again(message_id, latest.status, latest.body)
    return 1


def _retry_receipt(case: _Case) -> _Done:
    _unmatched(case)
    matched = case.records.match_again(case.number, case.at)
    if matched is None:
        raise _Skip("it still fits no attempt")
    return _Done(*matched)


def _refuse(order: Order, _case: _Case) -> _Done:
    if order.verb is Action.RETRY and order.kind in NOT_RETRIED:
        raise _Skip(NOT_RETRIED[order.kind])
    raise _Skip(f'there is no order "{order.verb}" for the kind {order.kind}')


def _drop_message(case: _Case) -> _Done:
    entry = _in_state(case, State.SET_ASIDE, "it isn't set aside")
    _dropped(case.records.drop_set_aside(entry.id, case.at))
    return _Done(entry.id)


def _drop_event(case: _Case) -> _Done:
    event = _refused_event(case)
    if event.status == "dequeued" and event.is_message_aside:
        raise _Skip(f"its message is set aside with it: message:{event.message_id} is what to drop")
    _dropped(case.records.drop_event(case.number, case.at))
    return _Done(event.message_id)


def _drop_receipt(case: _Case) -> _Done:
    _unmatched(case)
    _dropped(case.records.drop_receipt(case.number, case.at))
    return _Done(None)


def _drop_malformed(case: _Case) -> _Done:
    found = case.records.malformed_named(case.key)
    if len(found) != 1:
        raise _Skip("it isn't there, or was dropped" if not found else "more than one element has such a key")
    [(digest, message_id)] = found
    _dropped(case.records.drop_malformed(digest, case.at))
    return _Done(message_id)


def _drop_report(case: _Case) -> _Done:
    digests = case.records.reports_named(case.key)
    if len(digests) != 1:
        raise _Skip(
            "it isn't there, or was dropped" if not digests else "more than one report has such a key"
        )
    _dropped(case.records.drop_report(digests[0], case.at))
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
    digest = digest_named(case.records.stop_key, channel, recipient)
    if digest is None:
        raise _Skip("not an address, and no digest either")
    if not channel.isprintable():
        raise _Skip("not the name of a channel")
    change = StopChange(channel, digest, case.at, stopped, None, "operator")
    if not case.records.record_stop(change):
        raise _Skip(f"{otherwise} on {channel}")
    return _Done(None, Effect(stop=change), f"{channel} {DIGEST_PREFIX}{digest.hex()}")


def _forget(case: _Case, *, accepted: bool) -> _Done:
    """The decision is kept, and names the message by its key alone."""
    hindrance = case.records.obstacle_to_forgetting(case.number, accepted=accepted)
    if hindrance is not None:
        raise _Skip(hindrance)
    case.records.forget(case.number)
    return _Done(None)


def _erased(hindrance: str | None) -> _Done:
    """The decision names no message: it is kept when all else of the message is erased."""
    if hindrance is not None:
        raise _Skip(hindrance)
    return _Done(None)


def _in_state(case: _Case, state: State, otherwise: str) -> Entry:
    entry = case.records.entry_in(case.number, state)
    if entry is None:
        raise _Skip(otherwise)
    return entry


def _refused_event(case: _Case) -> EventRefused:
    event = case.records.refused_event(case.number)
    if event is None:
        raise _Skip("it isn't refused, or was dropped")
    return event


def _unmatched(case: _Case) -> None:
    if not case.records.is_unmatched(case.number):
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
    (Action.ERASE, ItemKind.MESSAGE): lambda case: _erased(case.records.erase_message(case.number)),
    (Action.ERASE, ItemKind.RECEIPT): lambda case: _erased(case.records.erase_receipt(case.number)),
    (Action.ERASE, ItemKind.REPORT): lambda case: _erased(case.records.erase_report(case.key)),
    (Action.ERASE, ItemKind.MALFORMED): lambda case: _erased(case.records.erase_malformed(case.key)),
}
"""What can be ordered, by verb and kind."""
