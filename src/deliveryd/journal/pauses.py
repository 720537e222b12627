"""What operators paused, as values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from deliveryd.model import format_instant
from deliveryd.runtime import waits

RECENT = 100_000
"""How many of the messages with the highest ids are examined for a settings id that was never taken."""


class PauseKind(StrEnum):
    """What can be paused."""

    INTAKE = "intake"  # the take of messages; its key: INTAKE
    CHANNEL = "channel"  # a channel, by its name: messages that would choose it
    PROVIDER = "provider"  # a provider, by its identity: other providers of the channel take its messages
    SETTINGS = "settings"  # messages with a settings id
    MESSAGE = "message"  # a message, by its id


INTAKE = "intake"
"""The key of a pause of the intake."""


class Pause(NamedTuple):
    """What is paused since when, until when (None: until it is resumed), by whom, and why."""

    kind: PauseKind
    key: str
    since: int
    until: int | None = None
    user: str | None = None
    caller: str | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """What is paused, as text for operators."""
        return self.key if self.kind is PauseKind.INTAKE else f"{self.kind} {self.key}"

    @property
    def who(self) -> str | None:
        """Who paused it: the user, and on whose behalf, as far as that is known."""
        if self.user is None or self.caller is None:
            return self.user or self.caller
        return f"{self.caller} (as {self.user})"

    def __str__(self) -> str:
        """What is paused, since when, until when, by whom, and why."""
        until = f", until {_second(self.until)}" if self.until is not None else ""
        by = f" by {self.who}" if self.who is not None else ""
        reason = f" ({self.reason})" if self.reason is not None else ""
        return f"{self.name} since {_second(self.since)}{until}{by}{reason}"

    @property
    def waits_for(self) -> str:
        """What its messages wait for."""
        return waits.end_of_pause(self.kind, self.key)


class PausedMessages(NamedTuple):
    """A pause, and how many messages wait for its end."""

    pause: Pause
    messages: int


class KnownIds(NamedTuple):
    """Which of the given ids the journal has: of messages, and of settings among the latest messages."""

    messages: frozenset[int]
    settings: frozenset[int]


def _second(instant: int) -> str:
    return f"{format_instant(instant)[:19]}Z"


def as_data(each: PausedMessages) -> Mapping[str, object]:
    """A pause and the number of its messages as JSON."""
    return {**pause_data(each.pause), "messages": each.messages}


def pause_data(pause: Pause) -> Mapping[str, object]:
    """A pause as JSON; instants as in events."""
    until = pause.until
    return {
        "kind": pause.kind,
        "key": pause.key,
        "since": format_instant(pause.since),
        "until": None if until is None else format_instant(until),
        "user": pause.user,
        "caller": pause.caller,
        "reason": pause.reason,
    }
