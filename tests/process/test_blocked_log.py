"""A log that nobody reads: the worker goes on, and says afterwards how many lines are missing."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import select
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import pytest

from deliveryd.telemetry import log_writing
from deliveryd.telemetry.log_events import Event, log
from deliveryd.telemetry.output import Output
from support.logs import log_text
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.ports import free_port
from support.world import World, get, open_world

MESSAGES = 300


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        yield world


def start(world: World, output: int) -> subprocess.Popen[bytes]:
    """Start a worker that logs each message to this descriptor, as a container's output or a terminal."""
    return world.start(log="debug", output=output)


def small_pipe() -> tuple[int, int]:
    """A pipe that is full after one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    return reading, writing


def small_socket() -> tuple[int, int]:
    """A pair of sockets such as systemd's, with little room."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return ours.detach(), theirs.detach()


def stopped_terminal() -> tuple[int, int]:
    """A terminal after Ctrl-S."""
    master, terminal = pty.openpty()
    termios.tcflow(terminal, termios.TCOOFF)
    return master, terminal


@pytest.mark.slow
@pytest.mark.parametrize("output", [small_pipe, small_socket, stopped_terminal])
def test_a_worker_whose_output_nobody_reads_goes_on(world: World, output: Any) -> None:
    """All messages are sent, /livez answers, and SIGTERM ends it with status 0."""
    port = free_port()
    world.change('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:{port}"')
    reading, writing = output()
    worker = start(world, writing)
    os.close(writing)
    world.state.enqueue(*(message(id_) for id_ in range(1, MESSAGES + 1)))
    world.state.wait_for(lambda state: len(state.received) == MESSAGES, PATIENCE)
    assert get(f"http://127.0.0.1:{port}/livez").status_code == 200
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    os.close(reading)


# ---- the stream


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def read_all(descriptor: int) -> bytes:
    """What can be read now."""
    data = b""
    while select.select([descriptor], [], [], 0)[0]:
        data += os.read(descriptor, 1 << 20)
    return data


@pytest.fixture
def pipe() -> Iterator[tuple[int, Output]]:
    """A small pipe that all lines go to: where they are read, and what writes them."""
    reading, writing = small_pipe()
    with open(writing, "w") as stream, log_text("debug"):  # noqa: PTH123 - a descriptor, no path
        output = Output(stream)
        log_writing.configure("debug", "json", cast("TextIO", output))
        yield reading, output
        output.close()
    os.close(reading)


@pytest.mark.slow
def test_a_gap_is_told_in_its_place_with_the_number_of_lines(pipe: tuple[int, Output]) -> None:
    """What was kept follows in order; then one line says how many are missing; then new ones."""
    reading, output = pipe
    number = 0
    while not output.dropped:
        log(Event.QUEUE_TAKEN, count=number)
        number += 1
    for more in range(number, number + 10):
        log(Event.QUEUE_TAKEN, count=more)
    assert output.dropped == 11
    seen = b""
    while part := read_all(reading):
        seen += part
        output.flush()
    log(Event.QUEUE_TAKEN, count=-1)
    *kept, notice, after = lines(seen + read_all(reading))
    assert [line["count"] for line in kept] == list(range(number - 1))
    assert (notice["event"], notice["count"]) == ("log.dropped", 11)
    assert after["count"] == -1


def test_an_inherited_pipe_keeps_its_flags(pipe: tuple[int, Output]) -> None:
    """Other processes write to the same open file: they must not fail because it doesn't wait any more."""
    _, output = pipe
    assert not fcntl.fcntl(output.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK


@pytest.mark.slow
def test_a_full_disk_costs_whole_lines_and_is_told(tmp_path: Path) -> None:
    """The line that fitted in part is finished once there is room, and nothing follows it on its line."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tmp_path.joinpath("log").open("w") as stream, log_text("debug"):
        output = Output(stream)
        log_writing.configure("debug", "json", cast("TextIO", output))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            while not output.dropped:
                log(Event.QUEUE_TAKEN, count=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        log(Event.QUEUE_TAKEN, count=2)
        output.close()
    *kept, notice, after = lines(tmp_path.joinpath("log").read_bytes())
    assert {line["count"] for line in kept} == {1}
    assert (notice["event"], notice["count"], after["count"]) == ("log.dropped", 1, 2)


PROGRAM = """
import atexit, os, sys
from deliveryd.telemetry import log_events, log_writing
from deliveryd.telemetry.log_events import Event
from deliveryd.telemetry.output import unblocked
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
sys.stderr = unblocked(sys.stderr)
atexit.register(sys.stderr.finish, 60)
log_writing.configure("debug", "json")
for number in range(2000):
    log_events.log(Event.QUEUE_TAKEN, count=number)
print("at the end", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("user", [[], ["65534"]], ids=["the owner", "another user"])
def test_the_last_lines_wait_for_a_reader_that_is_behind(user: list[str]) -> None:
    """Also where the pipe can't be opened again: it is root's, and the worker another user's."""
    if user and os.geteuid() != 0:
        pytest.skip("takes root")
    reading, writing = small_pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *user], stdout=subprocess.PIPE, stderr=writing
    ) as process:
        os.close(writing)
        assert process.stdout is not None
        assert process.stdout.readline() == b"at the end\n"
        with open(reading, "rb") as reader:  # noqa: PTH123 - a descriptor, no path
            assert [line["count"] for line in lines(reader.read())] == list(range(2000))
    assert process.returncode == 0


def test_a_reader_that_is_gone_costs_the_lines_only(pipe: tuple[int, Output]) -> None:
    """The end doesn't wait for it either."""
    reading, output = pipe
    os.dup2(os.open(os.devnull, os.O_RDONLY), reading)
    log(Event.QUEUE_TAKEN, count=1)
    output.finish(PATIENCE * 1000)
