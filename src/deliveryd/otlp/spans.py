"""Spans of messages, gathered from what the recorder records and from requests to providers.

Their ids follow from the message, so that one trace goes on over a restart.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from deliveryd.channels.base import Accepted, AtDevices, Channel, Dispatch, Found, Verdict
from deliveryd.delivery.failures import NO_PROVIDER, reason_of
from deliveryd.journal.base import MatchedReceipt, OutboxRow
from deliveryd.journal.orders import Action, Decided, Order
from deliveryd.model import Entry, Receipt, Reported, Transition, channel_of, parse_instant
from deliveryd.states import ENDED, State

_WHOLE = 1 << 64


class TraceIds(NamedTuple):
    """Makes ids. `namespace` is the journal's, and `sample` the share of messages that are traced, 0 to 1."""

    namespace: str
    sample: float

    def trace(self, message_id: int) -> bytes:
        """The 16 bytes of a message's trace, over all of its generations."""
        return _digest(16, self.namespace, message_id)

    def is_sampled(self, trace: bytes) -> bool:
        """Whether the trace is exported: all of it or nothing."""
        return int.from_bytes(trace[8:]) < self.sample * _WHOLE

    def message(self, message_id: int, generation: int = 1) -> bytes:
        """The 8 bytes of the span of a message, the root of its trace; each generation has its own."""
        return _digest(8, self.namespace, message_id, "message", generation)

    def attempt(self, entry: Entry) -> bytes:
        """The span of the attempt that an entry describes after its intent."""
        return _digest(
            8,
            self.namespace,
            entry.id,
            "attempt",
            entry.generation,
            entry.provider,
            entry.stay,
            entry.stay_tries,
        )

    def part(self, parent: bytes, *names: object) -> bytes:
        """The span of something below another span."""
        return _digest(8, parent.hex(), *names)

    def traceparent(self, trace: bytes, span: bytes) -> str:
        """The header of W3C Trace Context that continues a trace at a provider."""
        return f"00-{trace.hex()}-{span.hex()}-{'01' if self.is_sampled(trace) else '00'}"


def _digest(size: int, *parts: object) -> bytes:
    return hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=size).digest()


MOST_SPANS = 20_000
"""Spans that wait to be exported; beyond it the oldest are lost."""

_MOST_KEPT = 20_000
"""Attempts under way, and messages in doubt, whose generations are kept."""

_TIMESTAMP = len('{"timestamp":"')

_SETTLED = {Action.SETTLE_SENT: State.SENT, Action.SETTLE_FAILED: State.FAILED}
"""How a message in doubt ends by an order."""

Attributes = dict[str, str | int]
_T = TypeVar("_T")


class SpanKind(IntEnum):
    """A span's place in a conversation, with OpenTelemetry's numbers."""

    INTERNAL = 1
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class TraceSpan(NamedTuple):
    """One span; instants in microseconds. `error` is why it failed. Attributes hold no personal data."""

    trace: bytes
    id: bytes
    parent: bytes
    name: str
    kind: SpanKind
    start: int
    end: int
    attributes: Attributes
    error: str | None = None


class SpanQueue:
    """Spans that wait to be exported, up to a bound. `lost` counts those beyond it."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._spans: deque[TraceSpan] = deque()
        self._most = most
        self.lost = 0

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: TraceSpan) -> None:
        """Add a span; the oldest is lost if there is no room."""
        if len(self._spans) >= self._most:
            self._spans.popleft()
            self.lost += 1
        self._spans.append(span)

    def take(self, most: int) -> list[TraceSpan]:
        """Remove and return the oldest spans."""
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def put_back(self, spans: Sequence[TraceSpan]) -> None:
        """Put spans back that couldn't be exported, as far as there is room."""
        room = self._most - len(self._spans)
        kept = spans[-room:] if room > 0 else ()
        self.lost += len(spans) - len(kept)
        self._spans.extendleft(reversed(kept))


class _Begun(NamedTuple):
    """An attempt under way."""

    span: bytes
    at: int
    provider: str
    number: int


class _End(NamedTuple):
    """How a message ended, at which provider, and why it failed if it did."""

    state: State
    provider: str | None
    error: str | None = None


class Tracer:
    """Makes a span of each message, attempt, request to a provider, event and receipt.

    The span of a message ends when the message is sent or has failed; what comes later are spans below it.
    """

    def __init__(self, spans: SpanQueue, sample: float) -> None:
        self.ids = TraceIds("", sample)
        self.spans = spans
        self._begun: dict[int, _Begun] = {}
        self._doubtful: dict[int, Entry] = {}

    def begin(self, namespace: str) -> None:
        """Make spans of the messages of this journal."""
        self.ids = self.ids._replace(namespace=namespace)

    # what the recorder passes on

    def taken(self, entries: Sequence[Entry], at: int) -> None:
        """Do nothing: a message's span begins at its `taken_at`."""

    def due(self, entries: Sequence[Entry], at: int) -> None:
        """Do nothing: a wait is the gap between two attempts."""

    def stepped(self, steps: Sequence[Transition]) -> None:
        """Begin and end attempts, and end messages."""
        for step in steps:
            trace = self.ids.trace(step.entry.id)
            if not self.ids.is_sampled(trace):
                continue
            if step.after is State.SENDING:
                self._begin(step)
                continue
            if step.before is State.SENDING:
                self._end_attempt(trace, step)
            if step.after is State.SENT or step.after is State.FAILED:
                self._end_message(trace, step.entry, step.at, _end_of(step))
            elif step.after is State.IN_DOUBT:
                _keep(self._doubtful, step.entry.id, step.entry)

    def _begin(self, step: Transition) -> None:
        entry = step.entry
        begun = _Begun(self.ids.attempt(entry), step.at, entry.provider or NO_PROVIDER, entry.stay_tries)
        _keep(self._begun, entry.id, begun)

    def _end_attempt(self, trace: bytes, step: Transition) -> None:
        entry, outcome = step.entry, step.outcome
        begun = self._begun.pop(entry.id, None)
        if begun is None or outcome is None:  # it began before a restart
            return
        attributes = _attributes(entry, begun.provider)
        attributes["deliveryd.try"] = begun.number
        attributes["deliveryd.verdict"] = outcome.verdict
        error = None if outcome.verdict == "accepted" else outcome.reason or outcome.verdict
        parent = self.ids.message(entry.id, entry.generation)
        name = f"attempt {begun.provider}"
        self.spans.add(
            TraceSpan(
                trace, begun.span, parent, name, SpanKind.INTERNAL, begun.at, step.at, attributes, error
            )
        )

    def _end_message(self, trace: bytes, entry: Entry, at: int, end: _End) -> None:
        attributes = _attributes(entry, end.provider)
        attributes["deliveryd.state"] = end.state.name.lower()
        span = self.ids.message(entry.id, entry.generation)
        if entry.sent_by is None:
            found = TraceSpan(
                trace, span, b"", "message", SpanKind.CONSUMER, entry.taken_at, at, attributes, end.error
            )
        else:  # its span ended when it was sent for the first time
            id_ = self.ids.part(span, "continued", at)
            start = entry.begun_at or at
            found = TraceSpan(
                trace, id_, span, "message continued", SpanKind.INTERNAL, start, at, attributes, end.error
            )
        self.spans.add(found)

    def reported(self, rows: Sequence[OutboxRow], at: int) -> None:
        """Add a span for each event, from its step until the service accepted it."""
        for row in rows:
            self._add_event(row, at, None)

    def refused(self, row: OutboxRow, at: int) -> None:
        """Add the span of an event that the service refused."""
        self._add_event(row, at, "refused by the service")

    def _add_event(self, row: OutboxRow, at: int, error: str | None) -> None:
        trace = self.ids.trace(row.message_id)
        if not self.ids.is_sampled(trace):
            return
        message, name = self.ids.message(row.message_id), f"event {row.status}"
        attributes: Attributes = {"deliveryd.message": row.message_id, "deliveryd.status": row.status}
        id_ = self.ids.part(message, name, row.seq)
        start = min(_instant_in(row.body) or at, at)
        self.spans.add(TraceSpan(trace, id_, message, name, SpanKind.PRODUCER, start, at, attributes, error))

    def received(self, reports: Sequence[Reported], results: Sequence[MatchedReceipt], at: int) -> None:
        """Add the spans of receipts; one that settles a message in doubt ends its span."""
        for report, result in zip(reports, results, strict=False):
            id_ = result.message_id
            if id_ is None or not isinstance(report, Receipt):
                continue
            trace = self.ids.trace(id_)
            if self.ids.is_sampled(trace):
                attributes: Attributes = {
                    "deliveryd.message": id_,
                    "deliveryd.channel": channel_of(report.provider),
                    "deliveryd.provider": report.provider,
                }
                name = f"receipt {'delivered' if report.delivered else 'failed'}"
                message = self.ids.message(id_)
                span = self.ids.part(message, name, at)
                self.spans.add(TraceSpan(trace, span, message, name, SpanKind.CONSUMER, at, at, attributes))
                self._settle(trace, id_, result.effect.ended if result.effect is not None else (), at)

    def decided(self, order: Order, decided: Decided, at: int) -> None:
        """End the spans of messages in doubt that an operator settled."""
        if order.verb in _SETTLED:
            for key in decided.done:
                self._settle(self.ids.trace(int(key)), int(key), [_SETTLED[order.verb]], at)

    def _settle(self, trace: bytes, id_: int, ended: Sequence[State], at: int) -> None:
        if not any(state in ENDED for state in ended):
            return
        if (entry := self._doubtful.pop(id_, None)) is not None:
            self._end_message(trace, entry, at, _End(ended[0], entry.provider))

    # requests to providers

    def add_request(self, dispatch: Dispatch, name: str, start: int, end: int, error: str | None) -> None:
        """Add the span of a request to a provider, below that of its attempt."""
        trace = self.ids.trace(dispatch.entry.id)
        if self.ids.is_sampled(trace):
            attempt = self.ids.attempt(dispatch.entry)
            attributes = _attributes(dispatch.entry, dispatch.entry.provider)
            self.spans.add(
                TraceSpan(
                    trace, self.ids.part(attempt, name), attempt, f"{name} {dispatch.entry.provider}",
                    SpanKind.CLIENT, start, end, attributes, error,
                )
            )  # fmt: skip

    def traceparent(self, dispatch: Dispatch) -> str:
        """The header that continues the trace at the provider, below the request's span."""
        span = self.ids.part(self.ids.attempt(dispatch.entry), "request")
        return self.ids.traceparent(self.ids.trace(dispatch.entry.id), span)


class TracedChannel:
    """A channel whose requests become spans, and whose dispatches carry a `traceparent`."""

    def __init__(self, channel: Channel, tracer: Tracer) -> None:
        self._channel = channel
        self._tracer = tracer
        self.customer_fields = channel.customer_fields
        self.lookup_after = channel.lookup_after
        self.reaches = channel.reaches
        self.unreached = channel.unreached
        self.devices_field = channel.devices_field
        self.recipients = channel.recipients
        self.preview = channel.preview
        self.probe = channel.probe
        self.aclose = channel.aclose

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Make the attempt."""
        dispatch = dispatch._replace(traceparent=self._tracer.traceparent(dispatch))
        start = dispatch.clock.now()
        verdict = await self._channel.send(dispatch)
        error = None if isinstance(verdict, Accepted | AtDevices) else verdict.reason
        self._tracer.add_request(dispatch, "request", start, dispatch.clock.now(), error)
        return verdict

    async def look_up(self, dispatch: Dispatch) -> Found:
        """Ask the provider."""
        start = dispatch.clock.now()
        found = await self._channel.look_up(dispatch)
        self._tracer.add_request(dispatch, "lookup", start, dispatch.clock.now(), None)
        return found


def _keep(kept: dict[int, _T], id_: int, value: _T) -> None:
    """Keep a value, and forget the oldest one beyond the bound."""
    kept[id_] = value
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]


def _end_of(step: Transition) -> _End:
    if step.after is not State.FAILED:
        return _End(step.after, step.entry.provider)
    provider, reason = reason_of(step)
    return _End(step.after, None if provider == NO_PROVIDER else provider, reason)


def _attributes(entry: Entry, provider: str | None) -> Attributes:
    attributes: Attributes = {"deliveryd.message": entry.id, "deliveryd.settings": entry.settings_id}
    if provider is not None:
        attributes |= {"deliveryd.channel": channel_of(provider), "deliveryd.provider": provider}
    return attributes


def _instant_in(body: str) -> int | None:
    """The instant of an event as it is sent, which is always at the same place."""
    try:
        return parse_instant(body[_TIMESTAMP : body.index('"', _TIMESTAMP)])
    except ValueError:
        return None
