"""The sandbox's state in memory: its data, what was sent to it, and planned faults."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from deliveryd.sandbox.faults import (
    ENDPOINTS,
    REFUSED_TRIES,
    Fault,
    Pass,
    StandInChannel,
    StandInEndpoint,
    Temper,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request to any endpoint. Header names are in lower case."""

    endpoint: str
    method: str
    target: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that a provider accepted. `at` is an ISO instant in UTC.

    `message_id` is `reference` where that is a whole number. `duplicate_of` is the `seq` of the message that
    was accepted under the same idempotency key before; a duplicate reaches the customer only once.
    """

    seq: int
    at: str
    channel: StandInChannel
    provider_id: str
    message_id: int | None
    reference: str | None
    idempotency_key: str | None
    to: str
    payload: Mapping[str, Any]
    headers: Mapping[str, str]
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to send a message to a provider, with the status of the response (0: none)."""

    at: str
    channel: StandInChannel
    to: str
    reference: str | None
    idempotency_key: str | None
    status: int


@dataclass(frozen=True, slots=True)
class PlannedReceipt:
    """A provider's receipt. `answered` is the status of the response, None without one."""

    channel: StandInChannel
    provider_id: str
    status: Literal["delivered", "failed"]
    at: str
    answered: int | None


_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class Element:
    """One element of the queue's array as raw text, with its id where it has an integer one."""

    text: str
    id: int | None
    fields: dict[str, Any]


def element(value: dict[str, Any] | str) -> Element:
    """Return an element for a text or an object; text that isn't a JSON object is kept verbatim."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    fields = parsed if isinstance(parsed, dict) else {}
    return Element(text, _identifier(fields.get("id")), fields)


def _identifier(value: object) -> int | None:
    """Return a value as an integer, also if written as `6.0`, where that is exact."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value if type(value) is int else None


class Offers:
    """Messages waiting, and messages taken that are not confirmed yet.

    A message without an integer id can never be confirmed, so it is offered once only.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: deque[Element] = deque()
        self._taken: dict[int, tuple[Element, float]] = {}

    def add(self, offered: Iterable[Element]) -> None:
        """Append these to the queue."""
        self._waiting.extend(offered)

    def take(self, count: int, redeliver_after: float) -> list[Element]:
        """Return the next `count` elements; those taken over `redeliver_after` seconds ago come first."""
        now = self._clock()
        before = now - redeliver_after
        overdue = list(itertools.takewhile(lambda id_: self._taken[id_][1] <= before, self._taken))
        self._waiting.extendleft(self._taken.pop(id_)[0] for id_ in reversed(overdue))
        batch = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        for offered in batch:
            if offered.id is not None:
                self._taken.pop(offered.id, None)
                self._taken[offered.id] = offered, now
        return batch

    def confirm(self, message_id: int) -> None:
        """Confirm a message, so that it isn't delivered again."""
        self._taken.pop(message_id, None)

    @property
    def waiting(self) -> int:
        """Return the number of waiting messages, without overdue ones."""
        return len(self._waiting)

    @property
    def unconfirmed(self) -> int:
        """Return the number of messages taken and not confirmed."""
        return len(self._taken)


Group: TypeAlias = Literal["merchants", "offers", "benefits", "privileges", "regions", "rewards"]

CUSTOMER_GROUPS: tuple[Group, ...] = get_args(Group)

ReportedEvent: TypeAlias = dict[str, Any]


def now_text() -> str:
    """Now in UTC with microseconds and `Z`, the form of the interface's timestamps (interface 6)."""
    return instant_text(datetime.now(UTC))


def instant_text(at: datetime) -> str:
    """Write an instant in UTC in the same form."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class SandboxState:
    """The sandbox's memory. Methods may be called from any thread; each is one step for all others.

    `changed` is notified after each step, so that who waits for something wakes at once. Durations are
    seconds. Without an entry in `receipt_targets` for its channel, a provider sends no receipts; real
    providers send theirs to `receipts_server`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = threading.Condition()
        self.version = 0
        self.base_url = ""

        self.token: str | None = None
        self.redeliver_after = 30.0
        self.page_size = 50
        self.hang_seconds = 60.0
        self.receipt_targets: dict[str, str] = {}
        self.receipts_server: str | None = None
        self.receipt_delay = 0.0
        self.receipt_secret = "sandbox-receipts"  # noqa: S105 - a stand-in's secret guards nothing
        self.reject_event: Callable[[ReportedEvent], bool] = _reject_none

        self.faults: dict[StandInEndpoint, list[Fault]] = {endpoint: [] for endpoint in ENDPOINTS}
        self.standing_faults: dict[StandInEndpoint, Fault] = {}

        self.offers = Offers(clock)
        self.enqueued: dict[int, Element] = {}
        self.notes: dict[int, str] = {}
        self.settings: dict[int, dict[str, Any] | str | bytes] = {}
        self.customers: dict[int, dict[Group, list[dict[str, Any]]]] = {}
        self.entities: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}

        self.requests: Counter[str] = Counter()
        self.settings_requests: Counter[int] = Counter()
        self.seen: deque[Seen] = deque(maxlen=1000)
        self.takes: list[int] = []
        self.taken: list[str] = []
        self.events: list[ReportedEvent] = []
        self.event_batches: list[int] = []
        self.refused_batches: list[str] = []
        self.received: list[ReceivedMessage] = []
        self.attempts: list[Attempt] = []
        self.receipts: list[PlannedReceipt] = []

        self._sequence = itertools.count(1)
        self._events_of: defaultdict[int, list[ReportedEvent]] = defaultdict(list)
        self._by_key: dict[tuple[str, str], ReceivedMessage] = {}
        self._by_reference: dict[tuple[str, str], ReceivedMessage] = {}
        self._tries: Counter[tuple[str, ...]] = Counter()

    # -- what tests and the demo put in

    def enqueue(self, *messages: dict[str, Any] | str) -> None:
        """Append messages to the queue; a text is served verbatim."""
        offered = [element(message) for message in messages]
        with self.changed:
            self.offers.add(offered)
            self.enqueued.update((each.id, each) for each in offered if each.id is not None)
            self._notify()

    def fail(self, endpoint: StandInEndpoint, *faults: Fault) -> None:
        """Plan one fault for each of the next requests to `endpoint`, in this order."""
        with self.changed:
            self.faults[endpoint].extend(faults)

    def fail_until_healed(self, endpoint: StandInEndpoint, fault: Fault) -> None:
        """Make every request to `endpoint` fail until `heal`; planned single faults come first."""
        with self.changed:
            self.standing_faults[endpoint] = fault

    def heal(self, endpoint: StandInEndpoint) -> None:
        """Remove all faults planned for `endpoint`."""
        with self.changed:
            self.faults[endpoint].clear()
            self.standing_faults.pop(endpoint, None)

    def add_entity(self, group: Group, entity_id: int, texts: Mapping[str, dict[str, Any]]) -> None:
        """Serve the configuration of an entity in these languages (interface 4.5)."""
        with self.changed:
            self.entities[group, entity_id] = dict(texts)

    # -- what the endpoints do

    def next_fault(self, endpoint: StandInEndpoint) -> Fault:
        """Consume the fault planned for this request."""
        with self.changed:
            planned = self.faults[endpoint]
            return planned.pop(0) if planned else self.standing_faults.get(endpoint, Pass())

    def note_request(self, seen: Seen) -> None:
        """Count a request."""
        with self.changed:
            self.requests[seen.endpoint] += 1
            self.seen.append(seen)
            self._notify()

    def take(self, count: int) -> list[str]:
        """Return at most `count` messages as raw texts (interface 4.1)."""
        with self.changed:
            batch = [offered.text for offered in self.offers.take(count, self.redeliver_after)]
            self.takes.append(count)
            self.taken.extend(batch)
            self._notify()
            return batch

    def record_events(self, events: Sequence[ReportedEvent]) -> None:
        """Store a batch of events; a message with a `dequeued` event isn't delivered again."""
        with self.changed:
            self.event_batches.append(len(events))
            for event in events:
                self.events.append(event)
                self._events_of[event["messageId"]].append(event)
                if event["status"] == "dequeued":
                    self.offers.confirm(event["messageId"])
            self._notify()

    def refuse_batch(self, reason: str) -> None:
        """Record that a batch of events was answered 400, and why."""
        with self.changed:
            self.refused_batches.append(reason)
            self._notify()

    def read_settings(self, settings_id: int) -> dict[str, Any] | str | bytes | None:
        """Return the settings as stored, or None."""
        with self.changed:
            self.settings_requests[settings_id] += 1
            self._notify()
            return self.settings.get(settings_id)

    def accept(self, message: ReceivedMessage) -> ReceivedMessage:
        """Store a message; with a repeated idempotency key it is a duplicate with the first one's ID."""
        with self.changed:
            message = replace(message, seq=next(self._sequence))
            if message.idempotency_key is not None:
                first = self._by_key.setdefault((message.channel, message.idempotency_key), message)
                if first is not message:
                    message = replace(message, provider_id=first.provider_id, duplicate_of=first.seq)
            self.received.append(message)
            if message.reference is not None:
                self._by_reference.setdefault((message.channel, message.reference), message)
            self._notify()
            return message

    def accepted_as(self, channel: StandInChannel, reference: str | None) -> ReceivedMessage | None:
        """Return the message that was accepted on this channel under this reference, or None."""
        with self.changed:
            return None if reference is None else self._by_reference.get((channel, reference))

    def record_attempt(self, attempt: Attempt) -> None:
        """Record an attempt at a provider, and the response."""
        with self.changed:
            self.attempts.append(attempt)
            self._notify()

    def record_receipt(self, receipt: PlannedReceipt) -> None:
        """Record a receipt."""
        with self.changed:
            self.receipts.append(receipt)
            self._notify()

    def refuses(self, temper: Temper, *what: str) -> bool:
        """Count a try for a recipient of this temper; return whether it isn't to be accepted."""
        with self.changed:
            self._tries[temper.name, *what] += 1
            return self._tries[temper.name, *what] <= REFUSED_TRIES.get(temper, 0)

    # -- what tests and the inbox read

    def events_of(self, message_id: int, status: str | None = None) -> list[ReportedEvent]:
        """The events of one message in order of arrival, or those with one status."""
        with self.changed:
            events = self._events_of.get(message_id, ())
            return [event for event in events if status in (None, event["status"])]

    def statuses(self, message_id: int) -> list[str]:
        """The statuses reported for one message in order of arrival."""
        return [str(event["status"]) for event in self.events_of(message_id)]

    def accepted(self, channel: StandInChannel | None = None) -> list[ReceivedMessage]:
        """Return the accepted messages without duplicates, of one channel or of all."""
        with self.changed:
            return [
                message
                for message in self.received
                if message.duplicate_of is None and channel in (None, message.channel)
            ]

    def wait_for(self, predicate: Callable[[SandboxState], object], timeout: float = 5.0) -> None:
        """Block until `predicate` holds, checking after each change. Raises TimeoutError.

        Not for the thread whose event loop serves the sandbox.
        """
        with self.changed:
            if not self.changed.wait_for(lambda: bool(predicate(self)), timeout):
                raise TimeoutError(f"not seen within {timeout} s; {self.summary()}")

    def summary(self) -> str:
        """Return all counts, for the message of a failed wait."""
        with self.changed:
            return (
                f"requests {dict(self.requests)}, waiting {self.offers.waiting}, "
                f"unconfirmed {self.offers.unconfirmed}, "
                f"events {len(self.events)}, received {len(self.received)}, attempts {len(self.attempts)}, "
                f"receipts {len(self.receipts)}, refused batches {self.refused_batches[-3:]}"
            )

    def _notify(self) -> None:
        self.version += 1
        self.changed.notify_all()


def _reject_none(_event: ReportedEvent) -> bool:
    return False
