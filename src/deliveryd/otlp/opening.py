"""Opens what exports spans and metrics, from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from deliveryd.channels.base import Channel
from deliveryd.config import OtlpOptions
from deliveryd.errors import ConfigError
from deliveryd.http.client import build_client
from deliveryd.metrics import Metrics
from deliveryd.model import Clock
from deliveryd.otlp.export import Collector, Exporter
from deliveryd.otlp.identity import TraceIds
from deliveryd.otlp.spans import SpanQueue, TracedChannel, Tracer
from deliveryd.runtime.threads import Blocking


class Tracing(NamedTuple):
    """What exports, and what makes spans; None: no traces are exported."""

    exporter: Exporter
    tracer: Tracer | None

    def traced(self, channels: Mapping[str, Channel]) -> Mapping[str, Channel]:
        """Return the channels of providers so that their requests become spans."""
        tracer = self.tracer
        if tracer is None:
            return channels
        return {name: TracedChannel(channel, tracer) for name, channel in channels.items()}


def open_tracing(
    options: OtlpOptions, metrics: Metrics, clock: Clock, namespace: str, blocking: Blocking
) -> Tracing:
    """Open the client of the collector, within the event loop. Raises ConfigError for unusable files."""
    endpoint = options.endpoint or ""
    try:
        client = build_client(
            timeout=options.timeout, tls=options.tls.files("otlp.tls.ca_file"), proxy=options.open_proxy()
        )
    except (OSError, ValueError) as error:
        raise ConfigError([f"otlp: {error}"]) from None
    queue = SpanQueue()
    exporter = Exporter(
        Collector(client, endpoint, options.auth.headers), queue, metrics, clock, blocking,
        namespace=namespace,
        interval=options.interval if options.metrics else None,
    )  # fmt: skip
    tracer = Tracer(TraceIds(namespace, options.sample), queue) if options.traces else None
    return Tracing(exporter, tracer)
