"""An OpenTelemetry collector and providers on one port; what arrives is read by OpenTelemetry's classes."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Collector:
    """What arrived. `statuses` are the next answers by path; without one it is 200.

    `refused`: so many spans of each request, by the answer.
    """

    def __init__(self) -> None:
        self.address = ""
        self.traces: list[ResourceSpans] = []
        self.metrics: list[Metric] = []
        self.headers: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        self.statuses: defaultdict[str, deque[int]] = defaultdict(deque)
        self.refused = 0
        self.arrived = threading.Condition()

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they came."""
        return [span for whole in self.traces for part in whole.scope_spans for span in part.spans]

    def span(self, name: str) -> Span:
        """The only span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def take_in(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Take a request in; return the status of the answer."""
        with self.arrived:
            self.headers[path].append(headers)
            statuses = self.statuses[path]
            status = statuses.popleft() if statuses else 200
            if status == 200 and path == "/v1/traces":
                self.traces += ExportTraceServiceRequest.FromString(body).resource_spans
            if status == 200 and path == "/v1/metrics":
                for whole in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    self.metrics = [metric for part in whole.scope_metrics for metric in part.metrics]
            self.arrived.notify_all()
        return status


def values_of(attributes: list[KeyValue]) -> dict[str, str | int]:
    """Attributes by name."""
    return {
        each.key: each.value.int_value if each.value.HasField("int_value") else each.value.string_value
        for each in attributes
    }


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name is http.server's
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(collector.take_in(self.path, dict(self.headers), body))
            answer = ExportTraceServiceResponse()
            answer.partial_success.rejected_spans = collector.refused
            encoded = answer.SerializeToString() if collector.refused else b""
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_arguments: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
