"""Opens what exports spans and metrics, from the configuration."""

from __future__ import annotations

from deliveryd.config import OtlpOptions
from deliveryd.errors import ConfigError
from deliveryd.http.client import build_client
from deliveryd.metrics import Metrics
from deliveryd.model import Clock
from deliveryd.otlp.export import Collector, Exporter
from deliveryd.otlp.spans import SpanQueue
from deliveryd.runtime.threads import Blocking


def build_exporter(
    options: OtlpOptions,
    spans: SpanQueue | None,
    metrics: Metrics,
    clock: Clock,
    blocking: Blocking,
    *,
    namespace: str,
) -> Exporter:
    """Open the client of the collector, within the event loop. Raises ConfigError for unusable files."""
    try:
        client = build_client(
            timeout=options.timeout, tls=options.tls.files("otlp.tls.ca_file"), proxy=options.open_proxy()
        )
    except (OSError, ValueError) as error:
        raise ConfigError([f"otlp: {error}"]) from None
    return Exporter(
        Collector(client, options.endpoint or "", options.auth.headers),
        spans if spans is not None else SpanQueue(),
        metrics,
        clock,
        blocking,
        namespace=namespace,
        interval=options.interval if options.metrics else None,
    )
