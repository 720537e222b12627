"""The server side of control: a socket for the user that it runs as, connections side by side."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from deliveryd.control.protocol import (
    CREDENTIALS,
    LONGEST_LINE,
    Request,
    read_request,
    socket_address,
    write_refusal,
    write_reply,
)
from deliveryd.errors import DeliverydError, describe
from deliveryd.runtime.rights import NotOwn, check_own_socket, user_name
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL
from deliveryd.telemetry.log_events import Event, log

EXCHANGE_TIMEOUT = 10.0
"""Seconds for a command to send its request, and again to receive each line of the reply."""

MOST_CONNECTIONS = 24
MOST_STREAMS = 16
"""Most connections at a time, and how many of them may be streams, so that orders find a free one."""

_MOST_WAITING = 100
"""Connections that wait for one of these places; the system refuses further ones at once."""

UNKNOWN = "unknown request: the command may be of another version of deliveryd"

_NO_FOLDER = "there is no folder {folder}: systemd makes it (RuntimeDirectory=), or make it for this user"
_TAKEN = "another worker listens there: give each worker of a machine its own control.socket"

Answer = Callable[[Any, str], Awaitable[Mapping[str, object]]]
"""Answers a request of its type, given by this user. Raises DeliverydError, or ValueError if unusable."""

Stream = Callable[[Any, str], AsyncGenerator[Mapping[str, object], None]]
"""The same for a request whose answer has many lines."""


class ControlServer:
    """Serves requests while the worker runs, each by the handler of its type."""

    def __init__(
        self,
        path: Path,
        answers: Mapping[type[Request], Answer],
        streams: Mapping[type[Request], Stream],
    ) -> None:
        self._path = path
        self._answers = answers
        self._streams = streams
        self._free = anyio.Semaphore(MOST_CONNECTIONS)
        self._streaming = 0

    async def run(self) -> None:
        """Serve until cancelled. Recreate the socket if it was removed.

        If it can't be created, log that once and retry at intervals.
        """
        is_logged = False
        async with anyio.create_task_group() as connections:
            while True:
                try:
                    with _listening(self._path) as listener:
                        is_logged = False
                        await self._accept(listener, connections)
                except OSError as error:
                    if not is_logged:
                        log(Event.DESK_CLOSED, file=str(self._path), reason=error.strerror or describe(error))
                    is_logged = True
                    await anyio.sleep(HEARTBEAT_INTERVAL)

    async def _accept(self, listener: socket.socket, connections: TaskGroup) -> None:
        """Accept connections as long as the socket is at its path."""
        socket_file = self._path.lstat().st_ino
        while self._path.lstat().st_ino == socket_file:
            with anyio.move_on_after(HEARTBEAT_INTERVAL):
                await anyio.wait_readable(listener)
                await self._free.acquire()
                try:
                    connection, _ = listener.accept()
                except OSError as error:
                    self._free.release()
                    if not isinstance(error, BlockingIOError | ConnectionAbortedError):
                        raise  # such as no more files: without a pause it would be tried without end
                else:
                    connections.start_soon(self._serve, connection)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):  # the client has disconnected
                connection.setblocking(False)
                line = b""
                with anyio.move_on_after(EXCHANGE_TIMEOUT):
                    line = await _receive_line(connection)
                await self._answer(connection, line)
        finally:
            self._free.release()

    async def _answer(self, connection: socket.socket, line: bytes) -> None:
        user = _user_of(connection)
        if user not in (os.geteuid(), 0):
            await _refuse(connection, "only the user that deliveryd runs as can give orders")
            return
        try:
            request = read_request(line)
            if (stream := self._streams.get(type(request))) is not None:
                await self._send_stream(connection, stream(request, user_name(user)))
            elif (answer := self._answers.get(type(request))) is not None:
                await _send(connection, write_reply(await answer(request, user_name(user))))
            else:
                await _refuse(connection, UNKNOWN)
        except ValueError:
            await _refuse(connection, UNKNOWN)
        except DeliverydError as error:
            await _send(connection, write_refusal(error))

    async def _send_stream(
        self, connection: socket.socket, lines: AsyncGenerator[Mapping[str, object], None]
    ) -> None:
        """Send lines until there are no more, or the client disconnects or doesn't read them."""
        if self._streaming >= MOST_STREAMS:
            await _refuse(connection, f"{MOST_STREAMS} others are watching already: end one of them")
            return
        self._streaming += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_at_end, connection, tasks)
                async with aclosing(lines) as each:
                    async for line in each:
                        if not await _send(connection, write_reply(line)):
                            break
                tasks.cancel_scope.cancel()
        finally:
            self._streaming -= 1


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Provide the socket, in place of a killed worker's. Raises OSError."""
    with suppress(FileNotFoundError):
        check_own_socket(path)
    _refuse_taken(path)
    _remove(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        os.fchmod(
            listener.fileno(), 0o600
        )  # the file is created with this mode, so no chmod by name is needed
        with socket_address(path) as address:
            listener.bind(address)
        try:
            listener.listen(_MOST_WAITING)
            listener.setblocking(False)
            yield listener
        finally:
            with suppress(NotOwn):
                _remove(path)


def _refuse_taken(path: Path) -> None:
    """Raise OSError if another worker listens there, or if there can't be a socket.

    A journal in a file has one worker. Those of a database may run side by side on one machine.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            with socket_address(path) as address:
                probe.connect(address)
        except ConnectionRefusedError:
            return  # a killed worker left it
        except BlockingIOError:
            pass  # the queue there is full
        except FileNotFoundError:
            if path.parent.is_dir():
                return
            raise OSError(errno.ENOENT, _NO_FOLDER.format(folder=path.parent)) from None
    raise OSError(errno.EADDRINUSE, _TAKEN)


def _remove(path: Path) -> None:
    """Remove our socket. Raises OSError if something else has its name."""
    with suppress(FileNotFoundError):
        check_own_socket(path)
        path.unlink()


def _user_of(connection: socket.socket) -> int:
    """Return the user of the peer."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(raw)
    return int(user)


async def _receive_line(connection: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
        await anyio.wait_readable(connection)
        part = connection.recv(65536)
        if not part:
            break
        line += part
    return bytes(line)


async def _refuse(connection: socket.socket, reason: str) -> None:
    await _send(connection, write_refusal(DeliverydError(reason)))


async def _send(connection: socket.socket, line: bytes) -> bool:
    """Send a line; return whether it was sent in time, to a client that is still connected."""
    rest = memoryview(line)
    with anyio.move_on_after(EXCHANGE_TIMEOUT), suppress(OSError):
        while rest:
            await anyio.wait_writable(connection)
            rest = rest[connection.send(rest) :]
    return not rest


async def _cancel_at_end(connection: socket.socket, tasks: TaskGroup) -> None:
    """Cancel the stream when the client disconnects; whatever else it sends is ignored."""
    with suppress(OSError):
        while True:
            await anyio.wait_readable(connection)
            if not connection.recv(65536):
                break
    tasks.cancel_scope.cancel()
