"""The server of operators' orders, over real sockets: clients that leave, and no files left."""

from __future__ import annotations

import resource
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from deliveryd.control import server
from deliveryd.control.protocol import StatusRequest, TailRequest, write_request
from deliveryd.control.server import ControlServer
from support.logs import LogLines, log_lines
from support.patience import PATIENCE


def test_readers_of_a_stream_who_leave_at_any_moment_do_no_harm(tmp_path: Path) -> None:
    """Also while a line is being sent, which then fails."""

    async def endless(_request: object, _user: str) -> AsyncGenerator[Mapping[str, object], None]:
        while True:
            yield {"events": ["x" * 100_000]}

    def leave(place: Path) -> None:
        for _ in range(100):
            with socket.socket(socket.AF_UNIX) as reader:
                reader.settimeout(PATIENCE)
                reader.connect(str(place))
                reader.sendall(write_request(TailRequest(None, None, failed=False)))
                assert reader.recv(10_000)

    async def run() -> None:
        control = ControlServer(tmp_path / "control.sock", {}, {TailRequest: endless})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(control.run)
            while not (tmp_path / "control.sock").exists():
                await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(leave, tmp_path / "control.sock")
            tasks.cancel_scope.cancel()

    anyio.run(run)


def test_without_a_free_file_it_pauses_and_is_there_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that can't be accepted stays readable: it must not keep the loop busy."""
    monkeypatch.setattr(server, "HEARTBEAT_INTERVAL", 0.05)
    place, limits = (tmp_path / "control.sock"), resource.getrlimit(resource.RLIMIT_NOFILE)

    async def answer(_request: object, _user: str) -> Mapping[str, object]:
        return {"status": {}}

    async def until(is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not is_so():
                await anyio.lowlevel.checkpoint()

    async def run(lines: LogLines) -> None:
        control = ControlServer(tmp_path / "control.sock", {StatusRequest: answer}, {})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(control.run)
            await until(place.exists)
            with socket.socket(socket.AF_UNIX) as waiting:
                waiting.setblocking(False)
                resource.setrlimit(resource.RLIMIT_NOFILE, (5, limits[1]))
                try:
                    waiting.connect(str(place))
                    await until(lambda: bool(lines()))
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await until(place.exists)
            async with await anyio.connect_unix(place) as client:
                await client.send(write_request(StatusRequest()))
                assert await client.receive() == b'{"status": {}}\n'
            tasks.cancel_scope.cancel()

    with log_lines("info") as lines:
        anyio.run(run, lines)
        assert [(line["event"], line["reason"]) for line in lines()] == [
            ("desk.closed", "Too many open files")
        ]
