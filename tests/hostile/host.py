"""The service and the provider in one, on a real socket: honest until it is told to set a trap."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

from support.listening import Listening, ThreadedServer
from support.service import ServiceMemory

Trap = Callable[[], Iterator[bytes]]
"""What stands on the wire instead of an honest answer; the connection is closed after it."""

ENDPOINTS = {"queue": "queue", "events": "events", "settings": "settings", "sms": "provider"}


class Sent(NamedTuple):
    """A request that the provider got: its target as it stood on the wire, its headers, its body."""

    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Host(ServiceMemory, Listening):
    """All that the worker speaks with over HTTP. Traps by endpoint: queue, settings, events, provider."""

    def __init__(self) -> None:
        ServiceMemory.__init__(self)
        Listening.__init__(self, _Server(self))
        self.settings: dict[int, bytes] = {}
        self.traps: dict[str, Trap] = {}
        self.sent_ids: set[int] = set()
        """Messages that were reported as sent."""
        self.sent: list[Sent] = []
        self.requests: Counter[str] = Counter()
        self.most_open = 0
        """Connections at a time, at most."""
        self._open = 0
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def enqueue(self, *elements: object) -> None:
        """Put elements into the queue, texts as they are."""
        with self._changed:
            super().enqueue(*elements)

    def details(self, message_id: int) -> str:
        """The details of the message's error event."""
        return str(self.events_of(message_id, "error")[-1]["details"])

    def wait_for(self, fact: Callable[[], bool], seconds: float = 30.0) -> None:
        """Return when something that requests change has become true. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(fact, seconds):
                raise TimeoutError(f"still not so after {seconds:g} s")

    def count_connections(self, change: int) -> None:
        """A connection came or went."""
        with self._changed:
            self._open += change
            self.most_open = max(self.most_open, self._open)

    def answer(self, request: Sent) -> bytes | Trap:
        """The honest answer to a request, or the trap that is set there."""
        address = urlsplit(request.target)
        first, _, rest = address.path.strip("/").partition("/")
        endpoint = ENDPOINTS.get(first, first)
        with self._changed:
            self.requests[endpoint] += 1
            trap = self.traps.get(endpoint)
            does_its_work = trap is None or endpoint in ("events", "provider")
            honest = self._honest(endpoint, rest, address.query, request) if does_its_work else None
            self._changed.notify_all()
        return trap or honest or plain(b"", HTTPStatus.NOT_FOUND)

    def _honest(self, endpoint: str, rest: str, query: str, request: Sent) -> bytes | None:
        if endpoint == "queue":
            return plain(self.take(int(parse_qs(query)["take"][0])).encode())
        if endpoint == "events":
            events = self.post(request.body)
            self.sent_ids.update(event["messageId"] for event in events if event["status"] == "sent")
            return plain(b"")
        if endpoint == "settings":
            found = self.settings.get(int(rest))
            return None if found is None else plain(found)
        if endpoint == "provider":
            self.sent.append(request)
            return plain(json.dumps({"id": f"p-{len(self.sent)}"}).encode())
        return None


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
        return Sent(match[2], tuple(headers), body)
