"""The worker's numbers, read back the way Prometheus reads them."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from deliveryd.admin.exposition import expose
from deliveryd.channels.base import Accepted, InDoubt, Misconfigured, Refused, Stopped, TryAgain
from deliveryd.metrics import Levels, Metrics
from deliveryd.states import State


def metrics() -> Metrics:
    return Metrics(["sms", "email"], "0.1.0")


def samples(exposed: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    found = {}
    for family in parse_text(exposed):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_every_series_is_there_from_the_start_at_zero() -> None:
    """A dashboard and an alert rule find all labels before anything has happened."""
    found = samples(expose(metrics(), "")[0].decode())

    ours = {name: value for name, value in found.items() if name.startswith("deliveryd_")}
    assert ours.pop("deliveryd_info{version=0.1.0}") == 1
    assert set(ours.values()) == {0}
    for expected in (
        "deliveryd_messages_taken_total",
        "deliveryd_messages_ended_total{channel=none,provider=none,state=failed}",
        "deliveryd_attempts_total{channel=email,provider=email,verdict=in_doubt}",
        "deliveryd_attempt_duration_seconds_count{channel=sms,provider=sms}",
        "deliveryd_events_post_failures_total{reason=unavailable}",
        "deliveryd_settings_cache_hits_total{cache=disk}",
        "deliveryd_receipts_total{channel=sms,provider=sms,result=forged}",
        "deliveryd_journal_commit_seconds_count",
    ):
        assert expected in ours
    assert not [name for name in found if name.endswith("_created")]
    assert "process_open_fds" in found


def test_what_happens_is_counted() -> None:
    """Whatever counts moves the number that its name promises."""
    counted = metrics()
    counted.taken(fresh=5, repeated=2, malformed=1)
    for size in (100, 60, 0, 0):
        counted.answered(asked=100, size=size)
    counted.take_failures.add("unreadable")
    counted.ended(State.SENT, "sms", 4)
    counted.ended(State.FAILED, None)
    others = (TryAgain("later"), InDoubt("gone"), Misconfigured("401"))
    for verdict in (Accepted("p-1"), Refused("no"), Stopped("blocked"), *others):
        counted.attempted("sms", verdict, 0.5)
    counted.accepted_after("sms", [90])
    counted.posted(12)
    counted.events_accepted.add(count=10)
    counted.events_refused.add()
    counted.post_failures.add("unavailable")
    counted.settings_requests.add("found")
    counted.settings_hits.add("memory")
    counted.customers.add("unknown")
    counted.receipt("unmatched", "sms")
    counted.commits.observe(0.004)

    found = samples(expose(counted, "")[0].decode())
    moved = {name: value for name, value in found.items() if name.startswith("deliveryd_") and value}
    counters = {name: value for name, value in moved.items() if "_bucket" not in name and "_sum" not in name}
    assert counters == {
        "deliveryd_info{version=0.1.0}": 1,
        "deliveryd_messages_taken_total": 5,
        "deliveryd_messages_repeated_total": 2,
        "deliveryd_messages_malformed_total": 1,
        "deliveryd_queue_takes_total{batch=full}": 1,
        "deliveryd_queue_takes_total{batch=short}": 1,
        "deliveryd_queue_takes_total{batch=empty}": 2,
        "deliveryd_queue_take_failures_total{reason=unreadable}": 1,
        "deliveryd_messages_ended_total{channel=sms,provider=sms,state=sent}": 4,
        "deliveryd_messages_ended_total{channel=none,provider=none,state=failed}": 1,
        **{
            f"deliveryd_attempts_total{{channel=sms,provider=sms,verdict={word}}}": 1
            for word in ("accepted", "refused", "stopped", "try_again", "in_doubt", "misconfigured")
        },
        "deliveryd_attempt_duration_seconds_count{channel=sms,provider=sms}": 6,
        "deliveryd_delivery_delay_seconds_count{channel=sms,provider=sms}": 1,
        "deliveryd_event_posts_total": 1,
        "deliveryd_events_posted_total": 12,
        "deliveryd_events_accepted_total": 10,
        "deliveryd_events_refused_total": 1,
        "deliveryd_events_post_failures_total{reason=unavailable}": 1,
        "deliveryd_settings_requests_total{result=found}": 1,
        "deliveryd_settings_cache_hits_total{cache=memory}": 1,
        "deliveryd_customer_lookups_total{result=unknown}": 1,
        "deliveryd_receipts_total{channel=sms,provider=sms,result=unmatched}": 1,
        "deliveryd_journal_commit_seconds_count": 1,
    }
    assert moved["deliveryd_delivery_delay_seconds_sum{channel=sms,provider=sms}"] == 90


def test_levels_are_asked_for_at_each_scrape() -> None:
    """Gauges show the worker as it is now, with every state, also those that no message is in."""
    now = Levels(
        {State.WAITING: 3},
        outbox=7,
        journal_size=4096,
        providers_open={"sms": True},
        providers_silent={"sms": True},
        in_flight=40,
        in_flight_limit=1000,
    )
    watched = metrics()
    watched.levels = lambda: now

    found = samples(expose(watched, "")[0].decode())
    assert found["deliveryd_messages_in_state{state=waiting}"] == 3
    assert found["deliveryd_messages_in_state{state=in_doubt}"] == 0
    assert (found["deliveryd_outbox_events"], found["deliveryd_journal_size_bytes"]) == (7, 4096)
    assert found["deliveryd_channel_open{channel=sms,provider=sms}"] == 1
    assert (found["deliveryd_in_flight_slots"], found["deliveryd_in_flight_slots_limit"]) == (40, 1000)

    now = Levels(
        {State.IN_DOUBT: 1}, outbox=0, journal_size=8192, providers_open={"sms": False}, providers_silent={}
    )
    found = samples(expose(watched, "")[0].decode())
    assert found["deliveryd_messages_in_state{state=waiting}"] == 0
    assert found["deliveryd_messages_in_state{state=in_doubt}"] == 1
    assert found["deliveryd_channel_open{channel=sms,provider=sms}"] == 0


def test_two_workers_in_one_process_count_apart() -> None:
    """Nothing is kept in the library's global registry."""
    one, other = metrics(), metrics()
    one.taken(fresh=1, repeated=0, malformed=0)

    assert samples(expose(other, "")[0].decode())["deliveryd_messages_taken_total"] == 0


def test_a_scraper_may_ask_for_openmetrics() -> None:
    """The format follows the Accept header, and a strict parser reads it."""
    body, content_type = expose(metrics(), "application/openmetrics-text; version=1.0.0")

    assert content_type.startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(body.decode())}  # type: ignore[no-untyped-call]
    assert {"deliveryd_attempts", "deliveryd_journal_commit_seconds"} <= names
