"""A server on a real socket with threads of its own, up for as long as a block."""

from __future__ import annotations

import socketserver
import threading
from typing import Any, Self


class ThreadedServer(socketserver.ThreadingTCPServer):
    """Listens on a free port of 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, handler: type[socketserver.BaseRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up on us may: some have had enough of a trap."""


class Listening:
    """What has such a server, which answers within the block."""

    def __init__(self, server: ThreadedServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return int(self._server.server_address[1])
