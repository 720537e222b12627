"""What operators order about things that lie aside, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from deliveryd.model import Entry
from deliveryd.states import State


class Kind(StrEnum):
    """What can lie aside."""

    EVENT = "event"  # a status event that the service refused; its key: the event's number
    MESSAGE = "message"  # one in doubt, or one whose `dequeued` was refused; its id
    MALFORMED = "malformed"  # an element of the queue that is no message; the start of its digest
    RECEIPT = "receipt"  # a provider's update that fits no attempt; its number


class Verb(StrEnum):
    """What can be done with it."""

    RESEND = "resend"  # a message in doubt: repeat the attempt under its own id
    SETTLE_SENT = "settle as sent"  # a message in doubt: somebody knows that it arrived
    SETTLE_FAILED = "settle as failed"  # a message in doubt: somebody knows that it didn't
    RETRY = "retry"
    DROP = "drop"


class Order(NamedTuple):
    """One thing to do with everything that these keys name."""

    verb: Verb
    kind: Kind
    keys: tuple[str, ...]


class Effect(NamedTuple):
    """What the line has to know when a message was moved from outside of it.

    `taken`: this message waits for its `dequeued` to be accepted. `waiting`: one more message waits (1), or
    one less (-1). `ended`: the ends that a message came to. `events`: how many entered the outbox.
    """

    taken: Entry | None = None
    waiting: int = 0
    ended: tuple[State, ...] = ()
    events: int = 0


SETTLED = Effect(ended=(State.SENT,), events=2)
"""A receipt settled a doubt: the message is sent, and confirmed."""


def receipt_effect(result: str, end: State) -> Effect | None:
    """What the line has to know of a receipt that says this end, by what it did (see `Journal.receive`)."""
    match result:
        case "matched":
            return Effect(ended=(end,), events=1)
        case "settled":
            return Effect(ended=(State.SENT, end), events=2)
        case "recalled":
            return Effect(waiting=-1, ended=(State.SENT, end), events=2)
        case _:
            return None


class Decided(NamedTuple):
    """What came of an order: the keys that it was done for, and for the others why it wasn't."""

    done: tuple[str, ...]
    skipped: Mapping[str, str]
    effects: tuple[Effect, ...]
