"""Carries out orders to pause and to resume, each key for itself, and records each as a decision."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Sequence

from deliveryd.journal.decisions import RECORD
from deliveryd.journal.orders import Action, Decided, ItemKind, Order
from deliveryd.journal.pauses import (
    INTAKE,
    Pause,
    PauseKind,
    begin_pause,
    end_pause,
    ended_pauses,
    hindrance_to_pause,
    pauses,
)
from deliveryd.model import SECOND, channel_of

PAUSE_ORDERS = frozenset({Action.PAUSE, Action.RESUME})

OVER = "its time is over"
"""The reason of the decision that is recorded when a pause ends by itself."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_KINDS = frozenset(map(str, PauseKind))


def carry_out_pauses(db: sqlite3.Connection, order: Order, at: int, providers: Collection[str]) -> Decided:
    """Pause or resume what the keys name."""
    done: list[str] = []
    skipped: dict[str, str] = {}
    for key in order.keys:
        hindrance = _carry_out(db, order, key, at, providers)
        if hindrance is not None:
            skipped[key] = hindrance
            continue
        by = order.user, order.caller, order.reason
        db.execute(RECORD, (at, order.verb, order.kind, key, _message_of(db, order.kind, key), *by))
        done.append(key)
    return Decided(tuple(done), skipped, (), pauses(db))


def _carry_out(
    db: sqlite3.Connection, order: Order, key: str, at: int, providers: Collection[str]
) -> str | None:
    """Pause or resume one thing; return why not if that can't be done."""
    if order.kind not in _KINDS:
        return f'there is no order "{order.verb}" for the kind {order.kind}'
    kind = PauseKind(order.kind)
    if order.verb is Action.RESUME:
        return None if end_pause(db, kind, key) else "it isn't paused"
    hindrance = _hindrance(db, kind, key, providers)
    if hindrance is None:
        until = None if order.lasts is None else at + int(order.lasts * SECOND)
        begin_pause(db, Pause(kind, key, at, until, order.user, order.caller, order.reason))
    return hindrance


def _hindrance(db: sqlite3.Connection, kind: PauseKind, key: str, providers: Collection[str]) -> str | None:
    match kind:
        case PauseKind.INTAKE:
            return None if key == INTAKE else "there is one intake only"
        case PauseKind.CHANNEL:
            return None if key in map(channel_of, providers) else "no such channel is configured"
        case PauseKind.PROVIDER:
            return None if key in providers else "no such provider is configured"
    if _NUMBER.fullmatch(key) is None or not -(2**63) <= int(key) < 2**63:
        return "its id is no integer of 64 bits"
    return hindrance_to_pause(db, int(key)) if kind is PauseKind.MESSAGE else None


def _message_of(db: sqlite3.Connection, kind: ItemKind | PauseKind, key: str) -> int | None:
    """The message that a decision is about; None: none, or one that isn't there yet."""
    if kind != PauseKind.MESSAGE:
        return None
    row = db.execute("SELECT id FROM message WHERE id = ?", (int(key),)).fetchone()
    return None if row is None else int(row[0])


def end_pauses(db: sqlite3.Connection, now: int) -> Sequence[Pause]:
    """Resume what was paused until now, and record that; return all other pauses."""
    for each in ended_pauses(db, now):
        end_pause(db, each.kind, each.key)
        message_id = _message_of(db, each.kind, each.key)
        db.execute(RECORD, (now, Action.RESUME, each.kind, each.key, message_id, None, None, OVER))
    return pauses(db)
