"""The control protocol: requests of each type, connections side by side, streams, refusals."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from deliveryd.control.client import NoWorker, ask, stream
from deliveryd.control.protocol import (
    ForgetSettingsRequest,
    ReloadRequest,
    Request,
    StatusRequest,
    TailRequest,
    read_reply,
    read_request,
    write_refusal,
    write_reply,
    write_request,
)
from deliveryd.control.server import ControlServer
from deliveryd.errors import ConfigError, DirectoryUnavailable, JournalError
from deliveryd.journal.orders import Action, ItemKind, Order

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "request_",
    [
        Order(Action.RETRY, ItemKind.EVENT, ("1", "2"), caller="ann"),
        ReloadRequest(accept_orphans=True, caller="ann"),
        ForgetSettingsRequest(17),
        ForgetSettingsRequest(),
        StatusRequest(),
        TailRequest("sms", 1, failed=True),
        TailRequest(),
    ],
    ids=lambda request_: type(request_).__name__,
)
async def test_a_request_is_read_as_it_was_written(request_: Request) -> None:
    """The user isn't part of it: the server determines who it is."""
    assert read_request(write_request(request_)) == request_


@pytest.mark.parametrize(
    "line",
    [
        b'{"request": "dance"}\n',
        b'{"verb": "drop", "kind": "event", "keys": []}\n',
        b'{"request": "reload"}\n',
        b'{"request": "reload", "accept_orphans": 1}\n',
        b'{"request": "tail", "failed": false, "message": true}\n',
        b'{"request": "tail", "failed": false, "channel": 1}\n',
        b'{"request": "forget settings"}\n',
        b'{"request": "forget settings", "settings": "17"}\n',
        b'{"request": ["tail"]}\n',
    ],
)
async def test_what_is_no_request_cant_be_read(line: bytes) -> None:
    """Also an order without its type."""
    with pytest.raises(ValueError, match="not a"):
        read_request(line)


async def test_replies_are_told_apart() -> None:
    """An answer may have a reason beside other fields, as a status has."""
    told = ["a.toml:queue: is wrong", "nothing read"]
    with pytest.raises(ConfigError) as refused:
        read_reply(write_refusal(ConfigError(told)))
    assert refused.value.problems == told
    with pytest.raises(JournalError, match="the worker refused: no"):
        read_reply(write_refusal(JournalError("no")))
    assert read_reply(write_reply({"ready": True, "reason": "taking"})) == {"ready": True, "reason": "taking"}


async def status(_request: StatusRequest, user: str) -> Mapping[str, object]:
    return {"user": user}


async def serving(place: Path, server: ControlServer, work: Callable[[], object]) -> object:
    """Do blocking work while a server runs."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run)
        while not place.exists():  # noqa: ASYNC240  # it answers at once
            await anyio.lowlevel.checkpoint()
        found = await anyio.to_thread.run_sync(work)
        tasks.cancel_scope.cancel()
    return found


async def test_a_request_of_each_type_goes_to_its_handler(tmp_path: Path) -> None:
    """One that has none is refused; errors of a handler arrive as they were raised."""

    async def reload(request: ReloadRequest, _user: str) -> Mapping[str, object]:
        if request.accept_orphans:
            raise DirectoryUnavailable("the disk is on fire")
        raise ConfigError(["a.toml:queue.batch_size: must be at least 1", "no place"])

    place = tmp_path / "control.sock"
    server = ControlServer(place, {StatusRequest: status, ReloadRequest: reload}, {})

    def work() -> None:
        assert list(ask(place, StatusRequest())) == ["user"]
        with pytest.raises(ConfigError) as refused:
            ask(place, ReloadRequest())
        assert refused.value.problems == ["a.toml:queue.batch_size: must be at least 1", "no place"]
        with pytest.raises(JournalError, match="the disk is on fire"):
            ask(place, ReloadRequest(accept_orphans=True))
        with pytest.raises(JournalError, match="unknown request"):
            list(stream(place, TailRequest()))

    await serving(place, server, work)


async def test_a_stream_holds_nobody_up_and_ends_with_its_client(tmp_path: Path) -> None:
    """While one is open, other requests are answered; its generator is closed when the client goes."""
    place = tmp_path / "control.sock"
    closed = anyio.Event()

    async def tail(_request: TailRequest, _user: str) -> AsyncGenerator[Mapping[str, object], None]:
        try:
            yield {"event": "taken"}
            await anyio.sleep_forever()
        finally:
            closed.set()

    server = ControlServer(place, {StatusRequest: status}, {TailRequest: tail})

    def work() -> None:
        lines = stream(place, TailRequest())
        assert next(lines) == {"event": "taken"}
        assert ask(place, StatusRequest())
        lines.close()  # type: ignore[attr-defined]  # a generator

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run)
        while not place.exists():
            await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(work)
        await closed.wait()
        tasks.cancel_scope.cancel()


async def test_streams_leave_room_for_orders(tmp_path: Path) -> None:
    """Beyond the bound a stream is refused with the reason, and other requests are answered."""
    place = tmp_path / "control.sock"

    async def tail(_request: TailRequest, _user: str) -> AsyncGenerator[Mapping[str, object], None]:
        yield {"event": "taken"}
        await anyio.sleep_forever()

    def work() -> None:
        open_ = [stream(place, TailRequest()) for _ in range(16)]
        assert [next(lines) for lines in open_] == [{"event": "taken"}] * 16
        with pytest.raises(JournalError, match="16 others are watching already"):
            next(stream(place, TailRequest()))
        assert ask(place, StatusRequest())

    server = ControlServer(place, {StatusRequest: status}, {TailRequest: tail})
    await serving(place, server, work)


async def test_without_a_worker_the_request_fails_at_once(tmp_path: Path) -> None:
    """The error names the socket."""
    with pytest.raises(NoWorker, match="no worker is running"):
        await anyio.to_thread.run_sync(partial(ask, tmp_path / "control.sock", StatusRequest()))
