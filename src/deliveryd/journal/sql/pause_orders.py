"""Carries out orders to pause and to resume, each key for itself, and records each as a decision."""

from __future__ import annotations

import re
from collections.abc import Collection

from deliveryd.journal.orders import Action, Decided, ItemKind, Order
from deliveryd.journal.sql.pauses import INTAKE, Pause, PauseKind
from deliveryd.journal.sql.records import Records
from deliveryd.model import SECOND, channel_of

PAUSE_ORDERS = frozenset({Action.PAUSE, Action.RESUME})

OVER = "its time is over"
"""The reason of the decision that is recorded when a pause ends by itself."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_KINDS = frozenset(map(str, PauseKind))


def carry_out_pauses(records: Records, order: Order, at: int, providers: Collection[str]) -> Decided:
    """Pause or resume what the keys name."""
    done: list[str] = []
    skipped: dict[str, str] = {}
    for key in order.keys:
        hindrance = _carry_out(records, order, key, at, providers)
        if hindrance is not None:
            skipped[key] = hindrance
            continue
        records.note(order, key, paused_message(records, order.kind, key), at)
        done.append(key)
    return Decided(tuple(done), skipped, (), tuple(records.pauses()))


def _carry_out(records: Records, order: Order, key: str, at: int, providers: Collection[str]) -> str | None:
    """Pause or resume one thing; return why not if that can't be done."""
    if order.kind not in _KINDS:
        return f'there is no order "{order.verb}" for the kind {order.kind}'
    kind = PauseKind(order.kind)
    if order.verb is Action.RESUME:
        return None if records.end_pause(kind, key) else "it isn't paused"
    hindrance = _hindrance(records, kind, key, providers)
    if hindrance is None:
        until = None if order.lasts is None else at + int(order.lasts * SECOND)
        records.begin_pause(Pause(kind, key, at, until, order.user, order.caller, order.reason))
    return hindrance


def _hindrance(records: Records, kind: PauseKind, key: str, providers: Collection[str]) -> str | None:
    match kind:
        case PauseKind.INTAKE:
            return None if key == INTAKE else "there is one intake only"
        case PauseKind.CHANNEL:
            return None if key in map(channel_of, providers) else "no such channel is configured"
        case PauseKind.PROVIDER:
            return None if key in providers else "no such provider is configured"
    if _NUMBER.fullmatch(key) is None or not -(2**63) <= int(key) < 2**63:
        return "its id is no integer of 64 bits"
    return records.hindrance_to_pause(int(key)) if kind is PauseKind.MESSAGE else None


def paused_message(records: Records, kind: ItemKind | PauseKind, key: str) -> int | None:
    """The message that a decision is about; None: none, or one that isn't there yet."""
    return int(key) if kind == PauseKind.MESSAGE and records.is_there(int(key)) else None


def note_end(records: Records, kind: PauseKind, key: str, now: int) -> None:
    """Record that a pause ended by itself."""
    order = Order(Action.RESUME, ItemKind(kind), (key,), reason=OVER)
    records.note(order, key, paused_message(records, kind, key), now)
