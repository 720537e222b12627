"""A worker whose journal is a PostgreSQL database: real processes, a real server, the same promises."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import httpx
import pytest

from deliveryd.commands.common.shared_journal import workers_of
from deliveryd.commands.orders.orders import carry_out
from deliveryd.config import load
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.sandbox.faults import FaultAnswer, Hang
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.postgres import new_database
from support.terminal import command
from support.world import PAGE_TOKEN, World, open_world

pytestmark = pytest.mark.slow

ME = f"{getpass.getuser()}@{socket.gethostname()}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world whose journal is an empty database."""
    url = new_database()
    if url is None:
        pytest.skip("no PostgreSQL here")
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.use_postgresql(url)
        yield world


def until(condition: Callable[[], bool], worker: subprocess.Popen[bytes]) -> None:
    """Wait until something is so, while a worker runs."""
    deadline = monotonic() + PATIENCE
    while not condition():
        assert worker.poll() is None
        assert monotonic() < deadline


def handles(pid: int, received: signal.Signals) -> bool:
    """Whether a process doesn't leave a signal to the system."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (received - 1) & 1)


def end(worker: subprocess.Popen[bytes]) -> None:
    """Have a worker finish what it does, as soon as it has begun."""
    until(lambda: handles(worker.pid, signal.SIGTERM), worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


def test_a_worker_takes_sends_and_reports_from_a_database(world: World) -> None:
    """What a queue gives is sent once and reported in order, and the next start goes on where that ended."""
    world.state.enqueue(*(message(id_) for id_ in range(1, 6)))
    world.run_until_idle()
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 6))
    world.state.enqueue(message(6), message(1))
    world.run_until_idle()
    assert world.state.statuses(6) == ["dequeued", "sent"]
    assert world.state.requests["provider.sms"] == 6


def test_commands_find_the_worker_at_its_socket(world: World) -> None:
    """Status, reload and orders go to the worker of this machine, at control.socket."""
    worker = world.start(log="info")
    place = world.folder / "control.sock"
    until(place.exists, worker)
    shown = command("status", "--config", world.config, "--json")
    assert shown.status == 0
    assert shown.data["disk"] is None
    assert command("reload", "--config", world.config).out == "nothing has changed\n"
    world.change('url = "postgresql', 'lease = "30s"\nurl = "postgresql')
    refused = command("reload", "--config", world.config)
    assert refused.status == 78
    assert "journal.lease: needs a restart" in refused.err
    world.change('lease = "30s"\n', "")
    paused = command("pause", "intake", "--for", "1h", "--config", world.config)
    assert (paused.status, paused.err) == (0, "")
    followed = (
        "SELECT w.pauses = v.number FROM main.worker w, main.version v"
        " WHERE w.ended IS NULL AND v.kind = 'pauses'"
    )
    assert world.rows(followed) == [(True,)]  # the command returned once the worker went by it
    until(lambda: '"desk.decided"' in world.log(), worker)
    assert world.rows('SELECT verb, "user" FROM main.decision') == [("pause", ME)]
    end(worker)
    assert not place.exists()


def test_orders_need_no_worker(world: World) -> None:
    """A command works on the database itself, beside whoever uses it, and says from which machine."""
    world.state.enqueue(message(1))
    config = load(world.config)
    assert carry_out(config, Action.PAUSE, {ItemKind.CHANNEL: ["sms"]}, "closed").done == ("channel:sms",)
    assert world.start("--until-idle").wait(PATIENCE) == 1  # it is paused
    assert world.state.statuses(1) == ["dequeued"]
    assert carry_out(config, Action.RESUME, {ItemKind.CHANNEL: ["sms"]}).done == ("channel:sms",)
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]
    assert world.rows('SELECT verb, "user", reason FROM main.decision ORDER BY seq') == [
        ("pause", ME, "closed"), ("resume", ME, None),
    ]  # fmt: skip


def test_what_a_command_decided_is_reported_by_a_worker(world: World) -> None:
    """The event of a doubt that was settled without a worker reaches the service with the next one."""
    world.change('timeout = "15s"', 'timeout = "500ms"\non_in_doubt = "hold"')
    world.state.fail("provider.sms", Hang())
    world.state.enqueue(message(1))
    assert world.start("--until-idle").wait(PATIENCE) == 1  # it is held
    answer = carry_out(load(world.config), Action.SETTLE_SENT, {ItemKind.MESSAGE: ["1"]})
    assert answer.done == ("message:1",)
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]
    assert world.state.requests["provider.sms"] == 1


def test_a_failed_message_begins_anew_beside_a_live_worker_of_another_machine(world: World) -> None:
    """The command doesn't reach that worker's socket; the worker takes what the command left."""
    world.state.fail("provider.sms", FaultAnswer(400))
    world.state.enqueue(message(1))
    worker = world.start()
    until(lambda: world.state.statuses(1) == ["dequeued", "error"], worker)
    world.change('socket = "control.sock"', 'socket = "elsewhere.sock"')
    answer = carry_out(load(world.config), Action.BEGIN_ANEW, {ItemKind.MESSAGE: ["1"]})
    assert answer.done == ("message:1",)
    end(worker)
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "error", "sent"]


def test_two_workers_share_a_database_and_a_machine(world: World) -> None:
    """Each has a socket of its own; together they send each message once."""
    first = world.start()
    until((world.folder / "control.sock").exists, first)
    second = world.start(DELIVERYD_CONTROL__SOCKET=str(world.folder / "second.sock"))
    until((world.folder / "second.sock").exists, second)
    world.state.enqueue(*(message(id_) for id_ in range(1, 101)))
    until(lambda: all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 101)), first)
    assert second.poll() is None
    assert world.rows("SELECT count(*) FROM main.worker WHERE began_at > 0") == [(2,)]
    end(first)
    end(second)
    assert world.state.requests["provider.sms"] == 100


def test_a_pause_on_the_page_is_answered_when_all_workers_go_by_it(world: World) -> None:
    """As deliveryd pause does: a worker that follows isn't named."""
    world.take_orders()
    first = world.start(log="info")
    until((world.folder / "control.sock").exists, first)
    lines = map(json.loads, world.log().splitlines())
    listen = next(line["listen"] for line in lines if line.get("server") == "admin")
    second = world.start(DELIVERYD_CONTROL__SOCKET=str(world.folder / "second.sock"))
    until((world.folder / "second.sock").exists, second)
    answer = httpx.post(
        f"{listen}/actions/pause", json={"kind": "channel", "key": "sms"}, trust_env=False, timeout=PATIENCE,
        headers={"Authorization": f"Bearer {PAGE_TOKEN}"},
    )  # fmt: skip
    assert answer.json() == {"done": ["sms"], "skipped": {}}
    assert workers_of(load(world.config)).behind() == []
    end(first)
    end(second)


def test_a_socket_is_left_to_the_worker_that_has_it(world: World) -> None:
    """A second worker with the same socket works without one, and says what to do."""
    first = world.start()
    until((world.folder / "control.sock").exists, first)
    inode = (world.folder / "control.sock").stat().st_ino
    second = world.start()
    until(lambda: "desk.closed" in world.log(), second)
    assert "give each worker of a machine its own control.socket" in world.log()
    assert (world.folder / "control.sock").stat().st_ino == inode
    end(second)
    assert command("status", "--config", world.config).status == 0
    end(first)


def test_a_missing_folder_of_the_socket_is_told_and_the_worker_works(world: World) -> None:
    world.change('socket = "control.sock"', 'socket = "run/control.sock"')
    world.state.enqueue(message(1))
    worker = world.start()
    until(lambda: "desk.closed" in world.log(), worker)
    closed = next(json.loads(line) for line in world.log().splitlines() if "desk.closed" in line)
    assert f"there is no folder {world.folder / 'run'}" in closed["reason"]
    until(lambda: world.state.statuses(1) == ["dequeued", "sent"], worker)
    end(worker)


def test_a_worker_whose_sessions_hang_ends_all_the_same(world: World) -> None:
    """Nothing of the database answers: soon after the drain the process ends with 1, and the log says why."""
    world.change('timeout = "1m"', 'timeout = "2s"')
    world.add('[run]\ndrain_timeout = "300ms"\n')
    worker = world.start()
    until(lambda: world.state.requests["queue"] >= 2, worker)
    query = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE application_name = 'deliveryd' AND datname = current_database()"
    )
    sessions = [pid for (pid,) in world.rows(query)]
    for pid in sessions:
        with suppress(ProcessLookupError):  # one that only counts comes and goes
            os.kill(pid, signal.SIGSTOP)
    try:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 1
    finally:
        for pid in sessions:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert "worker.hung" in world.log()
