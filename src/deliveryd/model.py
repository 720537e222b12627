"""The frozen values that travel the line, and the clock that stamps them.

All instants are whole microseconds since 1970-01-01 UTC, all lengths of time are seconds.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, Protocol

from deliveryd.cleaning import cleaned
from deliveryd.iso8601 import read_instant
from deliveryd.states import State

BLOCKS = ("inApp", "messenger", "sms", "email")
"""The channel blocks that a language of the settings may hold (interface 2.2)."""

_MOST_REASONS = 5

SECOND = 1_000_000
"""Microseconds."""

AT_ONCE = 0
"""When a message is due that waits for nothing."""

NEVER = 253_402_300_799_999_999
"""The last instant that can be written: when a message is due that waits without a limit."""

STEP = SECOND
"""Microseconds from which a correction of the clock counts as a step; smaller ones are passed over."""

_made = tuple.__new__
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_USUAL = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|\+00:00)", re.ASCII)


def provider_identity(channel: str, name: str) -> str:
    """One text for a provider of a channel: `CHANNEL/NAME`, or `CHANNEL` where both have one name.

    Entries, queues, waits, receipts and metrics name a provider by it.
    """
    return channel if name == channel else f"{channel}/{name}"


def channel_of(provider: str) -> str:
    """The channel of a provider with this identity."""
    return provider.partition("/")[0]


class Clock(Protocol):
    """Where the line reads the time of day."""

    def now(self) -> int:
        """The present instant."""


class SteadyClock(Clock, Protocol):
    """A clock that may be set, and a measure beside it that may not."""

    def elapsed(self) -> int:
        """Microseconds since an instant that stays the same while the clock is read."""


class WallClock:
    """The computer's clock."""

    def now(self) -> int:
        """The present instant."""
        return time.time_ns() // 1000

    def elapsed(self) -> int:
        """Microseconds since the machine's start; it sleeps in them, too."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


@lru_cache(maxsize=64)
def format_instant(instant: int) -> str:
    """Write an instant the way events carry it: ISO 8601, UTC, six decimals, `Z` (interface 6)."""
    seconds, microseconds = divmod(instant, SECOND)
    return f"{_second(seconds)}.{microseconds:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """The instants of one second begin alike, and there are many of them."""
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds in each unit of a duration."""


def format_duration(seconds: float) -> str:
    """Format seconds as in the configuration file, in the largest unit that divides them."""
    for unit, size in reversed(TIME_UNITS.items()):
        if seconds >= size and abs(seconds / size - round(seconds / size)) < 1e-9:
            return f"{round(seconds / size)}{unit}"
    return f"{seconds * 1000:.6f}".rstrip("0").rstrip(".") + "ms"


def parse_instant(text: str) -> int:
    """Read an ISO 8601 instant with a time of day; without an offset it is UTC (interface 2.2).

    Raises ValueError when it is anything else, a bare date among them, or outside the years 1 to 9999.
    """
    if _USUAL.fullmatch(text):  # in a quarter of the time; in others, Python passes over what it can't read
        with suppress(ValueError):
            return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
    return read_instant(text)


class QueuedMessage(NamedTuple):
    """A message as the queue handed it over (interface 2.1); a variable that is a number is a NumberText."""

    id: int
    settings_id: int
    customer_id: int
    variables: Mapping[str, str]


INT64 = range(-(2**63), 2**63)


def number_of(id_: int) -> int:
    """The number under which the journal keeps a message: its id; of one beyond 64 bits a negative digest."""
    if id_ in INT64:
        return id_
    return int.from_bytes(hashlib.sha256(str(id_).encode()).digest()[:8], "big") | -(2**63)


class Malformed(NamedTuple):
    """An element of the queue's array that isn't a message: its raw JSON, why, and its id if it has one.

    The id may be an integer beyond 64 bits. `number` is what the journal keeps it under.
    """

    raw: str
    reason: str
    id: int | None

    @property
    def number(self) -> int | None:
        """The id as the journal keeps it."""
        return None if self.id is None else number_of(self.id)


SETTINGS_REFERENCE = "settings.reference"
"""The field of a rendered block that has the reference of its settings, if they have one."""


class Rendered(NamedTuple):
    """A block with its placeholders filled: block name, language, and its fields by dotted name."""

    block: str
    language: str
    fields: Mapping[str, str]


def size_of(entry: Entry, rendered: Rendered, customer: Customer | None) -> int:
    """The characters of all that a message may be written from: what its work grows with."""
    of_customer = () if customer is None else customer.fields.values()
    return len("".join([*rendered.fields.values(), *entry.variables.values(), *of_customer]))


class Content(NamedTuple):
    """What a message shows its customer on a channel: two tries with equal content are the same.

    `values` are the customer's values that the channel sends. Nothing is sent after `expires_at`.
    """

    rendered: Rendered
    values: Mapping[str, str]
    expires_at: int | None = None


class Spent(NamedTuple):
    """A provider that failed for good with a message, and why; `ends_channel`: so would its others."""

    provider: str
    reason: str
    ends_channel: bool = False


class Entry(NamedTuple):
    """A message as the journal holds it, with how far its delivery came.

    `provider` is the one it is bound to (None: not chosen yet), `counted_tries` how many of its attempts
    there count for `retry.attempts`, and `spent` the providers that failed for good with their reasons.
    `stay` is the number of its stay at a provider, `stay_tries` the number of tries of this stay, `begun_at`
    the instant of the first of them, and `via` the provider that they were made at where the message isn't
    bound to one any more. `generation` counts how often it began under a new key, by an operator's order or
    since a provider rejected it for sure and keeps the key of what it rejected; it belongs to its idempotency
    key (see `message_key`).
    `doubt`: the outcome of a try under this key is unknown. `content` is that of a try under this key that
    may have arrived, and `digest` that of the latest try; see `Journal`.
    `taken_at` is the instant at which it was recorded. `sent_by` is the provider that accepted it before, and
    didn't confirm in time that it arrived; or, if that is the present one, that accepted it for some of the
    customer's devices, and `content` names the others.
    """

    id: int
    settings_id: int
    customer_id: int
    variables: Mapping[str, str]
    provider: str | None = None
    counted_tries: int = 0
    stay: int = 1
    stay_tries: int = 0
    spent: tuple[Spent, ...] = ()
    doubt: bool = False
    content: Content | None = None
    digest: bytes | None = None
    begun_at: int = 0
    via: str | None = None
    taken_at: int = 0
    generation: int = 1
    sent_by: str | None = None

    # Each of these is less than half of the cost of `_replace`, and every message takes them.

    def bound(self, provider: str) -> Entry:
        """The message, bound to a provider; at another one than before its tries and its key are new ones."""
        if self.provider == provider:
            return self
        if self.via == provider:
            return self._replace(provider=provider, via=None)
        key = self.stay + 1 if self.stay_tries else self.stay
        return _made(
            Entry, (*self[:4], provider, 0, key, 0, self.spent, False, None, None, 0, None, *self[14:])
        )

    def begun(self, provider: str, digest: bytes | None, at: int) -> Entry:
        """The message with its next try at a provider; `digest` is that of its content."""
        if (
            self.provider is None and self.via is None and not self.stay_tries
        ):  # the first one, as with most messages
            return _made(
                Entry,
                (
                    *self[:4],
                    provider,
                    0,
                    self.stay,
                    1,
                    self.spent,
                    False,
                    None,
                    digest,
                    at,
                    None,
                    *self[14:],
                ),
            )
        entry = self if self.provider == provider else self.bound(provider)
        begun_at = entry.begun_at if entry.stay_tries else at
        return _made(
            Entry,
            (*entry[:7], entry.stay_tries + 1, *entry[8:11], digest, begun_at, None, *entry[14:]),
        )

    def tried(self) -> Entry:
        """The message after one more try that counts."""
        return _made(Entry, (*self[:5], self.counted_tries + 1, *self[6:]))

    def taken(self) -> Entry:
        """The message after one more try, which its provider accepted: nothing of it is left to repeat."""
        return _made(Entry, (*self[:5], self.counted_tries + 1, *self[6:9], False, None, None, *self[12:]))

    def sent_in_part(self, rest: Content) -> Entry:
        """The message after some devices took it; `rest` has those that it is repeated for."""
        return self._replace(doubt=True, content=rest, sent_by=self.provider)

    def _unbound(self) -> Entry:
        """The message without a provider: its stay is over, and its content is rendered again."""
        stay = self.stay + 1 if self.stay_tries else self.stay  # a stay without a try isn't counted
        return self._replace(
            provider=None, counted_tries=0, stay=stay, stay_tries=0, doubt=False, content=None, digest=None,
            begun_at=0, via=None,
        )  # fmt: skip

    def under_a_new_key(self) -> Entry:
        """The message after a try that its provider rejected for sure, and whose key it keeps."""
        return self._replace(generation=self.generation + 1)

    def anew(self) -> Entry:
        """The message as an operator has it begin again: with new keys at every provider."""
        return self._unbound()._replace(generation=self.generation + 1)

    def released(self) -> Entry:
        """The message that another provider may take; its stay goes on if none does (see `via`)."""
        return self._replace(
            provider=None, counted_tries=0, via=(self.provider or self.via) if self.stay_tries else None
        )

    def left(self, reason: str) -> Entry:
        """The message after it left its provider, whoever has it leave, with all that belongs to its stay.

        A provider that may have it is spent: when it came back, its content would differ under its key.
        One that doesn't have it for sure, or wasn't tried, may take it again.
        """
        return self._unbound() if self.content is None else self.given_up(reason)

    def given_up(self, reason: str) -> Entry:
        """The message after its provider failed for good."""
        provider = self.provider or self.via or ""
        return self._unbound()._replace(spent=(*self.spent, Spent(provider, reason)))

    def off_channel(self, reason: str) -> Entry:
        """The message after its channel failed for good, whichever provider sends."""
        return self._unbound()._replace(
            spent=(*self.spent, Spent(self.provider or "", reason, ends_channel=True))
        )

    def settled(self) -> Entry:
        """The message when nothing of it will be repeated any more."""
        if not self.doubt and self.content is None:
            return self
        return self._replace(doubt=False, content=None)

    def ended(self) -> Entry:
        """The message at its end: nothing is repeated any more, a doubt that was left stays known."""
        return self if self.content is None else self._replace(content=None)

    @property
    def was_tried(self) -> bool:
        """Whether there was an attempt, at any provider."""
        return self.stay_tries > 0 or self.stay > 1

    @property
    def is_sent_in_part(self) -> bool:
        """Whether some of the customer's devices have it, and it is repeated for others."""
        return self.sent_by is not None and self.sent_by == self.provider

    @property
    def failed_since_sent(self) -> bool:
        """Whether a provider failed for good after the one that accepted it."""
        return bool(self.spent) and self.spent[-1].provider != self.sent_by

    @property
    def may_have_arrived(self) -> bool:
        """Whether a try under the present key may have arrived, though it wasn't accepted."""
        return self.doubt or self.content is not None

    def ending(self, *reasons: str) -> str:
        """The details of its `error` event: why each provider failed before, these reasons, a doubt left."""
        before = (f"{each.provider}: {each.reason}" for each in self.spent)
        is_unknown = self.doubt and not self.is_sent_in_part
        doubt = (f"{self.provider}: outcome unknown",) if is_unknown else ()
        return "; ".join((*before, *reasons, *doubt))


def message_key(namespace: str, message_id: int, provider: str, generation: int) -> str:
    """A message's idempotency key at a provider: the same whenever it comes back there (design 4, promise 2).

    At most 40 characters of `[A-Za-z0-9-]`.
    """
    return f"{namespace}-{message_id}-{_key_tag(provider, generation)}"


def key_prefix(namespace: str, message_id: int) -> str:
    """What all keys of a message begin with."""
    return f"{namespace}-{message_id}-"


@lru_cache(maxsize=1024)
def _key_tag(provider: str, generation: int) -> str:
    digest = hashlib.blake2s(f"{provider} {generation}".encode(), digest_size=5).digest()
    return base64.b32encode(digest)[:6].decode().lower()


@dataclass(frozen=True, slots=True)
class LanguageContent:
    """One language: its greetings, and per block the string fields by dotted name (`button.url`).

    `unreadable` is why a block can't be read, by its name; `greetings` may be among them.
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
    """What the issuer has of a customer (interface 2.6).

    `fields` holds every named value by its name, `name`, `language`, `phone` and `email` among them, without
    what surrounds it and isn't seen (see `deliveryd.cleaning`). A value of which nothing is left is none.
    `flaw` is why nothing can be sent to them, whatever it is: what the issuer has of them can't be read.
    """

    id: int
    fields: Mapping[str, str]
    flaw: str | None = None

    def __post_init__(self) -> None:
        """Clean the fields, whichever directory they come from."""
        seen = {name: value for name, text in self.fields.items() if (value := cleaned(text))}
        object.__setattr__(self, "fields", seen)

    @property
    def name(self) -> str | None:
        """How the customer wishes to be addressed."""
        return self.fields.get("name")

    @property
    def language(self) -> str | None:
        """The customer's language, as the directory wrote it."""
        return self.fields.get("language")


class StatusEvent(NamedTuple):
    """A status of a message, to be reported to the service (interface 6).

    `told_as`: its id as the service wrote it, if the journal keeps the message under another number.
    """

    message_id: int
    status: str
    timestamp: int
    channel: str | None = None
    reported_at: int | None = None
    details: str | None = None
    told_as: int | None = None


class Outcome(NamedTuple):
    """What became of an attempt: the verdict's name, the provider's id for the message, and the reason.

    `words` are the provider's own words, if it refused or deferred the message.
    """

    verdict: str
    provider_id: str | None = None
    reason: str | None = None
    words: str | None = None


class Confirmation(NamedTuple):
    """What a message that was accepted may still lead to.

    `by` is its receipt deadline, an instant of the listening time, and `within` the length of that, both in
    microseconds; None: it has none. `failed_next`: a failure that is reported leads to the next channel.
    """

    by: int | None
    within: int | None
    failed_next: bool


class StopChange(NamedTuple):
    """From an instant on a recipient can't be reached on a channel any more, or can be again.

    `digest` stands for the address. `source` is `answer`, `receipt` or `operator`. `heard_at` is when a
    report came, by this worker's clock; so is `at` if the report has no instant (`is_dated` False).
    """

    channel: str
    digest: bytes
    at: int
    stopped: bool = True
    reason: str | None = None
    source: str = "answer"
    heard_at: int | None = None
    is_dated: bool = True


class OptOut(NamedTuple):
    """A provider's report that a recipient ended messages on a channel, or resumed them (`stopped` False).

    `at` is the provider's instant; the report came at `heard_at`, which is `at` too if it has none
    (`is_dated` False).
    """

    channel: str
    address: str
    stopped: bool
    at: int
    heard_at: int
    is_dated: bool = True


class BudgetShare(NamedTuple):
    """A budget in one period: from `since` to before `until`, at most so many messages, or SMS parts."""

    budget: str
    since: int
    until: int
    most: int
    in_parts: bool


class CapShare(NamedTuple):
    """At most so many messages of `settings` (empty: of all) to one customer within `per` microseconds."""

    cap: str
    settings: frozenset[int]
    most: int
    per: int


class Claim(NamedTuple):
    """What a try counts for: with its intent, and no more if its provider doesn't have the message for sure.

    `entry` is the message before the intent. `customer` is a digest; "": no cap counts it. It is known for
    `kept` microseconds that the customer got it.
    """

    entry: Entry
    parts: int
    budgets: tuple[BudgetShare, ...] = ()
    customer: str = ""
    caps: tuple[CapShare, ...] = ()
    kept: int = 0
    at: int = 0


class Transition(NamedTuple):
    """One step of one message; `deliveryd.transitions` makes them all.

    `entry` is the message as it is after the step. `outcome` ends the latest try, `due_at` is when a
    waiting message goes on, and `events` enter the outbox together with the step. `waits_for` names what
    wakes a waiting message before it is due (see `deliveryd.runtime.waits`). A step from READY to IN_DOUBT
    makes no try: its outcome is why the message isn't repeated. One to SENT from READY, or whose outcome
    isn't that it was accepted, has why the message stays sent. `confirmation` is that of an acceptance after
    which the message may still go on. `stops` are recorded with the try that they follow from. `claim` is
    counted with an intent, and given back with any other step.
    """

    entry: Entry
    before: State
    after: State
    at: int
    due_at: int | None = None
    outcome: Outcome | None = None
    events: tuple[StatusEvent, ...] = ()
    waits_for: str | None = None
    confirmation: Confirmation | None = None
    stops: tuple[StopChange, ...] = ()
    claim: Claim | None = None


class Receipt(NamedTuple):
    """A provider's update for a message that it was given. `delivered` False: it failed after all.

    `reference` is the message's key or its id, when the provider was given one and echoes it. `provider_id`
    is empty if the provider reports by the reference alone.
    """

    provider: str
    provider_id: str
    delivered: bool
    status: str
    reported_at: int
    received_at: int
    reference: str | None = None


class ProgressReport(NamedTuple):
    """A provider's report that a message is under way; `status` is the service's intermediate status."""

    provider: str
    provider_id: str
    status: str
    received_at: int
    reference: str | None = None


class SharedReceipt(Receipt):
    """A receipt of an account that others send by, too: it is kept only if it names a message of ours."""

    __slots__ = ()


class RecipientReport(ProgressReport):
    """A report of a recipient that names a message, only to learn whether it is ours; `status` is empty."""

    __slots__ = ()


class UnreadReport(NamedTuple):
    """A report of a list that can't be read, beside others that can: a part of its text, and why."""

    provider: str
    raw: str
    reason: str
    received_at: int


Reported = Receipt | ProgressReport | UnreadReport
"""What the journal records of a provider's request."""


class ReceiptStep(NamedTuple):
    """A step that a receipt leads to; the journal takes it by the message's id, without reading its entry."""

    before: State
    after: State
    event: StatusEvent

    @property
    def ended_at(self) -> int | None:
        """When the message ended by this step; None: it was sent before, and is delivered."""
        is_confirmed = self.before is State.SENT and self.after is State.DELIVERED
        return None if is_confirmed else self.event.timestamp
