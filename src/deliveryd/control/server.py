"""The server side of orders: a socket beside the journal, for its owner only, one order at a time."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio

from deliveryd.control.protocol import (
    LONGEST_LINE,
    ControlReply,
    Failed,
    read_order,
    socket_address,
    socket_of,
    write_reply,
)
from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import JournalError
from deliveryd.journal.base import Journal
from deliveryd.journal.orders import Action, Order
from deliveryd.runtime.own_files import NotOwn, check_own_socket
from deliveryd.runtime.rights import user_name
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL
from deliveryd.telemetry import Event, describe, log

EXCHANGE_TIMEOUT = 10.0
"""Seconds for a command to send its order, and again to receive the reply."""

_CREDENTIALS = struct.Struct("3i")  # process, user, group


class ControlServer:
    """Carries out orders while the worker runs; `providers` are those that are configured."""

    def __init__(
        self,
        journal_path: Path,
        journal: Journal,
        recorder: Recorder,
        providers: Collection[str],
    ) -> None:
        self._path = socket_of(journal_path)
        self._journal = journal
        self._recorder = recorder
        self._providers = providers

    async def run(self) -> None:
        """Take orders until cancelled. Recreate the socket if it was removed.

        If it can't be created, log that once and retry at intervals.
        """
        is_logged = False
        while True:
            try:
                with _listening(self._path) as listener:
                    is_logged = False
                    await self._take_orders(listener)
            except OSError as error:
                if not is_logged:
                    log(Event.DESK_CLOSED, file=str(self._path), reason=error.strerror or describe(error))
                is_logged = True
                await anyio.sleep(HEARTBEAT_INTERVAL)

    async def _take_orders(self, listener: socket.socket) -> None:
        """Take orders as long as the socket is at its path."""
        socket_file = self._path.lstat().st_ino
        while self._path.lstat().st_ino == socket_file:
            with anyio.move_on_after(HEARTBEAT_INTERVAL):
                await anyio.wait_readable(listener)
            with suppress(OSError):  # no order arrived, or the client has disconnected
                connection, _ = listener.accept()
                await self._serve_one(connection)

    async def _serve_one(self, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(False)
            line = b""
            with anyio.move_on_after(EXCHANGE_TIMEOUT):
                line = await _receive_line(connection)
            reply = await self._reply(connection, line)
            with anyio.move_on_after(EXCHANGE_TIMEOUT):
                await _send(connection, write_reply(reply))

    async def _reply(self, connection: socket.socket, line: bytes) -> ControlReply | Failed:
        user = _user_of(connection)
        if user not in (os.geteuid(), 0):
            return Failed("only the user that deliveryd runs as can give orders")
        try:
            return await self._carry_out(read_order(line)._replace(user=user_name(user)))
        except ValueError:
            return Failed("unknown order: the command may be of another version of deliveryd")
        except JournalError as error:
            return Failed(str(error))

    async def _carry_out(self, order: Order) -> ControlReply:
        decided = await self._recorder.decide(order, self._providers)
        if order.verb is Action.ERASE:
            await self._journal.cut_log()
        log(
            Event.DESK_DECIDED,
            verb=order.verb, kind=order.kind, count=len(decided.done), skipped=len(decided.skipped),
        )  # fmt: skip
        return ControlReply(decided.done, decided.skipped)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Provide the socket. The holder of the journal's lock may remove a killed worker's. Raises OSError."""
    _remove(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        os.fchmod(
            listener.fileno(), 0o600
        )  # the file is created with this mode, so no chmod by name is needed
        with socket_address(path) as address:
            listener.bind(address)
        try:
            listener.listen(8)
            listener.setblocking(False)
            yield listener
        finally:
            with suppress(NotOwn):
                _remove(path)


def _remove(path: Path) -> None:
    """Remove our socket. Raises OSError if something else has its name."""
    with suppress(FileNotFoundError):
        check_own_socket(path)
        path.unlink()


def _user_of(connection: socket.socket) -> int:
    """Return the user of the peer."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
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


async def _send(connection: socket.socket, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        await anyio.wait_writable(connection)
        rest = rest[connection.send(rest) :]
