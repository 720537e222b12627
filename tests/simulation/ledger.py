"""What the world saw of a worker: records that are only ever added, in the order in which things happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deliveryd.journal.orders import Action, ItemKind
from simulation.plan import Halt, Named, Trouble

KEPT_FOR_LATER = 202
"""In place of a status: the report was recorded, and fits nothing yet."""

UNHEARD = 999
"""In place of a status: the worker's life ended before it answered."""


class Handed(NamedTuple):
    """The queue put an element into an answer, at a second of the run."""

    order: int
    life: int
    request: int
    raw: str
    id: int | None
    at: float


class Taken(NamedTuple):
    """The queue was asked and hands over these elements; the first `whole` of them come through unharmed.

    `trouble` is what happens to the request.
    """

    life: int
    request: int
    raws: tuple[str, ...]
    whole: int
    trouble: Trouble | None


class TokenAsked(NamedTuple):
    """The token server was asked by one of the worker's clients."""

    order: int
    life: int
    request: int
    client: str
    trouble: Trouble | None
    at: float


class TokenRefused(NamedTuple):
    """A request was refused for its token. `had_ended`: not because it was revoked."""

    client: str
    had_ended: bool


class Posted(NamedTuple):
    """The service accepted events. `request` is the number of the request that brought them."""

    order: int
    life: int
    request: int
    bodies: tuple[str, ...]
    at: float


class Asked(NamedTuple):
    """A provider was asked to take a message, whether it did so or not, when the first byte was written.

    Also when there was no connection for it.
    """

    order: int
    life: int
    request: int
    trouble: Trouble | None
    provider: str
    message_id: int
    key: str
    content: Mapping[str, str]
    now: int
    """The time of day."""
    at: float
    journaled: bool
    """Whether the intent to send this very attempt was in the journal's file."""

    @property
    def channel(self) -> str:
        """The channel of the provider."""
        return channel_served_by(self.provider)


class Accepted(NamedTuple):
    """A provider took a message for the first time under a key."""

    order: int
    provider: str
    message_id: int
    key: str
    provider_id: str

    @property
    def channel(self) -> str:
        """The channel of the provider."""
        return channel_served_by(self.provider)


class Reported(NamedTuple):
    """The worker answered a provider's report, which was sent as `begun` in the order of all.

    `life` is the worker's, and `at` the second of the run.
    """

    order: int
    begun: int
    provider_id: str
    status: str
    reported_at: str
    answer: int
    names: Named
    life: int
    at: float


class Ordered(NamedTuple):
    """An operator gave an order about these messages; it may or may not have been carried out.

    `provider_ids` are those of the receipts that it was about.
    """

    order: int
    verb: Action
    kind: ItemKind
    message_ids: tuple[int, ...]
    provider_ids: tuple[str, ...]


class LookedUp(NamedTuple):
    """A provider was asked whether it has a message. `found`: what it knows when the question arrives."""

    order: int
    life: int
    request: int
    provider: str
    message_id: int
    key: str
    found: bool
    trouble: Trouble | None
    at: float


class Change(NamedTuple):
    """A recipient stopped a channel or resumed it, as somebody told the worker, begun as `begun`.

    `known` is the order of all and `known_at` the second of the run at which the worker said that it had
    recorded it; None: it didn't.
    """

    begun: int
    channel: str
    address: str
    stopped: bool
    known: int | None
    known_at: float


@dataclass(slots=True)
class Held:
    """An order to pause something was carried out until `begun`; nothing resumed it before `ended`."""

    halt: Halt
    begun: float
    ended: float


class Stillness(NamedTuple):
    """The process of a life was frozen from a second of the run until another one."""

    life: int
    begun: float
    ended: float

    def within(self, begun: float, ended: float) -> float:
        """How much of a time it was."""
        return max(min(self.ended, ended) - max(self.begun, begun), 0.0)


class Polled(NamedTuple):
    """The queue was asked for messages."""

    order: int
    life: int
    request: int
    trouble: Trouble | None
    at: float


class Event(NamedTuple):
    """A status event as the service read it."""

    message_id: int
    status: str
    details: str | None
    fields: Mapping[str, Any]


@dataclass(slots=True)
class Ledger:
    """All records of a run."""

    handed: list[Handed] = field(default_factory=list)
    taken: dict[int, Taken] = field(default_factory=dict)
    """By the number of the request."""
    posted: list[Posted] = field(default_factory=list)
    tokens_asked: list[TokenAsked] = field(default_factory=list)
    tokens_refused: list[TokenRefused] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    reported: list[Reported] = field(default_factory=list)
    ordered: list[Ordered] = field(default_factory=list)
    looked_up: list[LookedUp] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    polled: list[Polled] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    """Numbers of the requests whose answer reached the worker."""
    ended: dict[int, int] = field(default_factory=dict)
    """By the number of a request: when it was answered, or given up by its worker, in the order of all."""
    cut_short: set[int] = field(default_factory=set)
    """Numbers of the requests that were under way when their worker was killed."""
    refused_events: set[str] = field(default_factory=set)
    """Bodies of events that were refused when they came alone."""
    failed_events: set[str] = field(default_factory=set)
    """Bodies of events that came alone, and that the service failed at."""
    unusable_settings: set[int] = field(default_factory=set)
    """Settings of which the service said, or seemed to say, that they don't exist."""
    only_said: set[int] = field(default_factory=set)
    """Lives that said of a batch that it may be lost, where the disk had no room to keep that."""
    crashed: set[int] = field(default_factory=set)
    """Lives that didn't end on their own."""
    reloaded: set[int] = field(default_factory=set)
    """Lives that went on as the next one, by a reload."""
    reconfigured: dict[int, float] = field(default_factory=dict)
    """Lives that began by a reload, with the second of the run."""
    troubles: Counter[Trouble | None] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    """By endpoint, those that failed too."""
    commits: int = 0
    """Transactions of workers' journals."""
    without_room: int = 0
    """Commits that found no room on the disk."""
    statements: int = 0
    """Of several workers' journals, those that the stage let go on one by one."""
    blocked: int = 0
    """How often one of them waited for another worker's lock."""
    fenced: int = 0
    """Workers whose lease others ended."""
    fence_orders: int = 0
    """Workers whose lease operators ended."""
    adoptions: int = 0
    """Logs of ended workers that others took over."""
    stood_still: list[Stillness] = field(default_factory=list)
    cut_off: list[Stillness] = field(default_factory=list)
    """When workers couldn't reach their database."""
    accounts: int = 0
    """Accounts that workers gave of their journals."""
    batches_lost: int = 0
    """Batches of which the journal says at the end that they may have been lost."""
    seconds: float = 0.0
    """How long the run took, by its own clock."""
    complaints: list[str] = field(default_factory=list)
    """What was wrong already while it happened."""
    length: int = 0

    def process_of(self, life: int) -> list[int]:
        """The lives of the same process up to this one, the latest first."""
        found = [life]
        while found[-1] - 1 in self.reloaded:
            found.append(found[-1] - 1)
        return found

    def brought_token(self, asked: TokenAsked) -> bool:
        """Whether a request to the token server brought a token."""
        return asked.trouble in {None, Trouble.LATE} and asked.request in self.answered

    def number(self) -> int:
        """The place of the next record in the order of all."""
        self.length += 1
        return self.length


def channel_served_by(provider: str) -> str:
    """The channel whose provider this is: `sms` of `sms` and of `sms/second`."""
    return provider.partition("/")[0]


def read_event(body: str) -> Event:
    """Read an event."""
    fields = json.loads(body)
    return Event(fields["messageId"], fields["status"], fields.get("details"), fields)
