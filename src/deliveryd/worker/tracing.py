"""Traces in the worker: what makes spans, adapters whose requests become spans, and what exports them.

Nothing of `otlp` is loaded unless a collector is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deliveryd.channels.base import Channel
from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config, OtlpOptions
from deliveryd.delivery.memory import Watcher
from deliveryd.metrics import Metrics
from deliveryd.model import Clock
from deliveryd.runtime.threads import Blocking
from deliveryd.worker.outside import Openers

if TYPE_CHECKING:
    from deliveryd.otlp.export import Exporter
    from deliveryd.otlp.spans import Tracer


def open_tracer(options: OtlpOptions) -> Tracer | None:
    """Return what makes spans; None: no traces are exported."""
    if options.endpoint is None or not options.traces:
        return None
    from deliveryd.otlp.spans import SpanQueue, Tracer  # noqa: PLC0415  # see above

    return Tracer(SpanQueue(), options.sample)


def traced(openers: Openers, tracer: Tracer | None) -> Openers:
    """Return openers of adapters whose requests become spans."""
    if tracer is None:
        return openers
    from deliveryd.otlp.spans import TracedChannel  # noqa: PLC0415  # see above

    def provider(config: Config, options: ProviderConfig) -> Channel:
        return TracedChannel(openers.provider(config, options), tracer)

    return openers._replace(provider=provider)


def open_exporter(
    options: OtlpOptions,
    tracer: Tracer | None,
    watchers: list[Watcher],
    *,
    metrics: Metrics,
    clock: Clock,
    blocking: Blocking,
    namespace: str,
) -> Exporter | None:
    """Open what exports spans and metrics, if a collector is configured. Raises ConfigError."""
    if options.endpoint is None:
        return None
    from deliveryd.otlp import opening  # noqa: PLC0415  # loads protobuf

    if tracer is not None:
        tracer.begin(namespace)
        watchers.append(tracer)
    spans = tracer.spans if tracer is not None else None
    return opening.build_exporter(options, spans, metrics, clock, blocking, namespace=namespace)
