"""Posts spans and metrics to a collector. Whatever becomes of that, the line goes on."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio

from deliveryd.admin.exposition import families
from deliveryd.config import OtlpOptions
from deliveryd.errors import ConfigError, NotSent, OutcomeUnknown
from deliveryd.http.client import HttpClient, build_client
from deliveryd.http.target import target_of
from deliveryd.metrics import Metrics
from deliveryd.model import Clock
from deliveryd.options.credentials import open_authentication
from deliveryd.otlp.encoding import TelemetryOrigin, encode_metrics, encode_spans, refused_spans
from deliveryd.otlp.spans import SpanQueue, Tracer, TraceSpan
from deliveryd.runtime.threads import Blocking
from deliveryd.telemetry.log_events import Event, log

FLUSH_INTERVAL = 1.0
"""Seconds between two posts of spans, at most `_MOST_AT_ONCE` of them each."""

_MOST_AT_ONCE = 2_000
_LONGEST_PAUSE = 60.0
"""Seconds between two tries while the collector takes nothing."""

LAST_POST = 3.0
"""Seconds that the end of the worker waits for the last spans to be posted."""

_AGAIN = frozenset({408, 429, 502, 503, 504})
"""Statuses after which the same spans are posted again, by OTLP's rules."""


class Collector(NamedTuple):
    """Where to post: the client, and the address before `/v1/…`."""

    client: HttpClient
    endpoint: str


class _Failed(Exception):
    """The collector didn't take a request. `again`: it may take it later."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


class Exporter:
    """Posts the spans of a queue, and the metrics every `interval` seconds. None: not these."""

    def __init__(
        self,
        collector: Collector,
        spans: SpanQueue,
        metrics: Metrics,
        clock: Clock,
        blocking: Blocking,
        *,
        namespace: str,
        interval: float | None,
    ) -> None:
        self._collector = collector
        self._spans = spans
        self._metrics = metrics
        self._clock = clock
        self._blocking = blocking
        self._interval = interval
        self._origin = TelemetryOrigin(namespace, platform.node(), clock.now())
        self._failing: set[str] = set()
        self._counted_lost = 0

    async def run(self, stop: anyio.Event) -> None:
        """Post until the event is set, and then once more."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._post_spans_often)
                if self._interval is not None:
                    tasks.start_soon(self._post_metrics_often, self._interval)
                await stop.wait()
                tasks.cancel_scope.cancel()
            with anyio.move_on_after(LAST_POST):
                await self._post_all_spans()
                if self._interval is not None:
                    await self._post_metrics()
        finally:
            with anyio.CancelScope(shield=True):
                await self._collector.client.aclose()

    async def _post_spans_often(self) -> None:
        pause = FLUSH_INTERVAL
        while True:
            await anyio.sleep(pause)
            has_worked = await self._post_all_spans()
            pause = FLUSH_INTERVAL if has_worked else min(pause * 2, _LONGEST_PAUSE)

    async def _post_all_spans(self) -> bool:
        """Post what there is; return whether the collector is to be asked again soon."""
        self._count_lost()
        while spans := self._spans.take(_MOST_AT_ONCE):
            try:
                await self._post_spans(spans)
            except _Failed as failed:
                if failed.again:
                    self._spans.put_back(spans)
                else:
                    self._metrics.spans.add("lost", count=len(spans))
                return False
            except BaseException:  # cancelled: the last post may still take them
                self._spans.put_back(spans)
                raise
        return True

    async def _post_spans(self, spans: Sequence[TraceSpan]) -> None:
        body = await self._blocking(lambda: encode_spans(spans, self._origin))
        answer = await self._post("/v1/traces", body)
        try:
            refused = max(0, min(refused_spans(answer), len(spans)))
        except ValueError:
            refused = 0
        self._metrics.spans.add("accepted", count=len(spans) - refused)
        self._metrics.spans.add("lost", count=refused)

    async def _post_metrics_often(self, interval: float) -> None:
        while True:
            await anyio.sleep(interval)
            await self._post_metrics()

    async def _post_metrics(self) -> None:
        """Post the present values; what a failed post would have reported, the next one reports."""
        found, now = list(families(self._metrics)), self._clock.now()
        body = await self._blocking(lambda: encode_metrics(found, self._origin, now))
        with suppress(_Failed):
            await self._post("/v1/metrics", body)

    async def _post(self, path: str, body: bytes) -> bytes:
        """Post a body, and note whether that worked; return the answer's. Raises _Failed."""
        try:
            answer = await self._send(path, body)
        except _Failed as failed:
            self._note_failure(path, str(failed))
            raise
        self._note_success(path)
        return answer

    async def _send(self, path: str, body: bytes) -> bytes:
        client, endpoint = self._collector
        try:
            fields = [("content-type", "application/x-protobuf")]
            answer = await client.send("POST", f"{endpoint}{path}", headers=fields, body=body)
        except (NotSent, OutcomeUnknown) as error:
            raise _Failed(str(error), again=True) from None
        if 200 <= answer.status < 300:
            return answer.body
        raise _Failed(f"status {answer.status} at {path}", again=answer.status in _AGAIN)

    def _note_failure(self, path: str, reason: str) -> None:
        """Count a failed post, and log the first one of an outage."""
        self._metrics.export_failures.add()
        if not self._failing:
            log(Event.OTLP_UNAVAILABLE, host=target_of(self._collector.endpoint).host, reason=reason)
        self._failing.add(path)

    def _note_success(self, path: str) -> None:
        """Log the end of an outage: a collector may take metrics all the time, and no spans."""
        if path not in self._failing:
            return
        self._failing.remove(path)
        if not self._failing:
            self._count_lost()
            log(Event.OTLP_RECOVERED, host=target_of(self._collector.endpoint).host)

    def _count_lost(self) -> None:
        self._metrics.spans.add("lost", count=self._spans.lost - self._counted_lost)
        self._counted_lost = self._spans.lost


def open_exporter(
    options: OtlpOptions,
    tracer: Tracer | None,
    metrics: Metrics,
    clock: Clock,
    blocking: Blocking,
    *,
    namespace: str,
) -> Exporter:
    """Open the client of the collector, within the event loop. Raises ConfigError for unusable files."""
    try:
        client = build_client(
            timeout=options.timeout,
            tls=options.tls.files("otlp.tls.ca_file"),
            proxy=options.open_proxy(),
            authentication=open_authentication(options.auth, "otlp.auth", options.timeout),
        )
    except (OSError, ValueError) as error:
        raise ConfigError([f"otlp: {error}"]) from None
    return Exporter(
        Collector(client, options.endpoint or ""),
        SpanQueue() if tracer is None else tracer.spans,
        metrics,
        clock,
        blocking,
        namespace=namespace,
        interval=options.interval if options.metrics else None,
    )
