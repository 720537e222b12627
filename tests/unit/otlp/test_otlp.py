"""Spans and metrics at an OpenTelemetry collector."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from deliveryd.config import load
from deliveryd.errors import ConfigError
from deliveryd.http.authentication import FileCredentials
from deliveryd.http.client import build_client
from deliveryd.journal.orders import Action, Decided, Effect, ItemKind, Order
from deliveryd.metrics import Metrics
from deliveryd.model import Entry, Transition, WallClock
from deliveryd.otlp.encoding import refused_spans
from deliveryd.otlp.export import Collector as Target
from deliveryd.otlp.export import Exporter
from deliveryd.otlp.spans import SpanKind, SpanQueue, TraceIds, Tracer, TraceSpan
from deliveryd.runtime.threads import in_thread
from deliveryd.states import State
from support.check_command import check, line, warned
from support.collector import Collector, collecting, values_of
from support.logs import log_lines
from support.messages import message
from support.patience import PATIENCE
from support.ports import free_port
from support.world import World, open_world

BOTH = {"content": {"en": {"sms": {"text": "dear {name}"}, "email": {"subject": "s", "body": "b {name}"}}}}
CHANNELS = """
[channels]
order = ["sms", "email"]
[channels.sms]
adapter = "http"
url = "COLLECTOR/sms"
json = { text = "{content.text}" }
traceparent = true
retry = { attempts = 2, base = "20ms", max = "50ms" }
[channels.email]
adapter = "http"
url = "COLLECTOR/email"
json = { text = "{content.body}" }
[otlp]
endpoint = "COLLECTOR"
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector, which is the gateway of both channels too."""
    with collecting() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, collector: Collector) -> Iterator[World]:
    """A world with settings 1, two channels, and traces to the collector."""
    for world in open_world(tmp_path):
        text = world.config.read_text(encoding="utf-8").partition("[channels.sms]")[0]
        world.write_config(text + CHANNELS.replace("COLLECTOR", collector.address))
        world.state.settings[1] = BOTH
        yield world


@pytest.mark.slow
def test_a_message_with_a_retry_and_a_fallback_is_one_trace(world: World, collector: Collector) -> None:
    """Its span holds its attempts, these the requests; the gateway is told the request's span."""
    collector.statuses["/sms"].extend([503, 503])
    world.state.enqueue({**message(1001), "variables": {"name": "Ann"}})
    world.run_until_idle()

    (trace,) = {span.trace_id for span in collector.spans}
    names = {span.span_id: span.name for span in collector.spans}
    tree = sorted((names.get(span.parent_span_id, ""), span.name) for span in collector.spans)
    assert tree == [
        ("", "message"),
        ("attempt email", "request email"),
        ("attempt sms", "request sms"),
        ("attempt sms", "request sms"),
        ("message", "attempt email"),
        ("message", "attempt sms"),
        ("message", "attempt sms"),
        ("message", "event dequeued"),
        ("message", "event sent"),
    ]
    assert len(names) == len(collector.spans)
    verdicts = [
        (values["deliveryd.verdict"], values["deliveryd.try"], span.status.message)
        for span in collector.spans
        if "deliveryd.verdict" in (values := values_of(list(span.attributes)))
    ]
    assert verdicts == [
        ("try_again", 1, "provider answered 503"),
        ("try_again", 2, "provider answered 503"),
        ("accepted", 1, ""),
    ]
    whole = collector.span("message")
    assert values_of(list(whole.attributes)) == {
        "deliveryd.message": 1001, "deliveryd.settings": 1, "deliveryd.channel": "email",
        "deliveryd.provider": "email", "deliveryd.state": "sent",
    }  # fmt: skip
    for span in collector.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.name.startswith(("attempt", "request")):
            assert whole.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= whole.end_time_unix_nano
    assert "Ann" not in str(collector.spans)

    told = [headers["traceparent"].split("-") for headers in collector.headers["/sms"]]
    requests = [span.span_id.hex() for span in collector.spans if span.name == "request sms"]
    assert told == [["00", trace.hex(), id_, "01"] for id_ in requests]
    assert "traceparent" not in collector.headers["/email"][0]


@pytest.mark.slow
def test_the_metrics_are_those_of_the_page(world: World, collector: Collector) -> None:
    """Counters, gauges and histograms with their labels, after the last message."""
    world.state.enqueue({**message(7), "variables": {"name": "Ann"}})
    world.run_until_idle()
    metrics = {metric.name: metric for metric in collector.metrics}
    taken = metrics["deliveryd_messages_taken"].sum
    assert taken.is_monotonic
    assert [point.as_double for point in taken.data_points] == [1.0]
    accepted = [
        point.as_double
        for point in metrics["deliveryd_attempts"].sum.data_points
        if values_of(list(point.attributes)) == {"channel": "sms", "provider": "sms", "verdict": "accepted"}
    ]
    assert accepted == [1.0]
    commits = metrics["deliveryd_journal_commit_seconds"]
    (histogram,) = commits.histogram.data_points
    assert sum(histogram.bucket_counts) == histogram.count > 0
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    assert commits.unit == "s"
    assert metrics["deliveryd_ready"].gauge.data_points
    resource = values_of(list(collector.traces[0].resource.attributes))
    assert resource["service.name"] == "deliveryd"
    assert len(str(resource["service.instance.id"])) > 4


@pytest.mark.slow
def test_a_collector_that_is_down_holds_nothing_up(world: World, collector: Collector) -> None:
    """Messages are sent, the outage is logged once, and the worker ends in time."""
    collector.statuses["/v1/traces"].extend([503] * 100)
    collector.statuses["/v1/metrics"].extend([503] * 100)
    world.state.enqueue(*({**message(id_), "variables": {"name": "Ann"}} for id_ in range(1, 51)))
    world.run_until_idle()
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 51))
    assert world.log().count("otlp.unavailable") == 1


def test_a_sample_takes_whole_traces() -> None:
    """About as many as are wanted, the same after a restart, and none or all at the ends."""
    ids = TraceIds("ab12", 0.25)
    sampled = [ids.is_sampled(ids.trace(number)) for number in range(4000)]
    assert 800 < sum(sampled) < 1200
    assert sampled == [TraceIds("ab12", 0.25).is_sampled(ids.trace(number)) for number in range(4000)]
    assert not any(TraceIds("ab12", 0.0).is_sampled(ids.trace(number)) for number in range(1000))
    assert all(TraceIds("ab12", 1.0).is_sampled(ids.trace(number)) for number in range(1000))
    assert ids.traceparent(b"\1" * 16, b"\2" * 8).endswith("-01") == ids.is_sampled(b"\1" * 16)


def test_each_attempt_and_each_beginning_has_a_span_of_its_own() -> None:
    """By provider, stay, try and beginning; messages of another journal are others."""
    entry = Entry(7, 1, 1, {}, "sms", stay_tries=1)
    entries = [
        entry, entry._replace(stay_tries=2), entry._replace(stay=2), entry._replace(provider="sms/b"),
        entry._replace(generation=2), entry._replace(id=8),
    ]  # fmt: skip
    ids = TraceIds("ab12", 1.0)
    assert len({ids.attempt(each) for each in entries}) == len(entries)
    assert ids.trace(7) != TraceIds("cd34", 1.0).trace(7)
    assert ids.message(7, 1) != ids.message(7, 2)


def test_a_message_that_an_operator_settles_has_a_span_whatever_else_its_order_brought() -> None:
    """On a shared journal an order also has the effects of messages that were handed out again meanwhile."""
    queue = SpanQueue()
    tracer = Tracer(queue, 1.0)
    entry = Entry(7, 1, 1, {}, "sms", stay_tries=1)
    tracer.stepped([Transition(entry, State.SENDING, State.IN_DOUBT, 2)])
    order = Order(Action.SETTLE_SENT, ItemKind.MESSAGE, ("7",))
    tracer.decided(order, Decided(("7",), {}, (Effect(events=1), Effect(ended=(State.SENT,)))), 3)
    (ended,) = queue.take(9)
    assert (ended.name, ended.attributes["deliveryd.state"], ended.end) == ("message", "sent", 3)


def span(number: int) -> TraceSpan:
    """Any span."""
    return TraceSpan(b"t" * 16, number.to_bytes(8), b"", f"span {number}", SpanKind.INTERNAL, 1, 2, {})


def test_the_queue_of_spans_is_bounded() -> None:
    """The oldest are lost and counted, also of those that are put back."""
    queue = SpanQueue(most=10)
    for number in range(12):
        queue.add(span(number))
    assert (len(queue), queue.lost) == (10, 2)
    taken = queue.take(4)
    assert [each.name for each in taken] == [f"span {number}" for number in (2, 3, 4, 5)]
    queue.add(span(12))
    queue.put_back(taken)
    assert (len(queue), queue.lost) == (10, 3)
    assert [each.name for each in queue.take(99)] == [f"span {number}" for number in range(3, 13)]
    queue.put_back([])
    assert len(queue) == 0


def exporter(collector: Collector, queue: SpanQueue, metrics: Metrics) -> Exporter:
    """An exporter of spans; to be made within an event loop."""
    client = build_client(timeout=5.0, authentication=FileCredentials([], lambda: [(b"x-api-key", b"k")]))
    target = Target(client, collector.address)
    return Exporter(target, queue, metrics, WallClock(), in_thread, namespace="ab12", interval=None)


@pytest.mark.parametrize(
    ("statuses", "accepted", "lost"),
    [([503, 429], 3, 0), ([400], 0, 3), ([401, 200], 0, 3)],
)
def test_what_a_collector_answers_decides_about_a_repeat(
    collector: Collector, statuses: list[int], accepted: int, lost: int
) -> None:
    """Spans are posted again after answers that say so, and are lost after others; a failure is counted."""
    collector.statuses["/v1/traces"].extend(statuses)

    async def run() -> Metrics:
        queue, metrics = SpanQueue(), Metrics([], "1")
        for number in range(3):
            queue.add(span(number))
        exporting = exporter(collector, queue, metrics)
        for _ in range(3):
            await exporting._post_all_spans()
        await exporting._collector.client.aclose()
        return metrics

    with log_lines("info") as lines:
        metrics = anyio.run(run)
    assert (metrics.spans.series["accepted",], metrics.spans.series["lost",]) == (accepted, lost)
    assert [line["event"] for line in lines()][:1] == ["otlp.unavailable"]
    assert [line["event"] for line in lines()].count("otlp.unavailable") == 1
    assert collector.headers["/v1/traces"][0]["x-api-key"] == "k"


def test_a_collector_that_takes_metrics_and_no_spans_is_logged_once(collector: Collector) -> None:
    """As one does that has no pipeline for traces."""
    collector.statuses["/v1/traces"].extend([404] * 3)

    async def run() -> None:
        queue = SpanQueue()
        exporting = exporter(collector, queue, Metrics([], "1"))
        for number in range(3):
            queue.add(span(number))
            await exporting._post_all_spans()
            await exporting._post_metrics()
        queue.add(span(4))
        await exporting._post_all_spans()
        await exporting._collector.client.aclose()

    with log_lines("info") as lines:
        anyio.run(run)
    assert [line["event"] for line in lines()] == ["otlp.unavailable", "otlp.recovered"]


@pytest.mark.parametrize(("refused", "lost"), [(-5, 0), (2, 2), (2**62, 3)])
def test_a_collector_cannot_refuse_other_spans_than_it_was_sent(
    collector: Collector, refused: int, lost: int
) -> None:
    collector.refused = refused

    async def run() -> Metrics:
        queue, metrics = SpanQueue(), Metrics([], "1")
        for number in range(3):
            queue.add(span(number))
        exporting = exporter(collector, queue, metrics)
        await exporting._post_all_spans()
        await exporting._collector.client.aclose()
        return metrics

    metrics = anyio.run(run)
    assert (metrics.spans.series["accepted",], metrics.spans.series["lost",]) == (3 - lost, lost)


def test_a_reason_that_is_no_unicode_is_exported_all_the_same(collector: Collector) -> None:
    """Adapters of other packages give reasons; one must not end the worker."""

    async def run() -> None:
        queue = SpanQueue()
        queue.add(span(1)._replace(name="attempt \udc80", error="no \ud800", attributes={"x": "\ud800"}))
        exporting = exporter(collector, queue, Metrics([], "1"))
        assert await exporting._post_all_spans()
        await exporting._collector.client.aclose()

    anyio.run(run)
    (found,) = collector.spans
    assert (found.name, found.status.message) == ("attempt \\udc80", "no \\ud800")


def test_an_answer_that_is_no_answer_of_a_collector() -> None:
    """A partial success counts; anything else is no reason to repeat."""
    assert refused_spans(b"") == 0
    with pytest.raises(ValueError, match="collector"):
        refused_spans(b"<html>")


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ('[otlp]\nendpoint = "127.0.0.1:4318"\n', "otlp.endpoint: "),
        ('[otlp]\nendpoint = "http://127.0.0.1:4318"\nsample = 2\n', "otlp.sample: "),
        ("traceparent = true\n", "channels.sms.traceparent: needs otlp.endpoint"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, tables: str, problem: str) -> None:
    """At its key."""
    path = tmp_path / "config.toml"
    path.write_text(
        '[service]\nbase_url = "http://service"\n[journal]\nurl = "sqlite:///journal.db"\n'
        '[channels.sms]\nadapter = "http"\nurl = "http://provider/sms"\njson = { text = "{content.text}" }\n'
        + tables,
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as raised:
        load(path, environ={})
    assert any(each.startswith(f"{path}:{problem}") for each in raised.value.problems)


@pytest.mark.slow
def test_check_says_whether_the_collector_can_be_reached(world: World, collector: Collector) -> None:
    """A warning, since messages are delivered without it."""
    assert line(check(world), "otlp.endpoint").endswith(f"{collector.address} can be reached")
    world.change(f'endpoint = "{collector.address}"', f'endpoint = "http://127.0.0.1:{free_port()}"')
    answered = check(world)
    assert "refused" in warned(answered)["otlp.endpoint"]
    assert answered.status == 0


@pytest.mark.slow
def test_a_reloaded_provider_is_traced(world: World, collector: Collector) -> None:
    """Its requests are spans and carry the header as before; another collector needs a restart."""
    worker = world.start()
    send(world, 1)
    world.change("attempts = 2", "attempts = 3")
    assert world.command("reload", "--config", str(world.config)).returncode == 0
    send(world, 2)
    world.change("[otlp]", "[otlp]\nsample = 0.5")
    refused = world.command("reload", "--config", str(world.config))
    assert refused.returncode == 78
    assert "otlp.sample" in refused.stdout + refused.stderr
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert [span.name for span in collector.spans].count("request sms") == 2
    assert ["traceparent" in headers for headers in collector.headers["/sms"]] == [True, True]


def send(world: World, id_: int) -> None:
    """Have a message sent."""
    world.state.enqueue({**message(id_), "variables": {"name": "Ann"}})
    world.state.wait_for(lambda state: "sent" in state.statuses(id_), 30)
