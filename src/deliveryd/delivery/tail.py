"""What happens to messages, as a stream of events for operators. No event holds personal data."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from deliveryd.delivery.failures import NO_PROVIDER, reason_of
from deliveryd.delivery.memory import Watcher
from deliveryd.journal.base import MatchedReceipt, OutboxRow
from deliveryd.journal.orders import Decided, ItemKind, Order
from deliveryd.model import Entry, Receipt, Reported, Transition, channel_of, format_instant
from deliveryd.runtime.waits import awaited
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, AutoResetEvent
from deliveryd.states import State

MOST_HELD = 2_000
"""Events held for a reader that is slower than the line; what is beyond is counted and left out."""

MOST_AT_ONCE = 200
"""Events handed to the reader at a time."""

FAILURES = frozenset(
    {"failed", "refused", "stopped", "misconfigured", "try_again", "in_doubt", "event_refused"}
)
"""Events of attempts and messages that failed."""


class TailFilter(NamedTuple):
    """Which events to stream: of one channel, of one message, or failures only."""

    channel: str | None = None
    message: int | None = None
    failed: bool = False

    def passes(self, event: TailEvent) -> bool:
        """Whether the event is streamed."""
        if self.message is not None and event.message != self.message:
            return False
        if self.channel is not None and (
            event.provider is None or channel_of(event.provider) != self.channel
        ):
            return False
        return not self.failed or event.event in FAILURES or event.status in ("error", "failed")


@dataclass(slots=True)
class TailEvent:
    """One thing that happened to a message. `status` is that of the service's event or of the receipt.

    `number` counts the tries of a stay at a provider. `left_out`: for how many events `dropped` stands.
    """

    at: int
    event: str
    message: int | None = None
    provider: str | None = None
    settings: int | None = None
    status: str | None = None
    number: int | None = None
    reason: str | None = None
    left_out: int | None = None
    _text: str | None = field(default=None, init=False, repr=False, compare=False)

    def as_data(self) -> dict[str, object]:
        """Return the event as JSON, without what it lacks."""
        channel = None if self.provider is None else channel_of(self.provider)
        fields = (
            *(format_instant(self.at), self.message, self.event, channel, self.provider, self.settings),
            *(self.status, self.number, self.reason, self.left_out),
        )
        return {name: value for name, value in zip(_ORDER, fields, strict=True) if value is not None}

    def as_text(self) -> str:
        """Return that as text, which is made once for all readers."""
        if self._text is None:
            self._text = json.dumps(self.as_data(), separators=(",", ":"))
        return self._text


_ORDER = (
    *("at", "message", "event", "channel", "provider", "settings"),
    *("status", "number", "reason", "left_out"),
)


class Tail:
    """A reader's events, from the beginning of the `with` block to its end."""

    def __init__(self, feed: TailFeed, wanted: TailFilter) -> None:
        self._feed = feed
        self._wanted = wanted
        self._held: deque[TailEvent] = deque()
        self._dropped = 0
        self._added = AutoResetEvent()

    def __enter__(self) -> Self:
        self._feed.begin(self)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._feed.end(self)

    async def next_events(self, longest: float = HEARTBEAT_INTERVAL) -> Sequence[TailEvent]:
        """Wait up to `longest` seconds for events; return up to `MOST_AT_ONCE` of them."""
        if not self._held:
            await self._added.wait(longest)
        events = [self._held.popleft() for _ in range(min(len(self._held), MOST_AT_ONCE))]
        if self._dropped and not self._held:
            events.append(TailEvent(events[-1].at, "dropped", left_out=self._dropped))
            self._dropped = 0
        return events

    def add(self, events: Sequence[TailEvent]) -> None:
        """Hold what the reader selected, as far as there is room."""
        for event in events:
            if not self._wanted.passes(event):
                continue
            if len(self._held) >= MOST_HELD:
                self._dropped += 1
            else:
                self._held.append(event)
        if self._held:
            self._added.set()


class TailFeed:
    """Makes events of what is recorded, once for all readers; without a reader, none."""

    def __init__(self, watchers: list[Watcher]) -> None:
        self._watchers = watchers
        self._readers: list[Tail] = []
        self._tried_at: dict[int, str] = {}  # the provider of each attempt under way

    def open(self, wanted: TailFilter) -> Tail:
        """Return a reader, which begins with its `with` block."""
        return Tail(self, wanted)

    def begin(self, reader: Tail) -> None:
        """Hand events to a reader from now on."""
        if not self._readers:
            self._watchers.append(self)
        self._readers.append(reader)

    def end(self, reader: Tail) -> None:
        """Hand no more to a reader."""
        self._readers.remove(reader)
        if not self._readers:
            self._watchers.remove(self)
            self._tried_at.clear()

    def _add(self, events: Iterator[TailEvent]) -> None:
        made = list(events)
        for reader in self._readers:
            reader.add(made)

    # what is recorded

    def taken(self, entries: Sequence[Entry], at: int) -> None:
        """Messages are in the journal for the first time."""
        self._add(_of_entry(entry, at, "taken") for entry in entries)

    def due(self, entries: Sequence[Entry], at: int) -> None:
        """Messages that waited are ready again."""
        self._add(_of_entry(entry, at, "due") for entry in entries)

    def stepped(self, steps: Sequence[Transition]) -> None:
        """The line took these steps."""
        self._add(self._of_step(step) for step in steps)

    def reported(self, rows: Sequence[OutboxRow], at: int) -> None:
        """The service accepted these events."""
        self._add(TailEvent(at, "reported", row.message_id, status=row.status) for row in rows)

    def refused(self, row: OutboxRow, at: int) -> None:
        """The service refused this event for good."""
        self._add(iter([TailEvent(at, "event_refused", row.message_id, status=row.status)]))

    def received(self, reports: Sequence[Reported], results: Sequence[MatchedReceipt], at: int) -> None:
        """Providers reported this."""
        self._add(_of_report(*each, at) for each in zip(reports, results, strict=False))

    def decided(self, order: Order, decided: Decided, at: int) -> None:
        """An operator's order was carried out."""
        if order.kind is ItemKind.MESSAGE:
            self._add(TailEvent(at, "ordered", int(key), reason=order.verb) for key in decided.done)

    def _of_step(self, step: Transition) -> TailEvent:
        entry, outcome = step.entry, step.outcome
        event, reason, number = "waiting", None, None
        provider = self._tried_at.pop(entry.id, None) or entry.provider
        if step.after is State.SENDING:
            event, number = "attempt", entry.stay_tries
            if provider is not None and len(self._tried_at) < MOST_HELD:
                self._tried_at[entry.id] = provider
        elif step.after is State.FAILED:
            event, (failed_at, reason) = "failed", reason_of(step)
            provider = None if failed_at == NO_PROVIDER else failed_at
        elif step.after is State.SENT:
            event = "sent" if step.before is State.SENDING else "stays_sent"
        elif outcome is not None:
            event, reason = outcome.verdict, outcome.reason
        elif step.waits_for is not None:
            reason = awaited(step.waits_for)
        return TailEvent(step.at, event, entry.id, provider, entry.settings_id, None, number, reason)


def _of_entry(entry: Entry, at: int, event: str) -> TailEvent:
    return TailEvent(at, event, entry.id, entry.provider, entry.settings_id)


def _of_report(report: Reported, result: MatchedReceipt, at: int) -> TailEvent:
    status = None
    if isinstance(report, Receipt):
        status = "delivered" if report.delivered else "failed"
    return TailEvent(at, "receipt", result.message_id, report.provider, status=status, reason=result.result)
