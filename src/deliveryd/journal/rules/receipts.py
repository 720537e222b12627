"""What follows from a receipt: pure decisions on what is known of its message, the same for every journal.

A receipt names a key by the id that the provider gave to an accepted try under it, or by a reference that
the provider was given and echoes: the key itself, or the message's id, which means its latest key on that
provider.
A message's latest key is present as long as the message may be tried under it; a failure under any other key
changes nothing, a delivery under any key settles the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from deliveryd.journal.orders import Effect
from deliveryd.journal.rows import spent_of
from deliveryd.model import Receipt, Transition
from deliveryd.states import State

AT_REST = frozenset({State.WAITING, State.IN_DOUBT})
BEFORE_A_STEP = frozenset({State.READY})
AFTER_A_STEP = AT_REST | BEFORE_A_STEP
"""States of messages that a receipt may settle: at any time, within a step from READY, and after one."""

NO_EFFECT = Effect()
"""The effect of a receipt that changes nothing."""

_KEY = re.compile(r"([0-9a-f]+)-(-?[0-9]{1,19})-[0-9a-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_LARGEST = 2**63


class Tried(NamedTuple):
    """A key that a message was tried under."""

    message_id: int
    key: int


class Matched(NamedTuple):
    """What a receipt's effect depends on, of its message. `failed_next` None: nothing was left to confirm.

    `is_only_try`: the accepted try is the only one at its provider. `sent_at`: when it began.
    """

    id: int
    state: int
    key: int
    accepted_at: int | None
    provider_id: str | None
    failed_next: int | None
    spent: str
    is_paused: int
    is_only_try: int
    sent_at: int | None = None

    def failed_before(self, provider: str) -> Iterator[str]:
        """Why the other providers failed that were tried before this one accepted the message."""
        for each in spent_of(self.spent):
            if each.provider != provider:
                yield f"{each.provider}: {each.reason}"


class Reference(NamedTuple):
    """What a reference that a provider echoes names: a message, and whether by its idempotency key."""

    message_id: int
    is_key: bool


class Consequence(Enum):
    """What a receipt leads to."""

    KEPT = auto()  # nothing yet: its message is in the line's hands
    NOTHING = auto()
    CONFIRMS = auto()  # the accepted try: it arrived, or failed
    SETTLES = auto()  # it proves that the message was sent, and then confirms that


def consequence(
    message: Matched, tried: Tried, receipt: Receipt, settleable: frozenset[State]
) -> Consequence:
    """Decide what a receipt for a key leads to, if it may settle messages in these states."""
    if not receipt.delivered and message.key != tried.key:
        return Consequence.NOTHING  # the message went on since, by another provider or an operator's word
    if message.accepted_at is not None:
        # By a reference an earlier try may be meant, whose failure shows nothing of the accepted one.
        is_meant = (
            message.is_only_try
            or message.provider_id is None
            or receipt.provider_id in ("", message.provider_id)
        )
        return Consequence.CONFIRMS if receipt.delivered or is_meant else Consequence.NOTHING
    if message.state in settleable or (message.state == State.FAILED and receipt.delivered):
        return Consequence.SETTLES
    is_moving = message.state in (State.READY, State.SENDING)
    return Consequence.KEPT if is_moving else Consequence.NOTHING


def fails_after_all(
    message: Matched, tried: Tried, about: Tried | None, receipt: Receipt, began: int
) -> bool:
    """Whether a receipt that came while a message had gone on fails it, as it stays sent under a key.

    `about` is what the receipt is about now, `began` the instant of the first try under the key. Before it,
    a failure was that of another key, also where the reference is the message's id.
    """
    is_named = bool(receipt.provider_id) and receipt.provider_id == message.provider_id
    if receipt.delivered or about != tried or not (is_named or receipt.received_at >= began):
        return False
    return consequence(message, tried, receipt, AT_REST) is Consequence.CONFIRMS


def settled_effect(message: Matched, events: int, provider: str) -> Effect:
    """The effect of a receipt that proved a message to be sent, where it was when it did."""
    less = -1 if message.state == State.WAITING else 0
    waiting, paused = (0, less) if message.is_paused else (less, 0)
    return Effect(None, waiting, (State.SENT,), events, None, paused, provider)


def goes_on(message: Matched, state: State, receipt: Receipt) -> bool:
    """Whether a reported failure leads to the next channel."""
    return bool(message.failed_next) and state is State.SENT and not receipt.delivered


def referred_by(reference: str, namespace: str) -> Reference | None:
    """Return what a reference names, of the journal with this namespace."""
    named = _KEY.fullmatch(reference)
    if named is not None and named[1] == namespace and _fits(named[2]):
        return Reference(int(named[2]), is_key=True)
    return Reference(int(reference), is_key=False) if _fits(reference) else None


def _fits(text: str) -> bool:
    """Whether it is a number that may be a message's id."""
    return _NUMBER.fullmatch(text) is not None and -_LARGEST <= int(text) < _LARGEST


def was_tried(transition: Transition) -> bool:
    """Whether a message was tried before this step."""
    return transition.entry.stay > 1 or transition.entry.stay_tries > (transition.after is State.SENDING)


def word_of(effect: Effect) -> str:
    """The word that a provider is answered with."""
    if effect.waiting < 0 or effect.paused < 0:
        return "recalled"
    return "settled" if State.SENT in effect.ended else "matched"


def applied_at(receipt: Receipt, at: int) -> Receipt:
    """A receipt that was kept, as of the instant at which it is applied.

    The clock may have been put back since it came: what follows from it would be due too late.
    """
    return receipt._replace(received_at=at)


def instead_of_step(effect: Effect, transition: Transition) -> Effect:
    """The effect of receipts that came during a try; where they settle, the events of the step count too."""
    if State.SENT in effect.ended:
        return effect._replace(waiting=0, events=effect.events + len(transition.events))
    return effect
