"""The frozen values that travel the line, and the clock that stamps them.

All instants are whole microseconds since 1970-01-01 UTC, all lengths of time are seconds.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, Protocol

BLOCKS = ("inApp", "messenger", "sms", "email")
"""The channel blocks that a language of the settings may hold (interface 2.2)."""

_MOST_REASONS = 5
_made = tuple.__new__
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where the line reads the time of day."""

    def now(self) -> int:
        """The present instant."""


class WallClock:
    """The computer's clock, kept from ever running backwards within one process."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> int:
        """The present instant, never before one that was given out already."""
        self._last = max(self._last, time.time_ns() // 1000)
        return self._last


def format_instant(instant: int) -> str:
    """Write an instant the way events carry it: ISO 8601, UTC, six decimals, `Z` (interface 6)."""
    seconds, microseconds = divmod(instant, 1_000_000)
    return f"{_second(seconds)}.{microseconds:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """The instants of one second begin alike, and there are many of them."""
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


def parse_instant(text: str) -> int:
    """Read an ISO 8601 instant with a time of day; without an offset it is UTC (interface 2.2).

    Raises ValueError when it is anything else, a bare date among them, or outside the years 1 to 9999.
    """
    if len(text) < 16 or text[10] not in "Tt ":
        raise ValueError(f"not an ISO 8601 instant: {text[:40]!r}")
    moment = datetime.fromisoformat(text.upper())
    try:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"not within the years 1 to 9999: {text[:40]!r}") from None
    return (moment - _EPOCH) // timedelta(microseconds=1)


class QueuedMessage(NamedTuple):
    """A message as the queue handed it over (interface 2.1); values of variables are the JSON's own text."""

    id: int
    settings_id: int
    customer_id: int
    variables: Mapping[str, str]


class Malformed(NamedTuple):
    """An element of the queue's array that isn't a message: its raw JSON, why, and its id if it has one."""

    raw: str
    reason: str
    id: int | None


class Entry(NamedTuple):
    """A message as the journal holds it, with how far its delivery came.

    `lane` is the channel it is bound to (None: not chosen yet), `tries` the attempts already made there,
    `attempts` those made anywhere, `spent` the channels that failed for good with their reasons, and
    `doubt` the id of an attempt whose outcome is unknown and that is to be repeated under the same id.
    `taken_at` is the instant at which it was recorded.
    """

    id: int
    settings_id: int
    customer_id: int
    variables: Mapping[str, str]
    lane: str | None = None
    tries: int = 0
    attempts: int = 0
    spent: tuple[tuple[str, str], ...] = ()
    doubt: str | None = None
    taken_at: int = 0

    # Each of these is less than half of the cost of `_replace`, and every message takes them.

    def bound(self, lane: str) -> Entry:
        """The message, bound to a channel; on a new one its tries begin anew."""
        return self if self.lane == lane else _made(Entry, (*self[:4], lane, 0, *self[6:]))

    def begun(self, lane: str) -> Entry:
        """The message on a channel, with the number of its next attempt; one in doubt keeps its own."""
        if self.doubt is not None:
            return self.bound(lane)
        tries = self.tries if self.lane == lane else 0
        return _made(Entry, (*self[:4], lane, tries, self.attempts + 1, *self[7:]))

    def tried(self) -> Entry:
        """The message after one more try."""
        return _made(Entry, (*self[:5], self.tries + 1, *self[6:]))

    def sure(self) -> Entry:
        """The message with nothing in doubt."""
        return self if self.doubt is None else self._replace(doubt=None)

    def ending(self, *reasons: str) -> str:
        """The details of its `error` event: why each channel failed that was tried before, then these."""
        return "; ".join((*(f"{channel}: {reason}" for channel, reason in self.spent), *reasons))


def attempt_id(namespace: str, message_id: int, number: int) -> str:
    """The name of an attempt, the same whenever it is asked for: it serves as idempotency key too."""
    return f"{namespace}-{message_id}-{number}"


@dataclass(frozen=True, slots=True)
class LanguageContent:
    """One language: its greetings, and per block the string fields by dotted name (`button.url`).

    `unreadable` says why a block can't be read, by its name; `greetings` may be among them.
    """

    general: str | None = None
    personal: str | None = None
    blocks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a message is made from (interface 2.2). Nothing is sent after `expires_at`."""

    id: int
    expires_at: int | None
    content: Mapping[str, LanguageContent]
    reference: str | None = None

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Why blocks of these settings can't be read, each reason once."""
        languages = self.content.values()
        return tuple(dict.fromkeys(why for language in languages for why in language.unreadable.values()))


def first_of(reasons: Collection[str]) -> Iterator[str]:
    """As many reasons as fit on a line, and how many more there are."""
    yield from islice(reasons, _MOST_REASONS)
    if len(reasons) > _MOST_REASONS:
        yield f"and {len(reasons) - _MOST_REASONS} more"


@dataclass(frozen=True, slots=True)
class Customer:
    """What the issuer knows of a customer (interface 2.6); a blank value counts as none.

    `fields` holds every named value by its name, `name`, `language`, `phone` and `email` among them.
    """

    id: int
    fields: Mapping[str, str]

    @property
    def name(self) -> str | None:
        """How the customer wishes to be addressed."""
        return self.fields.get("name")

    @property
    def language(self) -> str | None:
        """The customer's language, as the directory wrote it."""
        return self.fields.get("language")


class Rendered(NamedTuple):
    """A block with its placeholders filled: block name, language, and its fields by dotted name."""

    block: str
    language: str
    fields: Mapping[str, str]


class StatusEvent(NamedTuple):
    """A status of a message that the service is to hear of (interface 6)."""

    message_id: int
    status: str
    timestamp: int
    channel: str | None = None
    reported_at: int | None = None
    details: str | None = None
