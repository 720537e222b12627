"""A customer with five devices, two dead and one throttled: the worker is killed on the message's way."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from crashes.failpoints import Failpoint
from crashes.peers import Peer
from crashes.stage import KILLED, UNTIL_IDLE, read_counts
from deliveryd.journal.reader import file_reader
from deliveryd.sandbox.server import Sandbox
from deliveryd.states import State
from support.messages import message
from support.sandboxes import open_sandbox

pytestmark = pytest.mark.slow

DEAD, THROTTLED, FINE = ("dead-1", "dead-2"), "throttled", ("fine-1", "fine-2")
STEPS = ("COMMIT.take", "COMMIT.accept", "COMMIT.change", "DevicesChannel.send", "HttpChannel.send")
"""Boundaries of the message's way: the worker is killed at their first, a middle and their last passing."""

CONFIG = """
[service]
base_url = "{service}"
[queue]
poll_interval = "50ms"
[customers]
source = "file"
path = "customers.jsonl"
[journal]
url = "sqlite:///journal.db"
[settings]
cache_dir = "cache"
[admin]
listen = ""
[channels.inApp]
adapter = "http"
url = "{gateway}"
allow_plain_text = true
json = {{ token = "{{customer.tokens}}", text = "{{content.description}}" }}
recipient = "{{customer.tokens}}"
devices = true
provider_id = "/id"
answers = [{{ status = [404], verdict = "stopped" }}]
retry = {{ base = "50ms", max = "100ms" }}
"""


class Gateway(ThreadingHTTPServer):
    """Devices that answer by their names; `accepted` has the keys of each."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: Counter[str] = Counter()
        self.keys: defaultdict[str, set[str]] = defaultdict(set)
        self.accepted: Counter[str] = Counter()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}/send"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        device = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["token"]
        gateway = self.server
        gateway.asked[device] += 1
        gateway.keys[device].add(self.headers["Idempotency-Key"])
        status = 404 if device in DEAD else 200
        if device == THROTTLED and gateway.asked[device] == 1:
            status = 503
        gateway.accepted[device] += status == 200
        body = json.dumps({"id": f"id-{device}"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Peer]:
    with Peer("launcher", "--serve") as launcher:
        yield launcher


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as gateway:
        serving = Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield gateway
        gateway.shutdown()
        serving.join()


class Story:
    """Workers that live one after the other in a folder."""

    def __init__(self, folder: Path, launcher: Peer, sandbox: Sandbox, gateway: Gateway) -> None:
        self._folder = folder
        self._launcher = launcher
        self._sandbox = sandbox
        self._gateway = gateway
        self._write_devices(*DEAD, THROTTLED, *FINE)
        text = CONFIG.format(service=sandbox.base_url, gateway=gateway.url)
        folder.joinpath("config.toml").write_text(text, encoding="utf-8")
        content = {"en": {"inApp": {"name": "Hi", "description": "hello"}}}
        sandbox.state.settings[1] = {"content": content}
        sandbox.state.enqueue(message(1, 1, 7))

    def _write_devices(self, *devices: str) -> None:
        customer = {"id": 7, "tokens": devices}
        self._folder.joinpath("customers.jsonl").write_text(json.dumps(customer), encoding="utf-8")

    def live(self, failpoint: Failpoint | None = None) -> int:
        """Let a worker live until there is nothing more to do, or it is killed; return its status."""
        folder = self._folder
        order = {
            "arguments": ["run", "--config", str(folder / "config.toml"), UNTIL_IDLE],
            "failpoint": failpoint, "counts": str(folder / "counts"), "log": str(folder / "log"),
            "one_thread": False,
        }  # fmt: skip
        self._launcher.ask(order)
        self._launcher.say_line("go")
        status = self._launcher.hear()["status"]
        assert isinstance(status, int)
        return status

    def finish(self) -> None:
        """Start a worker again, which is offered the message again if the one before didn't record it.

        The customer's devices are in another order now.
        """
        self._write_devices(*FINE, THROTTLED, *DEAD)
        journal = self._folder / "journal.db"
        if not journal.exists() or not file_reader(journal).audit().states:
            self._sandbox.state.enqueue(message(1, 1, 7))
        assert self.live() == 0, self._folder.joinpath("log").read_text(encoding="utf-8")

    def check(self) -> None:
        """One `sent`, each device served under one key, the dead ones suppressed."""
        reader = file_reader(self._folder / "journal.db")
        audit = reader.audit()
        assert (audit.findings, audit.gap, dict(audit.states)) == ((), 0, {State.SENT: 1})
        assert [*dict.fromkeys(self._sandbox.state.statuses(1))] == ["dequeued", "sent"]
        assert {device: len(keys) for device, keys in self._gateway.keys.items()} == dict.fromkeys(
            (*DEAD, THROTTLED, *FINE), 1
        )
        assert set(self._gateway.accepted + Counter()) == {THROTTLED, *FINE}
        assert len(reader.stopped(None)) == len(DEAD)


@pytest.fixture
def counts(tmp_path: Path, launcher: Peer, gateway: Gateway) -> dict[str, int]:
    """How often an undisturbed worker passes each boundary; each device accepts once."""
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    with open_sandbox() as sandbox:
        story = Story(folder, launcher, sandbox, gateway)
        assert story.live() == 0
        story.check()
    assert dict(gateway.accepted + Counter()) == dict.fromkeys((THROTTLED, *FINE), 1)
    return read_counts(folder / "counts")


def test_a_worker_that_is_killed_on_the_way_serves_each_device(
    counts: dict[str, int], tmp_path: Path, launcher: Peer
) -> None:
    failpoints = [
        Failpoint(name, passing)
        for name, most in counts.items()
        if name.rpartition("/")[0] in STEPS
        for passing in sorted({1, (most + 1) // 2, most})
    ]
    killed = 0
    for number, failpoint in enumerate(failpoints):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_sandbox() as sandbox, Gateway() as gateway:
            serving = Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.01})
            serving.start()
            try:
                story = Story(folder, launcher, sandbox, gateway)
                killed += story.live(failpoint) == KILLED
                story.finish()
                story.check()
            except AssertionError as error:
                raise AssertionError(f"killed at {failpoint}") from error
            finally:
                gateway.shutdown()
                serving.join()
    assert killed > len(failpoints) * 0.8
