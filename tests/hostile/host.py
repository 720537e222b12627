"""The service and the provider in one, on a real socket: honest until it is told to set a trap."""

from __future__ import annotations

import json
import re
import socketserver
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from support.listening import Listening, ThreadedServer
from support.service import Service

Trap = Callable[[], Iterator[bytes]]
"""What stands on the wire instead of an honest answer; the connection is closed after it."""

ENDPOINTS = {"queue": "queue", "events": "events", "settings": "settings", "sms": "provider"}


class Sent(NamedTuple):
    """A request: its target as it stood on the wire, its headers, its body."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Host(Service, Listening):
    """All that the worker speaks with over HTTP. Traps by endpoint: queue, settings, events, provider.

    A trap stays set until it is cleared; the provider's is for one request, since a message whose repeat ends
    the same way may be held.
    """

    def __init__(self) -> None:
        Service.__init__(self)
        Listening.__init__(self, _Server(self))
        self.traps: dict[str, Trap] = {}
        self.sent: list[Sent] = []
        """What the provider got."""
        self.most_open = 0
        """Connections at a time, at most."""
        self._open = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def details(self, message_id: int) -> str:
        """The details of the message's error event."""
        return str(self.events_of(message_id, "error")[-1]["details"])

    def count_connections(self, change: int) -> None:
        """A connection came or went."""
        with self.changed:
            self._open += change
            self.most_open = max(self.most_open, self._open)

    def answer(self, request: Sent) -> bytes | Trap:
        """The honest answer to a request, or the trap that is set there."""
        first = urlsplit(request.target).path.strip("/").partition("/")[0]
        endpoint = ENDPOINTS.get(first, first)
        with self.changed:
            self.requests[endpoint] += 1
            trap = self.traps.pop(endpoint, None) if endpoint == "provider" else self.traps.get(endpoint)
            does_its_work = trap is None or endpoint in ("events", "provider")
            honest = self._honest(endpoint, request) if does_its_work else b""
            self._notify()
        return trap or honest

    def _honest(self, endpoint: str, request: Sent) -> bytes:
        if endpoint == "provider":
            self.sent.append(request)
            return plain(json.dumps({"id": f"p-{len(self.sent)}"}).encode())
        path, _, query = request.target.partition("?")
        answer = self.work(request.method, path, query, request.body)
        return plain(bytes(answer.body), HTTPStatus(answer.status_code))


def plain(body: bytes, status: HTTPStatus = HTTPStatus.OK, head: str = "") -> bytes:
    """An honest answer; `head` holds further lines of its head, each with its line end."""
    return f"HTTP/1.1 {status} X\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body


class _Server(ThreadedServer):
    def __init__(self, host: Host) -> None:
        self.host = host
        super().__init__(_Handler)


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        cast("_Server", self.server).host.count_connections(+1)

    def finish(self) -> None:
        cast("_Server", self.server).host.count_connections(-1)
        super().finish()

    def handle(self) -> None:
        host = cast("_Server", self.server).host
        while (request := self._request()) is not None:
            answer = host.answer(request)
            if not isinstance(answer, bytes):
                for piece in answer():
                    self.wfile.write(piece)
                return
            self.wfile.write(answer)

    def _request(self) -> Sent | None:
        line = self.rfile.readline().decode("latin-1")
        match = re.fullmatch(r"([A-Z]+) (\S+) HTTP/1\.1\r\n", line)
        if match is None:
            return None
        headers = []
        while (line := self.rfile.readline().decode("latin-1")) not in ("\r\n", ""):
            name, _, value = line.rstrip("\r\n").partition(":")
            headers.append((name.lower(), value.strip()))
        body = self.rfile.read(int(dict(headers).get("content-length", "0")))
        return Sent(match[1], match[2], tuple(headers), body)
