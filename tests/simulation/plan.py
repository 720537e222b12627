"""A plan: everything that will happen to a worker in one run of the simulation, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deliveryd.journal.orders import Action, ItemKind

CHANNELS = ("messenger", "sms", "email")
"""The channels, in the order in which they are tried."""

SMS = CHANNELS[1]
"""The channel whose addresses are phone numbers."""

DEVICES = CHANNELS[0]
"""The channel that sends to devices, where a plan has any."""

PROVIDERS: Mapping[str, tuple[str, ...]] = {
    name: (name, f"{name}/second", f"{name}/third") for name in CHANNELS
}
"""The providers that a channel can have; the first one bears the channel's own name."""

SERVER = "token server"
"""Its name among what hangs."""

HEALTHY = 1
"""The settings of the messages that need nothing that hangs, where a plan is fair."""


class Trouble(StrEnum):
    """What goes wrong with one request. "After" means that the other side did its work all the same."""

    NO_CONNECTION = "no connection"
    SLOW_CONNECTION = "slow to connect"
    RESET_BEFORE = "reset before the work"
    RESET_AFTER = "reset after the work"
    SILENCE_BEFORE = "time-out before the work"
    SILENCE_AFTER = "time-out after the work"
    GATEWAY_AFTER = "502 after the work"
    BROKEN_AFTER = "500 after the work"
    BUSY_AFTER = "503 after the work"
    OVERDUE_AFTER = "408 after the work"
    GARBAGE_AFTER = "garbage after the work"
    CUT_AFTER = "answer cut off after the work"
    DRIP_AFTER = "answer too late after the work, its first part in time"
    OVERSIZED_AFTER = "answer too large after the work"
    SLOW = "slow answer"
    LATE = "late work"
    BUSY = "503"
    BROKEN = "500"
    TOO_MANY = "429 with Retry-After"
    BAD_REQUEST = "400"
    CUT_REFUSAL = "400 whose body broke off"
    UNAUTHORIZED = "401"
    NOT_FOUND = "404"
    CONFLICT = "409"
    UNPROCESSABLE = "422"
    PAGE = "a page with 200, without the work"
    PAGE_NOT_FOUND = "a page with 404, without the work"
    NOTHING = "an empty 200, without the work"
    OPTED_OUT = "410: the recipient stopped the channel"


class Step(StrEnum):
    """A place in the worker's life at which it can be killed or asked to stop."""

    COMMIT_BEFORE = "before a commit"
    COMMIT_AFTER = "after a commit"
    QUEUE_ASKED = "queue asked"
    QUEUE_ANSWERED = "queue about to answer"
    EVENTS_POSTED = "events posted"
    EVENTS_NOTED = "events noted by the service"
    SENDING = "request at the provider"
    SENT = "message accepted by the provider"


HOUR = 60
"""Seconds of an hour of a budget."""


@dataclass(frozen=True, slots=True)
class End:
    """How a life of the worker ends: at the nth time that it comes by a step."""

    step: Step
    nth: int
    is_crash: bool


@dataclass(frozen=True, slots=True)
class Served:
    """The phone numbers that the table of a provider, or of its channel (`provider` is None), names."""

    provider: str | None
    countries: tuple[str, ...] | None
    prefixes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Life:
    """One start of the worker with its configuration. Without an end it goes on until it is idle."""

    channels: tuple[str, ...]
    hold: tuple[str, ...]
    """Channels that hold what is in doubt; the others repeat it."""
    end: End | None
    removed: tuple[str, ...] = ()
    """Providers that this life's configuration doesn't have."""
    disabled: tuple[str, ...] = ()
    """Providers that get nothing new."""
    needs_more: bool = False
    """The mappings of its providers need one more of the customer's values."""
    only_to: tuple[str, ...] | None = None
    """Whom this life's configuration sends to; None: to all customers of its `share`."""
    windows: tuple[Mapping[str, Any], ...] = ()
    """The rules of when messages may be sent, as in a configuration."""
    limits: tuple[Mapping[str, Any], ...] = ()
    """The rules of budgets and caps, as in a configuration."""
    priorities: tuple[Mapping[str, Any], ...] = ()
    """The rules of which settings ids go first or last, as in a configuration."""
    lifetime: float | None = None
    """Seconds for which messages are tried whose settings name no expiry."""
    served: tuple[Served, ...] = ()
    """Which phone numbers the channel SMS and its providers are sent; those without a table are sent all."""
    allows_premium: bool = False
    """The channel SMS sends to premium-rate numbers."""
    share: str | None = None
    """The share of the customers, in whole percent; None: all, unless `only_to` names some."""


@dataclass(frozen=True, slots=True)
class Reload:
    """So many seconds after the reload before, the worker's configuration is that of another life.

    `take` and `in_flight` are as in `Tuning`. `is_elsewhere`: the providers have other addresses.
    """

    after: float
    to: Life
    take: int
    in_flight: int
    is_elsewhere: bool


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of the worker that stay the same for all lives."""

    take: int
    in_flight: int
    concurrency: int
    attempts: int
    post: int
    intermediate: tuple[str, ...]
    breaker: int
    """Failures in a row that open a provider's breaker; 0: none do."""
    take_ahead: int = 0
    """Messages that may wait in the journal while more are taken than there are places."""
    service_timeout: float = 2.0
    cache_ttl: float = 300.0
    """Seconds for which what the directory said of a customer is kept."""
    unavailable_after: float = 900.0
    """Seconds for which all providers of a channel are down until its messages go to the next one."""
    receipt_deadline: float | None = None
    """Seconds within which what was sent has to be confirmed; then the next channel takes it."""
    failed_next: bool = False
    """Whether a failure that a provider reports leads to the next channel."""
    cost_guard: float | None = None
    """How many times as many SMS parts as before pause settings; None: none do."""
    rate: str | None = None
    """The rate of each provider, as in a configuration."""
    slow_after: float | None = None
    """Seconds after which a delivery counts as slow; None: none does."""
    lookup_after: float | None = None
    """Seconds after a doubt at which a provider is asked whether it has the message; None: none can be."""


class Named(StrEnum):
    """What a provider's report calls a message by, besides the provider's own id."""

    NOTHING = "nothing"
    KEY = "the idempotency key"
    MESSAGE = "the message's id"


class Offers(StrEnum):
    """How often the queue hands out an element."""

    AGAIN = "again after a lost answer"
    ONCE = "once"
    UNTIL_DEQUEUED = "until its dequeued is accepted"


@dataclass(frozen=True, slots=True)
class Report:
    """A provider's report of a message it accepted. `names`: what it echoes besides its own id."""

    delay: float
    status: str
    copies: int
    answer_lost: bool
    """The provider doesn't hear the answer to its first report, and sends it again."""
    names: Named


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the queue. `again`: numbers of requests after which the queue hands it out once more."""

    id: int
    settings_id: int
    customer_id: int
    variables: Mapping[str, str]
    reports: tuple[Report, ...] = ()
    again: tuple[int, ...] = ()
    refused: tuple[str, ...] = ()
    """Statuses that the service refuses for this message."""
    pardon: int = 0
    """How often it refuses them, until it accepts them after all; 0: for ever."""


@dataclass(frozen=True, slots=True)
class Person:
    """A customer that the directory knows."""

    name: str | None
    language: str | None
    phone: str | None
    email: str | None
    devices: tuple[str, ...] = ()
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """Settings: per language and block the fields; greetings; when they expire, in seconds of the run."""

    content: Mapping[str, Mapping[str, Mapping[str, str]]]
    expires: float | None


@dataclass(frozen=True, slots=True)
class Jump:
    """The wall clock jumps, forwards or back."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Suspension:
    """The worker's process stands still, while all others go on; then it meets what lies there."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """For some seconds of the run something gives no answer at all.

    `what`: "settings 3", "directory", or "host sms" for the name server that is asked for that host.
    """

    what: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Outage:
    """For some seconds of the run every request to a provider comes to the same trouble."""

    provider: str
    at: float
    seconds: float
    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Slowness:
    """From some second of the run on what some providers accept is delivered so many seconds later."""

    providers: tuple[str, ...]
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Rejections:
    """Until some second of the run all providers answer 401 for some messages, and 400 for some settings."""

    messages: frozenset[int]
    settings: frozenset[int]
    until: float


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """Some providers, or the service, accept only tokens, which end, and are revoked at some seconds."""

    clients: tuple[str, ...]
    """The providers, and "service", whose requests need a token each."""
    lifetime: float
    revoked: tuple[float, ...]
    well_from: float | None = None
    """Nothing is wrong but the token server, and that until this second; None: other things are as well."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """From some second of the run on the directory says this of its customers."""

    at: float
    people: Mapping[int, Person]


@dataclass(frozen=True, slots=True)
class OptOut:
    """At some second of the run a provider reports that a customer stopped its channel, or resumed it."""

    at: float
    provider: str
    customer_id: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Errand:
    """An operator comes in some life of the worker, and decides about everything of a kind that lies aside.

    Of recipients: about all whose address is known.

    After so many seconds, over the worker's control socket; None: before that life, with the journal at rest.
    """

    life: int
    after: float | None
    verb: Action
    kind: ItemKind


@dataclass(frozen=True, slots=True)
class Halt:
    """From some second of the run on an operator has something paused, for so many seconds.

    Then it is resumed; or it was paused for that time to begin with.
    """

    at: float
    seconds: float
    kind: ItemKind
    key: str
    ends_by_itself: bool


@dataclass(frozen=True, slots=True)
class Shortage:
    """From some second of the run on the journal's disk is full. `seen`: the system tells so beforehand."""

    at: float
    seconds: float
    seen: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `troubles` go by endpoint and number of the request; after the last one all is well."""

    seed: int
    tuning: Tuning
    messages: tuple[Message, ...]
    malformed: tuple[str, ...]
    templates: Mapping[int, Template]
    people: Mapping[int, Person]
    troubles: Mapping[str, tuple[Trouble | None, ...]]
    provider_seconds: float
    """What a provider takes for a message when nothing goes wrong."""
    most_events: int
    """A post of more events is answered 413."""
    directory_down: tuple[bool, ...]
    jumps: tuple[Jump, ...]
    shortages: tuple[Shortage, ...]
    errands: tuple[Errand, ...]
    lives: tuple[Life, ...]
    offers: Offers = Offers.AGAIN
    hangs: tuple[Hang, ...] = ()
    suspensions: tuple[Suspension, ...] = ()
    renewal: Renewal | None = None
    directory_seconds: float = 0.0
    """What the directory takes for an answer."""
    is_fair: bool = False
    """Nothing is wrong but the hangs, so messages of `HEALTHY` settings are sent soon."""
    weights: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 1))
    """The providers of all channels and their weights; as a rule each channel has one, of its own name."""
    outages: tuple[Outage, ...] = ()
    slowness: Slowness | None = None
    """Nothing is wrong but this, and reports have the time at which they are made."""
    opt_outs: tuple[OptOut, ...] = ()
    halts: tuple[Halt, ...] = ()
    reloads: tuple[Reload, ...] = ()
    """What happens to the configuration of each life, one after the other."""
    rejections: Rejections | None = None
    """Nothing is wrong but these."""
    tokens: TokenTerms | None = None
    strangers: tuple[int, ...] = ()
    """Lives before which a worker is started that has this journal, and another service's address."""
    moved: int | None = None
    """The life before which the service moves to another address, and an operator says so; None: none."""
    handed_at_once: int | None = None
    """The queue hands out no more in one answer; None: as many as are asked for."""
    has_spare: bool = False
    """Nothing is wrong but the outages, and each channel has a provider without one."""
    takes_turns: bool = False
    """Nothing is wrong but an outage and ends of lives, and one settings id has most messages."""
    has_devices: bool = False
    """A message over the channel of devices goes to each device of its customer."""

    def sends_to_devices(self, channel: str) -> bool:
        """Whether a channel makes a request for each device of a customer."""
        return self.has_devices and channel == DEVICES
