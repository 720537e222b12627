"""The alert rules and the dashboard of deploy/, against a real Prometheus that scrapes a real worker."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from deliveryd.admin.exposition import expose
from deliveryd.commands.app import COMMANDS
from deliveryd.metrics import Levels, Metrics
from deliveryd.sandbox.faults import ApplyThenHangUp, FaultAnswer
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.prometheus import (
    DASHBOARD,
    MISSING,
    PROMETHEUS,
    PROMTOOL,
    ROOT,
    RULES,
    RULES_TEST,
    Prometheus,
    scraping,
)
from support.terminal import command
from support.world import World, get, open_world

needs_prometheus = pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason=MISSING)
ALERTS = re.findall(r"^ *- alert: (\w+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]

PROVIDERS = """
[channels.sms.providers.first]
adapter = "http"
url = "BASE_URL/sms"
json = { to = "{customer.phone}", text = "{content.text}", reference = "{message.id}" }
provider_id = "/id"
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"] }

[channels.sms.providers.backup]
adapter = "http"
url = "BASE_URL/messenger"
json = { to = "{customer.phone}", text = "{content.text}", reference = "{message.id}" }
provider_id = "/id"

[channels.inApp]
adapter = "http"
url = "BASE_URL/inApp"
json = { to = "{customer.phone}", text = "{content.description}", reference = "{message.id}" }
provider_id = "/id"
on_in_doubt = "hold"

[safety]
share = "100%"
only_to = ["customer:1"]
"""
NOTIFICATION = {"title": "Hello", "body": "All"}
IN_APP = {"content": {"en": {"inApp": {"name": "Hello", "description": "All", "notification": NOTIFICATION}}}}


class Question(NamedTuple):
    """A query of the dashboard."""

    panel: str
    query: str


def questions() -> list[Question]:
    asked = [Question(panel["title"], each["expr"]) for panel in PANELS for each in panel["targets"]]
    return [*asked, *(Question(each["name"], each["expr"]) for each in BOARD["annotations"]["list"])]


def names_in(expression: str) -> set[str]:
    """The metrics of ours that an expression names."""
    return set(re.findall(r"\bdeliveryd_\w+", expression))


def filled(query: str) -> str:
    """A query as Grafana sends it with everything selected."""
    for variable, value in {"$__rate_interval": "20s", "$job": "deliveryd"}.items():
        query = query.replace(variable, value)
    return re.sub(r"\$(instance|channel)", ".*", query)


# ---- what the files say


def test_the_rules_and_the_dashboard_name_metrics_that_there_are() -> None:
    """A metric that is renamed takes them along."""
    metrics = Metrics(["sms"], "0.1.0")
    metrics.levels = lambda: Levels(
        {}, outbox=0, journal_size=0, providers_open={"sms": False},
        providers_silent={"sms": False}, pauses={"channel": 0}, in_doubt={"sms": 0},
    )  # fmt: skip
    there = {
        sample.name for family in parse_text(expose(metrics, "")[0].decode()) for sample in family.samples
    }
    variables = [each["query"]["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    rules = re.sub(r"^ *#.*$", "", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = names_in(rules).union(
        *(names_in(query) for query in (*variables, *(q.query for q in questions())))
    )
    assert named <= there
    shown = set().union(*(names_in(each.query) for each in questions()))
    assert {re.sub(r"_(sum|count|bucket)$", "_bucket", name) for name in names_in(" ".join(there))} <= shown


def test_each_alert_is_tested_and_says_what_to_do() -> None:
    """Its page is there, its commands exist, and no two alerts have one name."""
    rules, tests = RULES.read_text(encoding="utf-8"), RULES_TEST.read_text(encoding="utf-8")
    assert len(ALERTS) == len(set(ALERTS)) >= 20
    assert [name for name in ALERTS if f'alertname="{name}"' not in tests] == []
    runbooks = re.findall(r"^ +runbook: (\S+)", rules, re.MULTILINE)
    assert len(runbooks) == len(re.findall(r"description: \"", rules)) == len(ALERTS)
    assert [page for page in runbooks if not (ROOT / page).is_file()] == []
    assert set(re.findall(r"severity: (\w+)", rules.partition("groups:")[2])) == {"critical", "warning"}
    verbs = set(re.findall(r"(?:Run|then) deliveryd ([a-z-]+)", rules))
    assert "paused" in verbs
    assert verbs <= set(COMMANDS)


def test_the_dashboard_can_be_imported_anywhere() -> None:
    """No data source is named, every panel has room of its own, and says what it shows."""
    assert [each["name"] for each in BOARD["templating"]["list"]] == [
        "datasource",
        "job",
        "instance",
        "channel",
    ]
    assert {part["datasource"]["uid"] for panel in PANELS for part in (panel, *panel["targets"])} == {
        "${datasource}"
    }
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(panel["title"] and panel["description"] for panel in PANELS)
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    assert not [pair for pair in combinations(places, 2) if overlap(*pair)]


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


# ---- what Prometheus says


def promtool(*arguments: object, said: str | None = None) -> str:
    """Run promtool, which must find nothing wrong; return all that it prints."""
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, *map(str, arguments)],
        input=said,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.mark.slow
@needs_prometheus
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", "--lint-fatal", RULES)


@pytest.mark.slow
@needs_prometheus
def test_each_rule_fires_when_it_should_and_no_other_with_it() -> None:
    assert "SUCCESS" in promtool("test", "rules", RULES_TEST)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A provider that confirms, one that is down, a channel that leaves doubts, and paused settings."""
    for world in open_world(tmp_path):
        text = world.config.read_text(encoding="utf-8").replace('listen = ""', 'listen = "127.0.0.1:0"')
        world.write_config(text[: text.index("[channels.sms]")])
        world.add(PROVIDERS)
        world.customers([{"id": 1, "language": "en", "name": "Ann", "phone": "+447700900101"}])
        world.state.settings.update({1: sms_settings("Hello {word}"), 2: IN_APP, 4: sms_settings()})
        world.state.fail_until_healed("provider.messenger", FaultAnswer(503))
        world.state.fail_until_healed("provider.inApp", ApplyThenHangUp())
        yield world


def listening(world: World) -> dict[str, str]:
    """The addresses of a new worker's servers, when it asks for messages."""
    worker = world.start(log="info")
    while not world.state.requests["queue"]:
        assert worker.poll() is None, world.log()
    lines = map(json.loads, world.log().splitlines())
    return {line["server"]: line["listen"] for line in lines if line["event"] == "server.listening"}


RAISED = {"DeliverydMessagesInDoubt", "DeliverydPauseForgotten", "DeliverydProviderDown"}
"""Alerts that follow from this load."""


def put_load_on(world: World, prometheus: Prometheus) -> None:
    """Messages in portions, each sent and seen by a scrape: sent, failed, in doubt, paused."""
    state, ids = world.state, iter(range(1, 1_000_000))
    state.enqueue('{"id": "malformed"}', *(message(next(ids), 2) for _ in range(3)))
    state.enqueue(*(message(next(ids), 3) for _ in range(3)), *(message(next(ids), 4) for _ in range(5)))
    for portion in range(1, 5):
        state.enqueue(*(message(next(ids)) for _ in range(200)))
        prometheus.until(
            'sum(deliveryd_messages_ended_total{channel="sms",state="delivered"}) '
            f">= {150 * portion} and sum(deliveryd_messages_taken_total) >= {200 * portion}"
        )
    prometheus.until("sum(deliveryd_messages_in_doubt) > 0 and sum(deliveryd_paused_messages) > 0")
    prometheus.until("max(deliveryd_channel_open) == 1")
    raised = "|".join(sorted(RAISED))
    prometheus.until(f'count(count by (alertname) (ALERTS{{alertname=~"{raised}"}})) == {len(RAISED)}')


@pytest.mark.slow
@needs_prometheus
def test_every_panel_shows_a_worker_under_load(world: World) -> None:
    """Each query of the dashboard returns figures, and each rule can be evaluated."""
    servers = listening(world)
    world.state.receipt_targets["sms"] = f"{servers['receipts']}/receipts/sms/first"
    assert command("pause", "settings", "4", "--config", world.config).status == 0
    with scraping(servers["admin"].removeprefix("http://"), world.folder) as prometheus:
        put_load_on(world, prometheus)
        found = {each: prometheus.series(filled(each.query)) for each in questions()}
        rules = prometheus.rules()
    exposed = get(f"{servers['admin']}/metrics").text
    assert promtool("check", "metrics", said=exposed) == ""
    empty = [
        each
        for each, series in found.items()
        if not any(math.isfinite(float(one["value"][1])) for one in series)
    ]
    assert [each for each in empty if each.panel != "Starts"] == []  # the worker didn't start again
    assert sorted(rule["name"] for rule in rules) == sorted(ALERTS)
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    assert {alert["labels"]["alertname"] for rule in rules for alert in rule["alerts"]} >= RAISED
