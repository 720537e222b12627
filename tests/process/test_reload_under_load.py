"""Reloads of each kind while a worker sends: a real process, real sockets, and a steady load.

`DELIVERYD_RELOAD_RATE` sets the messages per second (default 300). What was measured is printed: see `-s`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any, Self

import pytest

from deliveryd.sandbox.state import SandboxState
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.world import World, open_world

pytestmark = pytest.mark.slow

RATE = int(os.environ.get("DELIVERYD_RELOAD_RATE", "300"))
BETWEEN = RATE // 3
"""Messages that are sent between two reloads."""

CUSTOMERS = [{"id": id_, "name": f"N{id_}", "phone": f"+4477009{id_:05}"} for id_ in range(1, 51)]

HEAD = """\
[service]
base_url = "{base_url}"
timeout = "5s"
auth = {{ token_file = "service-token" }}
[queue]
poll_interval = "20ms"
max_poll_interval = "100ms"
[events]
flush_interval = "20ms"
[settings]
cache_dir = "cache"
[customers]
source = "file"
path = "customers.jsonl"
[journal]
url = "sqlite:///journal.db"
[admin]
listen = "127.0.0.1:0"
[receipts]
listen = "127.0.0.1:0"
"""
PROVIDER = """
[channels.sms.providers.{name}]
adapter = "http"
url = "{base_url}/sms"
json = {{ to = "{{customer.phone}}", text = "{{content.text}}", reference = "{{message.id}}", via = "{via}" }}
headers = {{ X-Secret = "{{secret.token}}" }}
secrets = {{ token = "provider-token" }}
provider_id = "/id"
"""
RECEIPT = """\
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reference = "/reference", signature = { header = "X-Signature", secret_file = SECRETS } }
"""


class Load:
    """Puts messages into the queue at a steady rate, until it is stopped."""

    def __init__(self, state: SandboxState) -> None:
        self._state = state
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Put no more in."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.02):
            due = int((time.monotonic() - began) * RATE)
            more = range(self.count + 1, due + 1)
            self._state.enqueue(*(message(id_, id_ % 5 + 1, id_ % 50 + 1, word=f"w{id_}") for id_ in more))
            self.count = max(due, self.count)


class Scene:
    """A worker under load, and its configuration."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[str, str] = {}
        self.measured: list[tuple[str, float, float]] = []
        for name in ("service-token", "provider-token", "receipts-1", "receipts-2"):
            self.secret(name, f"{name}-first")
        self.head = HEAD.format(base_url=world.sandbox.base_url)
        self.receipt = RECEIPT.replace("SECRETS", '"receipts-1"')

    def secret(self, name: str, value: str) -> None:
        """Write a secret."""
        path = self.world.folder / name
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(value)
        new.rename(path)

    def provider(self, name: str, via: str, keys: str = "") -> str:
        """A provider whose requests name `via`."""
        return PROVIDER.format(name=name, via=via, base_url=self.world.sandbox.base_url) + keys

    def write(self, *tables: str, head: str = "") -> None:
        """Replace the configuration, as an editor does."""
        new = self.world.folder / "config.new"
        new.write_text(head + self.head + "".join(tables))
        new.rename(self.world.config)

    def command(self, *options: object) -> Answered:
        """Run `deliveryd reload`."""
        return command("reload", "--config", self.world.config, *options)

    def flows(self) -> None:
        """Wait until some more messages were sent."""
        count = len(self.world.state.received) + BETWEEN
        self.world.state.wait_for(lambda state: len(state.received) >= count, PATIENCE)

    def in_force(self, what: str, via: str, *options: object) -> Answered:
        """Reload; wait for the first request that names `via`, and note how long both took."""
        began = time.monotonic()
        answered = self.command(*options)
        answered_after = time.monotonic() - began
        assert (answered.status, answered.err) == (0, ""), (what, answered)
        self.sees(via)
        self.measured.append((what, answered_after, time.monotonic() - began))
        self.flows()
        return answered

    def sees(self, via: str) -> None:
        """Wait for a request that names `via`."""
        self.world.state.wait_for(
            lambda state: state.received and state.received[-1].payload["via"] == via, PATIENCE
        )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    for world in open_world(tmp_path):
        world.customers(CUSTOMERS)
        for id_ in range(1, 6):
            world.state.settings[id_] = sms_settings()
        world.state.token = "service-token-first"
        world.state.receipt_secret = "receipts-1-first"
        world.state.receipt_delay = 0.2
        yield Scene(world)


def started(scene: Scene) -> Popen[bytes]:
    """A worker that takes work, and whose receipts come in."""
    worker = scene.world.start(log="info")
    scene.world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    for line in logged(scene, "server.listening"):
        if line["server"] == "receipts":
            scene.world.state.receipt_targets["sms"] = f"{line['listen']}/receipts/sms/a"
    return worker


def logged(scene: Scene, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in scene.world.log().splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == event]


def rotate_secrets(scene: Scene, both: tuple[str, str]) -> None:
    """Those of a provider, of the service, and of a provider's receipts."""
    world, state = scene.world, scene.world.state
    scene.secret("provider-token", "provider-token-second")
    scene.write(*both)
    scene.in_force("a provider's secret is rotated", "a1")
    world.state.wait_for(
        lambda state: state.received[-1].headers["x-secret"] == "provider-token-second", PATIENCE
    )
    scene.secret("service-token", "service-token-second")
    state.token = "service-token-second"
    scene.in_force("the service's secret is rotated", "a1")
    scene.receipt = RECEIPT.replace("SECRETS", '["receipts-2", "receipts-1"]')
    scene.write(scene.provider("a", "a2", scene.receipt), scene.provider("b", "b1"))
    scene.in_force("a receipts' secret is added", "a2")
    state.receipt_secret = "receipts-2-first"


def test_reloads_of_each_kind_lose_nothing_and_double_nothing(scene: Scene) -> None:
    """Providers come and go, secrets are rotated, a broken file lies in between; no receipt is refused."""
    world, state = scene.world, scene.world.state
    scene.write(scene.provider("a", "a1", scene.receipt))
    worker = started(scene)
    with Load(state) as load:
        scene.sees("a1")
        scene.flows()
        both = (scene.provider("a", "a1", scene.receipt), scene.provider("b", "b1"))
        scene.write(*both)
        scene.in_force("a provider is added", "b1")
        scene.write(*both, "weight = 3\n")
        scene.in_force("a weight changes", "b1")

        scene.write(*both, "weight = -3\nwieght = 2\n")
        refused = scene.command()
        assert refused.status == 78
        assert refused.out == ""
        assert "providers.b.weight: " in refused.err
        assert "wieght: unknown key; did you mean weight?" in refused.err
        world.config.write_text("[service\n")
        assert scene.command().status == 78
        worker.send_signal(signal.SIGHUP)
        scene.flows()

        rotate_secrets(scene, both)

        limits = 'concurrency = 20\nrate = "5000/s"\ntimeout = "7s"\nretry = { attempts = 3 }\n'
        scene.write(
            scene.provider("a", "a3", scene.receipt), scene.provider("b", "b3", limits),
            head='[log]\nlevel = "debug"\n[content]\nlanguages = ["de", "en"]\n',
        )  # fmt: skip
        scene.in_force("limits, log level and languages change", "b3")
        scene.write(scene.provider("a", "a3", scene.receipt), scene.provider("b", "b3", "enabled = false\n"))
        scene.in_force("a provider is disabled", "a3")
        scene.write(scene.provider("a", "a4", scene.receipt))
        scene.in_force("it is removed, and nothing of it left", "a4")
        scene.write(scene.provider("c", "c1"), scene.provider("a", "a4", "weight = 0\n" + scene.receipt))
        began = time.monotonic()
        worker.send_signal(signal.SIGHUP)
        scene.sees("c1")
        scene.measured.append(("SIGHUP: a provider is added", 0.0, time.monotonic() - began))
        scene.write(scene.provider("d", "d1"), scene.provider("a", "a4", "weight = 0\n" + scene.receipt))
        renamed = scene.command()
        assert renamed.status in (0, 78), renamed
        if renamed.status:
            assert "removing it would orphan messages" in renamed.err
            scene.in_force("a provider is renamed", "d1", "--accept-orphans")
        else:
            scene.sees("d1")
        scene.flows()
        load.stop()
        total = load.count
        world.state.wait_for(lambda state: len(state.received) >= total, 3 * PATIENCE)
    answers = Counter(receipt.answered for receipt in state.receipts)  # nobody answers after the end
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    world.run_until_idle()
    report(scene, total, answers)
    assert answers.keys() == {200}
    assert_all_well(scene, total)


def assert_all_well(scene: Scene, total: int) -> None:
    """Each message was sent once and reported in order."""
    state = scene.world.state
    assert Counter(each.message_id for each in state.received) == dict.fromkeys(range(1, total + 1), 1)
    for id_ in range(1, total + 1):
        assert state.statuses(id_)[:2] == ["dequeued", "sent"], id_
    assert len(logged(scene, "config.refused")) >= 3
    assert not logged(scene, "worker.died")
    audited = scene.world.command("audit", "--config", str(scene.world.config))
    assert audited.returncode == 0, audited.stdout


def report(scene: Scene, total: int, answers: Counter[int | None]) -> None:
    """Print what was measured."""
    lines = [
        f"{total} messages at {RATE} a second; answers to receipts: {dict(answers)}",
        *(
            f"  {what:45} command {told:6.3f} s, in force after {seen:6.3f} s"
            for what, told, seen in scene.measured
        ),
    ]
    sys.stdout.write("\n".join(["", *lines, ""]))


# the command and the signal


def test_without_a_worker_the_command_says_so(scene: Scene) -> None:
    scene.write(scene.provider("a", "a1"))
    answered = scene.command()
    place = scene.world.folder / "journal.db.sock"
    assert (answered.status, answered.out) == (1, "")
    assert answered.err == (
        f"deliveryd: no worker is running: nothing listens at {place}."
        " If journal.url or control.socket was changed, restart the worker\n"
    )


def test_the_answer_names_each_change_and_is_json_on_demand(scene: Scene) -> None:
    scene.write(scene.provider("a", "a1"))
    worker = started(scene)
    assert scene.command().out == "nothing has changed\n"
    scene.write(scene.provider("a", "a2"), scene.provider("b", "b1"), head='[run]\ndrain_timeout = "5s"\n')
    assert scene.command().out == (
        "applied: 3\n  run.drain_timeout\n  channels.sms.providers.a.json\n"
        "  channels.sms.providers.b (added)\n"
    )
    scene.write(scene.provider("a", "a2"))
    changes = ["run.drain_timeout", "channels.sms.providers.b (removed)"]
    assert scene.command("--json").data == {"outcome": "applied", "changes": changes, "problems": []}
    scene.write(scene.provider("a", "a2", "weight = -1\n"))
    answered = scene.command("--json")
    assert answered.status == 78
    assert answered.data["outcome"] == "refused"
    assert [line["event"] for line in logged(scene, "config.reloaded")] == ["config.reloaded"] * 3
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_sighup_during_the_start_and_the_end_is_harmless(scene: Scene) -> None:
    """However many there are."""
    scene.write(scene.provider("a", "a1"))
    worker = scene.world.start(log="info")
    scene.world.state.wait_for(lambda state: _hang_up(worker, scene) and state.requests["queue"], PATIENCE)
    for _ in range(20):
        worker.send_signal(signal.SIGHUP)
    worker.terminate()
    for _ in range(20):
        worker.send_signal(signal.SIGHUP)
    assert worker.wait(PATIENCE) == 0, scene.world.log()


def _hang_up(worker: Popen[bytes], scene: Scene) -> bool:
    if "worker.started" in scene.world.log():
        worker.send_signal(signal.SIGHUP)
    return True
