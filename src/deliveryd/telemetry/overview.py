"""What a worker shows of itself: the frozen values behind `/status`, the status page, `status` and `top`.

All of it can be written as JSON (`as_json`). Instants are ISO 8601 in UTC, lengths of time are seconds. Texts
are names from the configuration, reasons and rules of deliveryd: nothing of customers or templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "probing"]
Receiving = Literal["none", "reporting", "silent"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second."""

    taken: float = 0.0
    sent: float = 0.0
    delivered: float = 0.0
    failed: float = 0.0


@dataclass(frozen=True, slots=True)
class SendDelay:
    """Seconds from take to acceptance: half of the messages, and 99 of 100, took at most so long.

    None: no message was accepted.
    """

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt, or a connection, that failed. `code` is the verdict."""

    code: str
    reason: str
    at: str


@dataclass(frozen=True, slots=True)
class ProviderView:
    """One provider. `waiting` and `in_doubt` are in the journal, `queued` and `under_way` in the line.

    `rate` is attempts per second over the last ten seconds, `rate_limit` as it is configured. `since` is when
    the breaker opened. From the start of the worker count: attempts that were `accepted` and that `failed`,
    messages that were `delivered`, `unconfirmed` by their receipt deadline, and `overdue`. `share` is what it
    has of its own share, 1 unless its deliveries are slow; None: its channel has no `slow_after`.
    """

    identity: str
    channel: str
    enabled: bool
    waiting: int
    queued: int
    under_way: int
    concurrency: int
    rate: float
    rate_limit: str | None
    breaker: BreakerState
    since: str | None
    refused_settings: Sequence[int]
    last_failure: Failure | None
    in_doubt: int
    receipts: Receiving
    accepted: int
    failed: int
    delivered: int
    unconfirmed: int
    overdue: int
    share: float | None = None


@dataclass(frozen=True, slots=True)
class EventsView:
    """Status events: those that the service hasn't accepted yet, and those that it refused.

    `failing` are the messages that have one at which it fails, while it accepts others.
    """

    waiting: int
    refused: int
    failing: int = 0


@dataclass(frozen=True, slots=True)
class Oldest:
    """Age of the oldest message that neither ended nor is in doubt or paused, and of the oldest event."""

    message: float | None = None
    event: float | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes that are free on the disk of the journal's file, and those below which nothing is taken."""

    free: int
    reserve: int


@dataclass(frozen=True, slots=True)
class Paused:
    """A pause in force: of intake, a channel, a provider, a settings id or a message (`key`).

    `messages` wait for its end; `user` and `caller` ordered it: by the system's word, and by their own.
    """

    kind: str
    key: str
    since: str
    until: str | None
    messages: int
    user: str | None
    caller: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Reload:
    """The last reload of the configuration: `changes` are keys, `problems` are `place: what to do`."""

    at: str
    outcome: str
    changes: Sequence[str] = ()
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Whom the worker sends to: how many entries `safety.only_to` has, and `safety.share`, from 0 to 1.

    None: not named.
    """

    only_to: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class LimitView:
    """A budget with what is used of `most` until the end of its period, or a cap; `waiting` messages wait."""

    kind: Literal["budget", "cap"]
    name: str
    text: str
    waiting: int
    used: int = 0
    most: int = 0
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a worker at one instant.

    `paused_left_out`: how many pauses `paused` leaves out. `disk` None: the journal is in a database.
    """

    at: str
    version: str
    pid: int
    uptime_seconds: float
    alive: bool
    ready: bool
    reason: str
    rates_10s: Rates
    rates_60s: Rates
    delay: SendDelay
    in_flight: int
    in_flight_limit: int
    places_free: int
    messages: Mapping[str, int]
    waiting_for: Mapping[str, int]
    events: EventsView
    oldest: Oldest
    malformed: int
    receipts_unmatched: int
    providers: Sequence[ProviderView]
    disk: Disk | None
    paused: Sequence[Paused]
    paused_left_out: int
    warnings: Sequence[Mapping[str, object]]
    last_reload: Reload | None
    lanes: Mapping[str, Mapping[str, object]]
    loops: Mapping[str, float]
    safety: Limits | None = None
    """None: everybody is sent to."""

    limits: Sequence[LimitView] = ()
    """The budgets and the caps in force."""


@dataclass(frozen=True, slots=True)
class Points:
    """A part of the history: one value for each `interval` seconds in each series, the latest last.

    A value is None where nothing was measured.
    """

    interval: float
    taken: Sequence[float] = ()
    sent: Sequence[float] = ()
    delivered: Sequence[float] = ()
    failed: Sequence[float] = ()
    p50: Sequence[float | None] = ()
    p99: Sequence[float | None] = ()


def as_json(value: object) -> object:
    """Return a value of this module as mappings and lists, which JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(name): as_json(member) for name, member in value.items()}
    if isinstance(value, Sequence):
        return [as_json(member) for member in value]
    return value
