"""Carries out operators' orders, each key for itself, and records each decision."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.journal.anew import begin_anew, obstacle_to_beginning_anew
from deliveryd.journal.erasure import erase_malformed, erase_message, erase_receipt
from deliveryd.journal.forgetting import forget_message, obstacle_to_forgetting
from deliveryd.journal.operations import Operations
from deliveryd.journal.orders import Action, Decided, Effect, ItemKind, Order
from deliveryd.journal.outbox import HAPPENED, WATERMARK, Outbox
from deliveryd.journal.receipt_match import Matching
from deliveryd.journal.rows import ENTRY, entry_of
from deliveryd.journal.stopped import DIGEST_PREFIX, digest_named, record_stops, stop_key_of
from deliveryd.journal.unread_reports import erase_unread
from deliveryd.model import Entry, StopChange, Transition
from deliveryd.states import State

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_SET_ASIDE_EVENTS = (  # refused, or reported once more since the queue handed the message out again
    f"status = 'dequeued' AND dropped_at IS NULL AND (refused IS NOT NULL OR seq > {WATERMARK})"
)
RECORD = (
    "INSERT INTO decision (at, verb, kind, key, message_id, user, caller, reason)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
"""Records that an order was carried out for a key."""


class _Case(NamedTuple):
    """One key of an order."""

    db: sqlite3.Connection
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


class Decisions:
    """What can be ordered, by verb and kind."""

    def __init__(self, operations: Operations, matching: Matching, outbox: Outbox) -> None:
        self._operations = operations
        self._matching = matching
        self._outbox = outbox
        self._table: Mapping[tuple[Action, ItemKind], Callable[[_Case], _Done]] = {
            (Action.RESEND, ItemKind.MESSAGE): self._resend,
            (Action.RESEND_ANEW, ItemKind.MESSAGE): self._resend_anew,
            (Action.SETTLE_SENT, ItemKind.MESSAGE): self._settle_as_sent,
            (Action.SETTLE_FAILED, ItemKind.MESSAGE): self._settle_as_failed,
            (Action.RETRY, ItemKind.MESSAGE): self._retry_message,
            (Action.RETRY, ItemKind.EVENT): self._retry_event,
            (Action.RETRY, ItemKind.RECEIPT): self._retry_receipt,
            (Action.RETRY, ItemKind.REPORT): _retry_report,
            (Action.DROP, ItemKind.MESSAGE): _drop_message,
            (Action.DROP, ItemKind.EVENT): _drop_event,
            (Action.DROP, ItemKind.RECEIPT): _drop_receipt,
            (Action.DROP, ItemKind.MALFORMED): _drop_malformed,
            (Action.DROP, ItemKind.REPORT): _drop_report,
            (Action.STOP, ItemKind.RECIPIENT): _stop,
            (Action.LIFT, ItemKind.RECIPIENT): _lift,
            (Action.BEGIN_ANEW, ItemKind.MESSAGE): partial(self._begin_anew, accepted=False),
            (Action.BEGIN_ANEW_ANYWAY, ItemKind.MESSAGE): partial(self._begin_anew, accepted=True),
            (Action.FORGET, ItemKind.MESSAGE): partial(_forget, accepted=False),
            (Action.FORGET_ANYWAY, ItemKind.MESSAGE): partial(_forget, accepted=True),
            (Action.ERASE, ItemKind.MESSAGE): lambda case: _erased(erase_message(case.db, case.number)),
            (Action.ERASE, ItemKind.RECEIPT): lambda case: _erased(erase_receipt(case.db, case.number)),
            (Action.ERASE, ItemKind.REPORT): lambda case: _erased(erase_unread(case.db, case.key)),
            (Action.ERASE, ItemKind.MALFORMED): lambda case: _erased(erase_malformed(case.db, case.key)),
        }

    def carry_out(self, db: sqlite3.Connection, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an order for each of its keys, where that can be done."""
        decide = self._table.get((order.verb, order.kind), partial(_refuse, order))
        done: list[str] = []
        skipped: dict[str, str] = {}
        effects: list[Effect] = []
        by = order.user, order.caller, order.reason
        for key in order.keys:
            try:
                message_id, effect, recorded = decide(_Case(db, key, at, providers))
            except _Skip as reason:
                skipped[key] = str(reason)
                continue
            db.execute(RECORD, (at, order.verb, order.kind, recorded or key, message_id, *by))
            done.append(key)
            effects.append(effect)
        return Decided(tuple(done), skipped, tuple(effects))

    # messages in doubt

    def _resend(self, case: _Case) -> _Done:
        entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt")
        if entry.provider not in case.providers:
            raise _Skip(f"its provider {entry.provider} isn't configured")
        return self._move(case, transitions.ordered_resend(entry, case.at))

    def _resend_anew(self, case: _Case) -> _Done:
        entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt").anew()
        return self._move(case, transitions.ordered_resend(entry, case.at))

    def _settle_as_sent(self, case: _Case) -> _Done:
        entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt")
        return self._move(case, transitions.ordered_sent(entry, case.at))

    def _settle_as_failed(self, case: _Case) -> _Done:
        entry = _in_state(case, State.IN_DOUBT, "it isn't held in doubt")
        return self._move(case, transitions.ordered_failed(entry, case.at))

    # messages that failed

    def _begin_anew(self, case: _Case, *, accepted: bool) -> _Done:
        hindrance = obstacle_to_beginning_anew(case.db, case.number, accepted=accepted)
        if hindrance is not None:
            raise _Skip(hindrance)
        return self._move(case, begin_anew(case.db, case.number, case.at))

    def _move(self, case: _Case, transition: Transition) -> _Done:
        self._operations.change(case.db, [transition])
        if transition.after is State.WAITING:
            return _Done(transition.entry.id, Effect(waiting=1))
        ended = Effect(ended=(transition.after,), events=1, provider=transition.entry.provider)
        return _Done(transition.entry.id, ended)

    # messages, events and receipts that were set aside

    def _retry_message(self, case: _Case) -> _Done:
        entry = _in_state(case, State.SET_ASIDE, "it isn't set aside")
        again = _numbers(case.db, _SET_ASIDE_EVENTS, entry.id)
        if not again:
            raise _Skip("it was dropped")
        self._outbox.put_last(case.db, again)
        self._operations.change(case.db, [transitions.ordered_retry(entry, case.at)])
        return _Done(entry.id, Effect(taken=entry, events=len(again)))

    def _retry_event(self, case: _Case) -> _Done:
        message_id, status = _refused_event(case)
        if status == "dequeued" and _is_set_aside(case.db, message_id):
            raise _Skip(f"its message is set aside with it: message:{message_id} is what to retry")
        later = _numbers(case.db, f"seq > {WATERMARK}", message_id)
        self._outbox.put_last(case.db, [case.number, *later])
        return _Done(message_id, Effect(events=1 + self._report_latest_again(case, message_id)))

    def _report_latest_again(self, case: _Case, message_id: int) -> int:
        """Report the latest event last, whatever was reported since; return how many events that takes."""
        status, body, still_waits = case.db.execute(
            f"SELECT status, body, max(seq) > {WATERMARK} FROM event"  # noqa: S608  # constants
            " WHERE message_id = ? GROUP BY body HAVING min(refused IS NOT NULL) = 0"
            f" ORDER BY min({HAPPENED}) DESC LIMIT 1",
            (message_id,),
        ).fetchone()
        if still_waits:  # behind the one that is retried, or it is that one
            return 0
        self._outbox.put_again(case.db, [(message_id, status, body)])
        return 1

    def _retry_receipt(self, case: _Case) -> _Done:
        _unmatched(case)
        effect = self._matching.match_again(case.db, case.number, case.at)
        if effect is None:
            raise _Skip("it still fits no attempt")
        (message_id,) = case.db.execute(
            "SELECT message_id FROM receipt WHERE seq = ?", (case.number,)
        ).fetchone()
        return _Done(message_id, effect)


def _refuse(order: Order, _case: _Case) -> _Done:
    if (order.verb, order.kind) == (Action.RETRY, ItemKind.MALFORMED):
        raise _Skip("a malformed element can't be retried: it would be malformed again; drop it instead")
    raise _Skip(f'there is no order "{order.verb}" for the kind {order.kind}')


def _drop_message(case: _Case) -> _Done:
    entry = _in_state(case, State.SET_ASIDE, "it isn't set aside")
    _drop(case, f"UPDATE event SET dropped_at = ? WHERE message_id = ? AND {_SET_ASIDE_EVENTS}", entry.id)  # noqa: S608
    return _Done(entry.id)


def _drop_event(case: _Case) -> _Done:
    message_id, status = _refused_event(case)
    if status == "dequeued" and _is_set_aside(case.db, message_id):
        raise _Skip(f"its message is set aside with it: message:{message_id} is what to drop")
    _drop(case, "UPDATE event SET dropped_at = ? WHERE seq = ?", case.number)
    return _Done(message_id)


def _drop_receipt(case: _Case) -> _Done:
    _unmatched(case)
    _drop(case, "UPDATE receipt SET dropped_at = ? WHERE seq = ?", case.number)
    return _Done(None)


def _drop_malformed(case: _Case) -> _Done:
    found = case.db.execute(
        "SELECT digest, message_id FROM malformed"
        " WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
        (case.key,),
    ).fetchall()
    if len(found) != 1:
        raise _Skip("it isn't there, or was dropped" if not found else "more than one element has such a key")
    [(digest, message_id)] = found
    _drop(case, "UPDATE malformed SET dropped_at = ? WHERE digest = ?", digest)
    return _Done(message_id)


def _retry_report(_case: _Case) -> _Done:
    raise _Skip("it can't be read; correct the receipt table, and have the provider report it once more")


def _drop_report(case: _Case) -> _Done:
    digests = case.db.execute(
        "SELECT digest FROM unread WHERE digest >= ?1 AND digest < ?1 || 'g' AND dropped_at IS NULL",
        (case.key,),
    ).fetchall()
    if len(digests) != 1:
        raise _Skip(
            "it isn't there, or was dropped" if not digests else "more than one report has such a key"
        )
    _drop(case, "UPDATE unread SET dropped_at = ? WHERE digest = ?", *digests[0])
    return _Done(None)


def _drop(case: _Case, statement: str, *keys: object) -> None:
    """Mark what is given up: it stays recorded, and is listed no more."""
    if not case.db.execute(statement, (case.at, *keys)).rowcount:
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


def _in_state(case: _Case, state: State, otherwise: str) -> Entry:
    row = case.db.execute(
        f"SELECT {ENTRY} FROM message WHERE id = ? AND state = ?",  # noqa: S608  # a constant
        (case.number, state),
    ).fetchone()
    if row is None:
        raise _Skip(otherwise)
    return entry_of(row)


def _refused_event(case: _Case) -> tuple[int, str]:
    row = case.db.execute(
        "SELECT message_id, status FROM event WHERE seq = ? AND refused IS NOT NULL AND dropped_at IS NULL",
        (case.number,),
    ).fetchone()
    if row is None:
        raise _Skip("it isn't refused, or was dropped")
    message_id, status = row
    return int(message_id), str(status)


def _numbers(db: sqlite3.Connection, which: str, message_id: int) -> list[int]:
    """The numbers of a message's events of which some SQL is true, in their order."""
    rows = db.execute(f"SELECT seq FROM event WHERE message_id = ? AND {which} ORDER BY seq", (message_id,))  # noqa: S608
    return [seq for (seq,) in rows]


def _is_set_aside(db: sqlite3.Connection, message_id: int) -> bool:
    row = db.execute("SELECT state FROM message WHERE id = ?", (message_id,)).fetchone()
    return row is not None and row[0] == State.SET_ASIDE


def _unmatched(case: _Case) -> None:
    row = case.db.execute(
        "SELECT 1 FROM receipt WHERE seq = ? AND message_id IS NULL AND dropped_at IS NULL", (case.number,)
    ).fetchone()
    if row is None:
        raise _Skip("it isn't unmatched, or was dropped")
