"""`pause`, `resume` and `paused`, on real workers that are killed and on a journal at rest."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest

from deliveryd.control.client import ask
from deliveryd.control.protocol import MOST_KEYS, as_control_reply, socket_of
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import SECOND, parse_instant
from deliveryd.sandbox.faults import ApplyThenHangUp
from deliveryd.worker.health import MOST_PAUSED
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.world import World, open_world

pytestmark = pytest.mark.slow

ANN = {"id": 1, "name": "Ann", "phone": "+447700900101"}
HOUR = 3600 * SECOND
KINDS = {"channel": "sms", "provider": "sms", "settings": "7", "message": "1"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Settings 7 and 8 by sms."""
    for world in open_world(tmp_path):
        world.customers([ANN])
        world.state.settings[7] = sms_settings()
        world.state.settings[8] = sms_settings()
        yield world


def give(world: World, verb: str, *arguments: object) -> Answered:
    kind, *rest = arguments
    return command(verb, kind, "--config", world.config, *rest)


def listed(world: World) -> list[dict[str, object]]:
    found: list[dict[str, object]] = command("paused", "--config", world.config, "--json").data
    return found


def running(world: World) -> Popen[bytes]:
    """A worker that polls the queue."""
    asked = world.state.requests["queue"]
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] > asked, PATIENCE)
    return worker


def started(world: World) -> Popen[bytes]:
    """A worker that is ready, whether it polls or not."""
    ready = world.log().count('"worker.ready"') if (world.folder / "worker.log").exists() else 0
    worker = world.start(log="info")
    deadline = time.monotonic() + PATIENCE
    while world.log().count('"worker.ready"') == ready and time.monotonic() < deadline:
        worker.poll()
    return worker


def killed(worker: Popen[bytes]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def ended(worker: Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


def statuses(world: World, id_: int, *wanted: str) -> None:
    """Wait until the service has these of a message."""
    world.state.wait_for(lambda state: state.statuses(id_) == list(wanted), PATIENCE)


def until_listed(world: World, messages: int) -> dict[str, object]:
    """Wait until so many messages wait for the only pause."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        (found,) = listed(world)
        if found["messages"] == messages:
            return found
    raise AssertionError(f"not {messages} messages are paused: {listed(world)}")


@pytest.mark.parametrize(("kind", "key"), KINDS.items())
def test_a_pause_holds_through_kills_until_it_is_resumed(world: World, kind: str, key: str) -> None:
    """kill -9 after the order, while a message waits, and after the end of the pause; it is sent once."""
    worker = running(world)
    answered = give(world, "pause", kind, key, "--reason", "wrong price")
    assert (answered.status, answered.out) == (0, f"paused: 1\n  {kind}:{key}\n")
    killed(worker)
    worker = running(world)
    world.state.enqueue(message(1, 7))
    statuses(world, 1, "dequeued")
    found = until_listed(world, 1)
    assert (found["kind"], found["key"], found["reason"], found["until"]) == (kind, key, "wrong price", None)
    killed(worker)
    worker = running(world)
    if kind in {"settings", "message"}:
        world.state.enqueue(message(2, 8))
        statuses(world, 2, "dequeued", "sent")
    assert until_listed(world, 1)
    assert give(world, "resume", kind, key).status == 0
    killed(worker)
    worker = running(world)
    statuses(world, 1, "dequeued", "sent")
    assert listed(world) == []
    ended(worker)
    sent = [each.idempotency_key for each in world.state.received]
    assert len(sent) == len(set(sent))
    assert command("audit", "--config", world.config).status == 0


def test_a_paused_intake_takes_nothing_through_a_kill(world: World) -> None:
    worker = running(world)
    assert give(world, "pause", "intake").status == 0
    killed(worker)
    asked = world.state.requests["queue"]
    world.state.enqueue(message(1, 7))
    worker = started(world)
    assert world.state.requests["queue"] == asked
    assert give(world, "resume", "all").out == "resumed: 1\n  intake\n"
    statuses(world, 1, "dequeued", "sent")
    ended(worker)


def test_what_is_in_doubt_is_not_repeated_at_a_paused_provider_through_a_kill(world: World) -> None:
    world.state.fail("provider.sms", ApplyThenHangUp())
    worker = running(world)
    world.state.enqueue(message(1, 7))
    world.state.wait_for(lambda state: len(state.received) == 1, PATIENCE)
    killed(worker)
    assert give(world, "pause", "provider", "sms").status == 0
    worker = running(world)
    until_listed(world, 1)
    assert len(world.state.received) == 1
    assert give(world, "resume", "provider", "sms").status == 0
    statuses(world, 1, "dequeued", "sent")
    ended(worker)
    assert len({each.idempotency_key for each in world.state.received}) == 1


def test_orders_work_with_the_journal_at_rest_and_an_idle_run_says_what_is_left(world: World) -> None:
    paused = give(world, "pause", "settings", 7, "--for", "2h")
    assert (paused.status, paused.out) == (0, "paused for 2h: 1\n  settings:7\n")
    assert "none of the latest 100,000 messages has the settings 7" in paused.err
    world.state.enqueue(message(1, 7), message(2, 8))
    worker = world.start("--until-idle")
    assert worker.wait(PATIENCE) == 1
    assert "messages paused, to be resumed by an operator (deliveryd paused): 1" in world.log()
    (found,) = listed(world)
    assert (found["messages"], found["until"] is not None) == (1, True)
    text = command("paused", "--config", world.config).out
    heading, row = text.splitlines()
    assert heading.split()[:2] == ["paused", "messages"]
    assert row.split()[:3] == ["settings", "7", "1"]
    explained = command("explain", "--config", world.config, 1).out
    assert "paused: settings 7 since" in explained
    assert give(world, "resume", "settings", 7, 9).status == 1
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_the_status_is_shown_with_thousands_of_messages_paused(world: World) -> None:
    """It lists some of them, and before them what holds up more than one message."""
    worker = running(world)
    for first in range(0, 20_000, MOST_KEYS):
        ids = tuple(map(str, range(first, first + MOST_KEYS)))
        order = Order(Action.PAUSE, ItemKind.MESSAGE, ids, reason="x" * 200)
        assert as_control_reply(ask(socket_of(world.folder / "journal.db"), order)).done == ids
    assert give(world, "pause", "channel", "sms").status == 0
    status = command("status", "--config", world.config, "--json").data
    assert (status["paused"][0]["kind"], len(status["paused"])) == ("channel", MOST_PAUSED)
    assert status["paused_left_out"] == 20_001 - MOST_PAUSED
    ended(worker)


def test_a_pause_ordered_after_the_clock_was_put_back_lasts_as_long_as_ordered(world: World) -> None:
    """No worker runs: the start that notices the step moves the pauses from before it, and not this one."""
    world.state.enqueue(message(1, 8))
    world.run_until_idle()
    with closing(sqlite3.connect(world.folder / "journal.db")) as db, db:
        db.execute("UPDATE post SET at = at + ?", (HOUR,))  # the clock was an hour ahead
    began = time.time_ns() // 1000
    assert give(world, "pause", "settings", 7, "--for", "2h").status == 0
    worker = started(world)
    (found,) = listed(world)
    ended(worker)
    assert parse_instant(str(found["since"])) <= time.time_ns() // 1000
    assert parse_instant(str(found["until"])) >= began + 2 * HOUR


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("channel", "smss"), "there is no channel 'smss'; did you mean sms?"),
        (("provider", "sms/b"), "there is no provider 'sms/b'; did you mean sms?"),
        (("settings", "x"), "'x' isn't an integer"),
        (("message", str(2**63)), "isn't a 64-bit integer"),
        (("intake", "--for", "0s"), "must be greater than 0"),
        (("intake", "--for", "soon"), "10s"),
        (("intake", "--reason", "a\nb"), "printable"),
    ],
)
def test_bad_input_is_a_usage_error(world: World, arguments: tuple[str, ...], told: str) -> None:
    answered = give(world, "pause", *arguments)
    assert (answered.status, told in answered.err) == (2, True), answered.err


def test_an_order_without_a_worker_states_when_it_counts(world: World) -> None:
    """Also that a pause before the first start created the journal: a mistyped one shows at once."""
    journal = world.folder / "journal.db"
    first = give(world, "pause", "message", *range(1, MOST_KEYS + 2))
    assert (first.status, len(first.out.splitlines())) == (0, MOST_KEYS + 2)
    assert [line for line in first.err.splitlines() if "wasn't taken yet" not in line] == [
        f"deliveryd: note: there was no journal at {journal}: it was created",
        "deliveryd: note: no worker is running; this counts from the next start",
    ]
    for verb in ("pause", "resume"):
        answered = give(world, verb, "intake", "--json")
        assert (answered.status, answered.data["done"]) == (0, ["intake"])
        assert answered.err == "deliveryd: note: no worker is running; this counts from the next start\n"
    worker = running(world)
    assert give(world, "pause", "intake") == Answered(0, "paused: 1\n  intake\n", "")
    ended(worker)


@pytest.mark.parametrize("order", [("resume", "intake"), ("failed", "retry", 1), ("forget", 1)])
def test_an_order_about_what_a_journal_holds_creates_none(world: World, order: tuple[str, ...]) -> None:
    verb, *rest = order
    answered = command(verb, *rest, "--config", world.config)
    journal = world.folder / "journal.db"
    assert (answered.status, answered.err) == (
        1, f"deliveryd: there is no journal at {journal}: deliveryd hasn't run with it yet\n",
    )  # fmt: skip
    assert not journal.exists()


def test_nothing_is_paused_before_the_first_run(world: World) -> None:
    assert command("paused", "--config", world.config).out == "nothing is paused\n"
    assert json.loads(command("paused", "--config", world.config, "--json").out) == []
