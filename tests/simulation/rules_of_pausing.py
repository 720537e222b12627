"""Rules about what operators paused: nothing of it begins until it is resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deliveryd.journal.orders import ItemKind
from simulation.ledger import Asked, Held, Polled
from simulation.new_beginnings import FORGETS
from simulation.run import History

UNDER_WAY = 3.0
"""Seconds after the order in which an attempt that was under way may still reach its provider."""

HEARD_OF = 2.0
"""Seconds within which all workers of a journal hear of an order that one of them, or a command, recorded."""

TAKE_UNDER_WAY = 12.0
"""The same for a request of messages, which is tried several times."""


def broken_pauses(history: History) -> Iterator[str]:
    """What was sent, or taken, while it was paused."""
    settings = {message.id: message.settings_id for message in history.plan.messages}
    ledger = history.ledger
    for held in ledger.held:
        what = f"{held.halt.kind} {held.halt.key}"
        if held.halt.kind is ItemKind.MESSAGE and int(held.halt.key) in _forgotten(history):
            continue  # its pause was forgotten with it
        if held.halt.kind is ItemKind.INTAKE:
            late = [
                polled.at
                for polled in ledger.polled
                if held.begun + TAKE_UNDER_WAY + _frozen(history, held, polled) < polled.at < held.ended
            ]
        else:
            late = [
                asked.at
                for asked in ledger.asked
                if held.begun + _under_way(history, held, asked) < asked.at < held.ended
                and _concerns(held, asked, settings)
            ]
        if late:
            yield f"{what} was paused at {held.begun:.1f} and used at {late[0]:.1f}"


def _forgotten(history: History) -> set[int]:
    """The messages that operators ordered to forget."""
    return {id_ for each in history.ledger.ordered if each.verb in FORGETS for id_ in each.message_ids}


def _under_way(history: History, held: Held, asked: Asked) -> float:
    """Seconds for which an attempt may be under way; a process that was frozen goes on where it stood."""
    if not history.is_shared:
        return UNDER_WAY
    return UNDER_WAY + HEARD_OF + _frozen(history, held, asked)


def _frozen(history: History, held: Held, used: Asked | Polled) -> float:
    """Seconds for which the process that used it stood still since it was paused."""
    still = history.ledger.stood_still
    return sum(each.within(held.begun, used.at) for each in still if each.life == used.life)


def _concerns(held: Held, asked: Asked, settings: Mapping[int, int]) -> bool:
    named = {
        ItemKind.CHANNEL: asked.channel,
        ItemKind.PROVIDER: asked.provider,
        ItemKind.SETTINGS: str(settings[asked.message_id]),
        ItemKind.MESSAGE: str(asked.message_id),
    }
    return named[held.halt.kind] == held.halt.key
