"""The way from one worker to the database: a proxy that cuts, stalls, and cuts where a commit is answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""What the server answers to a COMMIT."""


class DatabaseLine:
    """Forwards a worker's connections. `to` may be changed: it counts for the next connections."""

    def __init__(self, folder: Path, to: Path) -> None:
        self.to = to
        self.cuts_at_commit = 0
        """How many answers to a COMMIT are swallowed, each with its connection."""
        self._open = threading.Event()
        self._open.set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Cut all connections; new ones are served."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            _hang_up(pair)

    def stall(self) -> None:
        """Forward nothing more, and cut nothing, until `flow`."""
        self._open.clear()

    def flow(self) -> None:
        """Forward what was held back."""
        self._open.set()

    def close(self) -> None:
        """Accept nothing more, and cut what is open."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.flow()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            self._open.wait()
            try:
                server.connect(str(self.to / SOCKET))
            except OSError:
                return
            pair = client, server
            with self._lock:
                self._pairs.add(pair)
            answers = threading.Thread(target=self._answer, args=pair, daemon=True)
            answers.start()
            self._forward(client, server)
            answers.join()
            with self._lock:
                self._pairs.discard(pair)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        self._forward(server, client, watches=True)

    def _forward(self, source: socket.socket, sink: socket.socket, watches: bool = False) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                self._open.wait()
                if watches and self.cuts_at_commit and COMMITTED in chunk:
                    self.cuts_at_commit -= 1
                    break
                sink.sendall(chunk)
        _hang_up((source, sink))


def _hang_up(pair: tuple[socket.socket, socket.socket]) -> None:
    for end in pair:
        with suppress(OSError):  # it may be gone already
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def line_to(server: Path, folder: Path) -> Iterator[DatabaseLine]:
    """A line whose socket is in a folder of its own."""
    folder.mkdir()
    line = DatabaseLine(folder, server)
    try:
        yield line
    finally:
        line.close()
