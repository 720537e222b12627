"""Operators' orders about messages and events that are held or set aside, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from deliveryd.journal.pauses import Pause
from deliveryd.model import Entry, StopChange
from deliveryd.states import State


class ItemKind(StrEnum):
    """What an order can be about: what is held or set aside, and what can be paused."""

    EVENT = "event"  # a status event that the service refused; its key: the event's number
    MESSAGE = "message"  # one in doubt, or one whose `dequeued` was refused; its id
    MALFORMED = "malformed"  # an element of the queue that is no message; the start of its digest
    RECEIPT = "receipt"  # a provider's update that fits no attempt; its number
    REPORT = "report"  # a provider's report that can't be read; the start of its digest
    INTAKE = "intake"  # see `pauses.PauseKind` for this and what follows
    CHANNEL = "channel"
    PROVIDER = "provider"
    SETTINGS = "settings"
    SERVICE = "service"  # the one that the journal belongs to, by its base address
    WORKER = "worker"  # one of a shared journal, by its name
    RECIPIENT = "recipient"  # one on a channel, "CHANNEL ADDRESS" or "CHANNEL digest:HEX"


class Action(StrEnum):
    """What can be done with it."""

    RESEND = "resend"  # a message in doubt: try it again under its key
    RESEND_ANEW = "resend under a new key"  # a message in doubt: begin it again, though it may arrive twice
    SETTLE_SENT = "settle as sent"  # a message in doubt that is known to have arrived
    SETTLE_FAILED = "settle as failed"  # a message in doubt that is known not to have arrived
    RETRY = "retry"
    DROP = "drop"
    STOP = "stop"  # a recipient: send nothing to them on the channel
    LIFT = "lift"  # a recipient: send to them again
    ERASE = "erase"  # a message that has ended, or what was set aside: remove it
    BEGIN_ANEW = "begin anew"  # a message that failed: send it once more, under new keys
    BEGIN_ANEW_ANYWAY = "begin anew, duplicates accepted"  # the same, though it may arrive twice
    FORGET = "forget"  # a message that has ended: take it as new if the queue gives it again
    FORGET_ANYWAY = "forget, duplicates accepted"  # the same, though it may arrive twice
    PAUSE = "pause"  # the intake, a channel, a provider, settings, a message
    RESUME = "resume"  # the same
    ADOPT = "adopt"  # a service that has another address than the journal knew
    FENCE = "fence"  # a worker: it ends, and others take over what it has
    ACCEPT_LOSS = "accept loss"  # what a worker noticed: the database lost commits; the workers go on


LONGEST_ORDERED_PAUSE = 3650 * 86400.0
"""Seconds of a pause that ends by itself."""

FORGETTING = frozenset({Action.FORGET, Action.FORGET_ANYWAY})
"""Orders after which an id is taken as new."""

PAUSING = frozenset({Action.PAUSE, Action.RESUME})
"""Orders that change what all workers of a journal share."""

REMOVALS = frozenset({Action.ERASE, *FORGETTING})
"""Orders that remove messages, each with its own pause."""

NOT_RETRIED: Mapping[ItemKind, str] = {
    ItemKind.MALFORMED: (
        "a malformed element can't be retried: it would be malformed again; drop it instead"
    ),
    ItemKind.REPORT: ("it can't be read; correct the receipt table, and have the provider report it again"),
}
"""Why things of these kinds are never retried."""


class Order(NamedTuple):
    """One thing to do with everything that these keys name.

    `user` gave it, by the system's word; `caller` is the name that the command was given for the record, and
    `reason` why it was given. `lasts`: the seconds of a pause; None: until it is resumed.
    """

    verb: Action
    kind: ItemKind
    keys: tuple[str, ...]
    user: str | None = None
    caller: str | None = None
    reason: str | None = None
    lasts: float | None = None


class Delivered(NamedTuple):
    """When a message was sent that is delivered, and when its provider reports that it was."""

    sent_at: int
    reported_at: int


class Effect(NamedTuple):
    """What a step that the journal took by itself changes in the recorder's counts.

    `taken`: this message waits for its `dequeued` to be accepted. `waiting`: one more message waits (1), or
    one less (-1). `paused`: the same for messages that are paused, which aren't counted as waiting. `ended`:
    the ends that a message came to, at `provider`. `events`: how many entered the outbox. `stop`: a change of
    the suppression list. `delivered`: it arrived, by its only or latest try.
    """

    taken: Entry | None = None
    waiting: int = 0
    ended: tuple[State, ...] = ()
    events: int = 0
    stop: StopChange | None = None
    paused: int = 0
    provider: str | None = None
    delivered: Delivered | None = None

    def __or__(self, other: Effect) -> Effect:
        """Both, one after the other, of one message."""
        return Effect(
            self.taken or other.taken,
            self.waiting + other.waiting,
            self.ended + other.ended,
            self.events + other.events,
            self.stop or other.stop,
            self.paused + other.paused,
            self.provider or other.provider,
            self.delivered or other.delivered,
        )


class Decided(NamedTuple):
    """The result of an order: the keys that it was carried out for, and for the others why it wasn't.

    `pauses` are all that are in force after an order that changes them; None: it changes none.
    """

    done: tuple[str, ...]
    skipped: Mapping[str, str]
    effects: tuple[Effect, ...]
    pauses: Sequence[Pause] | None = None
