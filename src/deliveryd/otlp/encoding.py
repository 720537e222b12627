"""Spans and metrics as OpenTelemetry's protobuf messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from deliveryd import __version__
from deliveryd.otlp.spans import TraceSpan

_SAMPLED = 1
_MICROSECOND = 1000
_LONGEST_REASON = 500


class TelemetryOrigin(NamedTuple):
    """Who sends: the journal's namespace distinguishes workers. `started` is in microseconds."""

    namespace: str
    host: str
    started: int


def encode_spans(spans: Sequence[TraceSpan], origin: TelemetryOrigin) -> bytes:
    """Return the body of a request to `/v1/traces`."""
    scoped = ScopeSpans(scope=_scope(), spans=map(_span, spans))
    whole = ResourceSpans(resource=_resource(origin), scope_spans=[scoped])
    body: bytes = ExportTraceServiceRequest(resource_spans=[whole]).SerializeToString()
    return body


def refused_spans(body: bytes) -> int:
    """Return how many spans a collector refused of those that it accepted in part. Raises ValueError."""
    response = ExportTraceServiceResponse()
    try:
        response.ParseFromString(body)
    except Exception as error:  # protobuf's DecodeError is an Exception of its own
        raise ValueError("not an answer of a collector") from error
    return response.partial_success.rejected_spans


def encode_metrics(families: Iterable[Metric], origin: TelemetryOrigin, at: int) -> bytes:
    """Return the body of a request to `/v1/metrics`; `at` is the present instant in microseconds."""
    times = _Times(origin.started * _MICROSECOND, at * _MICROSECOND)
    scoped = pb.ScopeMetrics(scope=_scope(), metrics=(_metric(family, times) for family in families))
    whole = pb.ResourceMetrics(resource=_resource(origin), scope_metrics=[scoped])
    body: bytes = ExportMetricsServiceRequest(resource_metrics=[whole]).SerializeToString()
    return body


def _span(span: TraceSpan) -> SpanMessage:
    error = span.error and _text(span.error[:_LONGEST_REASON])
    status = Status(code=Status.STATUS_CODE_ERROR, message=error) if error is not None else None
    return SpanMessage(
        trace_id=span.trace,
        span_id=span.id,
        parent_span_id=span.parent,
        flags=_SAMPLED,
        name=_text(span.name),
        kind=SpanMessage.SpanKind.ValueType(span.kind),
        start_time_unix_nano=span.start * _MICROSECOND,
        end_time_unix_nano=max(span.end, span.start) * _MICROSECOND,
        attributes=_attributes(span.attributes),
        status=status,
    )


def _attributes(values: Mapping[str, str | int]) -> Iterator[KeyValue]:
    for name, value in values.items():
        typed = AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=_text(value))
        yield KeyValue(key=name, value=typed)


def _text(text: str) -> str:
    """Text that protobuf can carry: an adapter may give a reason with half a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()


def _scope() -> InstrumentationScope:
    return InstrumentationScope(name="deliveryd", version=__version__)


def _resource(origin: TelemetryOrigin) -> Resource:
    names = {
        "service.name": "deliveryd",
        "service.version": __version__,
        "service.instance.id": origin.namespace,
        "host.name": origin.host,
    }
    return Resource(attributes=_attributes(names))


# metrics, from the families that /metrics exposes


class _Times(NamedTuple):
    """From when counters count, and now, in nanoseconds."""

    start: int
    now: int


def _metric(family: Metric, times: _Times) -> pb.Metric:
    metric = pb.Metric(name=family.name, description=family.documentation, unit=_unit(family.name))
    if family.type == "counter":
        points = [_number(sample, times) for sample in family.samples]
        metric.sum.CopyFrom(
            pb.Sum(data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True)
        )
    elif family.type == "histogram":
        metric.histogram.CopyFrom(
            pb.Histogram(data_points=_histograms(family, times), aggregation_temporality=_CUMULATIVE)
        )
    else:
        metric.gauge.CopyFrom(pb.Gauge(data_points=[_number(sample, times) for sample in family.samples]))
    return metric


_CUMULATIVE = pb.AGGREGATION_TEMPORALITY_CUMULATIVE


def _unit(name: str) -> str:
    if name.endswith("_seconds"):
        return "s"
    return "By" if name.endswith("_bytes") else "1"


def _number(sample: Sample, times: _Times) -> pb.NumberDataPoint:
    return pb.NumberDataPoint(
        attributes=_attributes(sample.labels),
        start_time_unix_nano=times.start,
        time_unix_nano=times.now,
        as_double=sample.value,
    )


def _histograms(family: Metric, times: _Times) -> Iterator[pb.HistogramDataPoint]:
    """Yield the histograms of a family; its samples hold the sums up to each bound, and that of all."""
    bounds: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    totals: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            bounds.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            totals[labels] = sample.value
    for labels, sums in bounds.items():
        counts = [int(sum_) for _bound, sum_ in sums]
        yield pb.HistogramDataPoint(
            attributes=_attributes(dict(labels)),
            start_time_unix_nano=times.start,
            time_unix_nano=times.now,
            count=counts[-1],
            sum=totals.get(labels, 0.0),
            bucket_counts=[after - before for before, after in zip([0, *counts], counts, strict=False)],
            explicit_bounds=[bound for bound, _sum in sums if not math.isinf(bound)],
        )
