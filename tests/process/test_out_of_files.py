"""The limit on open files: it is raised, shared out, and what it doesn't allow waits without a verdict."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd.channels.base import Channel
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.registry import find_adapter, open_adapter
from deliveryd.errors import OutOfFiles
from deliveryd.runtime.threads import Aside, in_thread
from deliveryd.sandbox.faults import CutInHalf, Delay, FaultAnswer, Hang, HangUp
from deliveryd.worker.open_files import OpenFiles
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        yield world


def events(world: World) -> Counter[str]:
    """How often each event was logged."""
    return Counter(json.loads(line)["event"] for line in world.log().splitlines() if line.startswith("{"))


# ---- the sum


def test_what_fits_keeps_its_concurrency_and_the_rest_gives_up_the_same_part() -> None:
    assert OpenFiles(attempts=100, others=900, limit=1000).is_enough
    assert OpenFiles(attempts=100, others=900, limit=1000).lowered(100) == 100
    few = OpenFiles(attempts=3000, others=400, limit=1900)
    assert not few.is_enough
    assert (few.lowered(2000), few.lowered(1000), few.lowered(1)) == (1000, 500, 1)
    assert OpenFiles(attempts=3000, others=4000, limit=600).lowered(3000) == 300


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv.pop(2))))
del sys.argv[1]
from deliveryd.commands.app import run_program
run_program()
"""


def limited(soft: int, hard: int) -> list[str]:
    """The interpreter's arguments for a command of ours that begins with these limits."""
    return ["-c", LIMITED, str(soft), str(hard)]


def soft_limit(worker: subprocess.Popen[bytes]) -> int:
    return resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)[0]


@pytest.mark.slow
def test_check_says_that_concurrency_would_be_lowered(world: World) -> None:
    """By the limit that the command has."""
    world.change('timeout = "60s"', 'timeout = "60s"\nconcurrency = 1000')

    def warnings(hard: int) -> str:
        arguments = [*limited(512, hard), "check", "--offline", "--config", str(world.config)]
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False
        ).stdout

    assert "files may be open at once" not in warnings(2048)
    assert "files may be open at once, and the limit is 1024: the worker would lower" in warnings(1024)


# ---- the worker


@pytest.mark.slow
def test_a_start_raises_the_soft_limit_and_lowers_what_does_not_fit(world: World) -> None:
    """A slow provider with more concurrency than files: nothing runs out, every message is sent once."""
    world.change('timeout = "60s"', 'timeout = "60s"\nconcurrency = 2000')
    world.change('poll_interval = "50ms"', 'poll_interval = "50ms"\nbatch_size = 500\nmax_in_flight = 2000')
    world.state.fail_until_healed("provider.sms", Delay(PATIENCE))
    world.state.enqueue(*(message(id_) for id_ in range(1, 601)))
    worker = world.start(log="info", program=limited(256, 512))
    world.state.wait_for(lambda state: state.requests["provider.sms"] >= 256, PATIENCE)
    assert soft_limit(worker) == 512
    world.state.heal("provider.sms")
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    told = events(world)
    assert told["files.few"] == 1
    assert not {"files.exhausted", "channel.unavailable", "queue.unavailable"} & told.keys()


@pytest.mark.slow
def test_without_a_free_file_messages_wait_and_the_provider_is_not_blamed(world: World) -> None:
    """No try is used, no breaker opens, and with free files all are sent once; the log says it once."""
    world.change("attempts = 5", "attempts = 1")
    world.change('poll_interval = "50ms"', 'poll_interval = "50ms"\nbatch_size = 500')
    world.state.fail_until_healed("provider.sms", Delay(0.5))
    worker = world.start(log="info")
    world.state.enqueue(message(1))
    world.state.wait_for(lambda state: state.statuses(1)[-1:] == ["sent"], PATIENCE)
    limits = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    open_now = len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (open_now + 4, limits[1]))
    world.state.enqueue(*(message(id_) for id_ in range(2, 52)))
    while not events(world)["files.exhausted"]:
        assert worker.poll() is None, world.log()[-2000:]
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, limits)
    world.state.wait_for(
        lambda state: all(state.statuses(id_)[-1:] == ["sent"] for id_ in range(2, 52)), PATIENCE
    )
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    told = events(world)
    assert told["files.exhausted"] == 1
    assert not {"channel.unavailable", "message.failed"} & told.keys()
    assert Counter(received.message_id for received in world.state.received) == dict.fromkeys(range(1, 52), 1)


@contextmanager
def none_free() -> Iterator[None]:
    """This process can open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 1, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:
            os.close(each)


START = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
"""Begins a thread; the first is its name from Python 3.13 on."""


@contextmanager
def no_thread() -> Iterator[None]:
    """This process can begin no thread; as root there is no limit on them."""

    def begin(*_: object, **_named: object) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, START, begin)
        yield


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("adapter", ["http", "smtp"])
@pytest.mark.parametrize(
    ("lack", "host"), [(none_free, "127.0.0.1"), (none_free, "localhost"), (no_thread, "localhost")]
)
async def test_a_probe_without_a_free_file_or_thread_is_no_failed_one(
    adapter: str, lack: Callable[[], AbstractContextManager[None]], host: str
) -> None:
    """A listening provider couldn't be reached for a reason of this process; its name exists all the same."""
    host.encode("idna")  # loads the codec of names, whose absence would be noticed
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = provider_channel(adapter, host, server)
        with lack(), pytest.raises(OutOfFiles):
            await channel.probe()
        await channel.aclose()


def provider_channel(adapter: str, host: str, server: socket.socket) -> Channel:
    port = server.getsockname()[1]
    if adapter == "http":
        keys: dict[str, Any] = {"url": f"http://{host}:{port}/", "json": {"text": "{content.text}"}}
        http = HttpChannelOptions.model_validate(keys)
        return open_adapter("channels.sms", "sms", "http", http, timeout=10.0)
    keys = {"host": host, "port": port, "tls": "none", "sender": "shop@example.com"}
    smtp = find_adapter("smtp").options.model_validate(keys)
    return open_adapter("channels.email", "email", "smtp", smtp, timeout=10.0)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_blocking_work_waits_for_a_thread_and_computing_needs_none() -> None:
    """Only work that blocks has to wait; an error of its own isn't taken for a lack of threads."""
    done: list[int] = []
    with no_thread():
        assert await Aside()(lambda: 7) == 7
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(in_thread, lambda: done.append(1))
            await anyio.wait_all_tasks_blocked()
            assert done == []
            tasks.cancel_scope.cancel()

    def fail() -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="can't start"):
        await in_thread(fail)
    await in_thread(lambda: done.append(2))
    assert done == [2]


WITHOUT_THREADS = f"""
import os, sys, threading
lacks, begin = sys.argv.pop(1), threading.{START}
def start(*arguments, **named):
    if os.path.exists(lacks):
        raise RuntimeError("can't start new thread")
    return begin(*arguments, **named)
threading.{START} = start
from deliveryd.commands.app import run_program
run_program()
"""


@pytest.mark.slow
def test_without_a_thread_messages_wait_and_the_provider_is_not_blamed(world: World) -> None:
    """Their customers' file isn't read anew, nor the provider's name looked up, before there are threads."""
    lacks = world.folder / "lacks"
    world.change("attempts = 5", "attempts = 1")
    world.change(
        f'url = "{world.sandbox.base_url}/',
        f'url = "http://localhost:{world.sandbox.base_url.rpartition(":")[2]}/',
    )
    worker = world.start(log="info", program=["-c", WITHOUT_THREADS, str(lacks)])
    world.state.wait_for(lambda state: state.requests["queue"] > 1, PATIENCE)
    lacks.touch()
    world.state.enqueue(*(message(id_) for id_ in range(1, 30)))
    while not events(world)["files.exhausted"]:
        assert worker.poll() is None, world.log()[-2000:]
    lacks.unlink()
    world.state.wait_for(
        lambda state: all(state.statuses(id_)[-1:] == ["sent"] for id_ in range(1, 30)), PATIENCE
    )
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert not {"channel.unavailable", "message.failed", "message.in_doubt"} & events(world).keys()
    assert Counter(received.message_id for received in world.state.received) == dict.fromkeys(range(1, 30), 1)


# ---- errors without a free file

WATCHED = """
import os, sys
found = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(event, arguments):
    if event == "import":
        os.write(found, f"{arguments[0]}\\n".encode())
sys.addaudithook(note)
from deliveryd.commands.app import run_program
run_program()
"""

BROKEN = (
    FaultAnswer(503), FaultAnswer(500, b"x"), FaultAnswer(401, b"{}"), FaultAnswer(200, b"<p>"), HangUp(),
    CutInHalf(), Hang(),
)  # fmt: skip


def held(world: World) -> set[int]:
    """The messages whose repeat had no readable answer either."""
    lines = [json.loads(line) for line in world.log().splitlines() if line.startswith("{")]
    doubts = Counter(line["message_id"] for line in lines if line["event"] == "message.in_doubt")
    return {id_ for id_, count in doubts.items() if count > 1}


@pytest.mark.slow
def test_no_error_imports_anything_for_the_first_time(world: World) -> None:
    """Without a free file such an import fails, and with it what would have handled the error."""
    found = world.folder / "imported"
    world.customers(
        [{"id": 1, "phone": "+447700900101"}, {"id": 2, "phone": "+447700900102", "language": "i-klingon"}]
    )
    world.change("attempts = 5", "attempts = 2")
    worker = world.start(log="debug", program=["-c", WATCHED, str(found)])
    world.state.enqueue(message(1))
    world.state.wait_for(lambda state: state.statuses(1)[-1:] == ["sent"], PATIENCE)
    while "langcodes.tag_parser" not in found.read_text():
        assert worker.poll() is None
    before = found.read_text()
    for endpoint in ("queue", "events", "settings", "provider.sms"):
        world.state.fail(endpoint, *BROKEN)
    world.state.settings |= {2: sms_settings("{absent}"), 3: {"content": "none"}, 5: b"{"}
    messages = [message(id_, settings_id=id_ % 7, customer_id=id_ % 4) for id_ in range(2, 40)]
    world.state.enqueue(*messages, '{"id": 90}', '{"id": 91, "settingsId": "x"}', "7")
    world.state.wait_for(
        lambda state: all(
            state.statuses(id_)[-1:] in (["sent"], ["error"]) or id_ in held(world) for id_ in range(2, 40)
        ),
        PATIENCE,
    )
    world.change("[service]", "[service")
    worker.send_signal(signal.SIGHUP)
    while "config.refused" not in events(world):
        assert worker.poll() is None
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert found.read_text().removeprefix(before) == ""
