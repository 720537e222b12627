"""A proxy before PostgreSQL's socket, which cuts a connection where a test wants it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""What the server answers to a COMMIT."""


class Proxy:
    """Forwards connections. `cuts`: how many answers to a COMMIT it swallows, each with its connection."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.cuts = 0
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._threads: list[threading.Thread] = []
        self._clients: list[socket.socket] = []
        self._run(self._accept)

    def cut(self) -> None:
        """Cut all clients off; what their sessions do goes on at the server."""
        for client in self._clients:
            with suppress(OSError):  # it is gone already
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept nothing more, and wait until the connections are closed."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._server / SOCKET))
            answers = self._run(self._forward, server, client, True)
            self._forward(client, server, are_answers=False)
            answers.join()

    def _run(self, work: Callable[..., None], *values: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=values, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _forward(self, source: socket.socket, sink: socket.socket, are_answers: bool) -> None:
        try:
            while chunk := source.recv(65536):
                if are_answers and self.cuts and COMMITTED in chunk:
                    self.cuts -= 1
                    break
                sink.sendall(chunk)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with suppress(OSError):  # it is gone already; the other one may wait
                    end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(server: Path, folder: Path) -> Iterator[Proxy]:
    """A proxy whose socket is in a folder of its own."""
    proxy = Proxy(folder, server)
    try:
        yield proxy
    finally:
        proxy.close()
