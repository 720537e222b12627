"""Spreads connections over the workers' receipt servers, as a load balancer does that asks who is ready."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Self

_LOOK = 0.1
"""Seconds between two looks at who is ready."""

_PATIENCE = 2.0
"""Seconds to connect to a worker, and for each part of an answer: a stopped worker accepts and is silent."""

_PROVIDER_ID = re.compile(rb'"id": ?"([^"]+)"')


class Backend:
    """One worker's receipt server, and the page that says whether it is ready."""

    def __init__(self, port: int, admin_port: int) -> None:
        self.port = port
        self._admin_port = admin_port
        self.is_ready = False
        self.is_leaving = False
        """Whether it gets no new connections, since it is about to end."""
        self.receipts: list[str] = []
        """The provider's ids of the messages whose receipts came here, as often as they came."""
        self._open: set[socket.socket] = set()

    def turn_away(self) -> None:
        """Send it no new connections, and cut those that it has."""
        self.is_leaving = True
        for client in list(self._open):
            with suppress(OSError):  # it may be gone already
                client.shutdown(socket.SHUT_RDWR)

    def serve(self, client: socket.socket, worker: socket.socket) -> None:
        """Forward a connection until both ends are done."""
        self._open.add(client)
        with worker, suppress(OSError):
            asking = threading.Thread(target=_forward, args=(client, worker, self._note), daemon=True)
            asking.start()
            _forward(worker, client)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            asking.join()
        self._open.discard(client)

    def _note(self, chunk: bytes) -> None:
        self.receipts += [found.decode() for found in _PROVIDER_ID.findall(chunk)]

    def look(self) -> None:
        """Ask whether it is ready."""
        self.is_ready = _answers(self._admin_port, "/readyz/receipts")


class Balancer:
    """Forwards each connection to the next backend that is ready."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = backends
        self._turn = count()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._accept, self._look)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        while not self._ends.wait(_LOOK):
            for backend in self._backends:
                backend.look()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            connected = self._connected()
            if connected is not None:
                backend, worker = connected
                backend.serve(client, worker)

    def _connected(self) -> tuple[Backend, socket.socket] | None:
        for _ in self._backends:
            backend = self._backends[next(self._turn) % len(self._backends)]
            if backend.is_leaving or not backend.is_ready:
                continue
            with suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", backend.port), _PATIENCE)
                connection.settimeout(_PATIENCE)
                return backend, connection
        return None


def _answers(port: int, page: str) -> bool:
    """Whether a page answers 200."""
    asked = f"GET {page} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    head = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), _PATIENCE) as connection:
        connection.settimeout(_PATIENCE)
        connection.sendall(asked)
        head = connection.recv(64)
    return head.startswith(b"HTTP/1.1 200")


def is_ready(admin_port: int) -> bool:
    """Whether a worker takes work."""
    return _answers(admin_port, "/readyz")


def _ignore(_chunk: bytes) -> None:
    return


def _forward(source: socket.socket, sink: socket.socket, note: Callable[[bytes], None] = _ignore) -> None:
    with suppress(OSError):
        while chunk := source.recv(65536):
            note(chunk)
            sink.sendall(chunk)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
