"""The floor: the least that a durable worker spends. Not a way to write one: it handles no error at all.

A hand-written HTTP/1.1 protocol, no task and no future for a message, four journal writes and a log line
for each.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import journal_floor as journal
import orjson
import uvloop
from templates import Json, Templates, parse, read_customers, timestamp

CONNECTIONS = 100
BATCH = 500
PLACES = 2000
FLUSH = 0.05

LOG_LINE = '{"event": "message.sent", "message_id": %d, "told": %s}\n'
JSON_HEAD = b"Host: x\r\nContent-Type: application/json\r\n"

Then = Callable[[bytes], None]
EventRow = tuple[int, int, str]


class Connection(asyncio.Protocol):
    """One connection, one request at a time; `free` is called after each whole answer."""

    def __init__(self, free: Callable[[Connection], None]) -> None:
        self._free = free
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, then: Then) -> None:
        """Write a request; its answer's body goes to `then`."""
        self._then = then
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        data = self._left + data if self._left else data
        end = data.find(b"\r\n\r\n")
        place = data.find(b"Content-Length: ") + 16
        if end < 0 or len(data) < end + 4 + int(data[place : data.index(b"\r", place)]):
            self._left = data
            return
        self._left = b""
        if not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the world answered {data[:60]!r}")
        self._then(data[end + 4 :])
        self._free(self)


class Pool:
    """Connections to one place, and the requests that wait for one."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []
        self._waiting: deque[tuple[bytes, Then]] = deque()

    async def open(self, size: int, host: str | None, port: int | None) -> None:
        """Open all connections."""
        loop = asyncio.get_running_loop()
        for _ in range(size):
            _, connection = await loop.create_connection(lambda: Connection(self._free), host, port)
            self._idle.append(connection)

    def send(self, request: bytes, then: Then) -> None:
        """Send when a connection is free."""
        if self._idle:
            self._idle.pop().send(request, then)
        else:
            self._waiting.append((request, then))

    def _free(self, connection: Connection) -> None:
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._idle.append(connection)


class Floor:
    """The whole line, as callbacks."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._journal = journal.Journal(folder / "journal.db")
        self._log = folder.joinpath("floor.log").open("ab", buffering=0)
        self._templates = Templates(read_customers(folder))
        self._service, self._provider = Pool(), Pool()
        self._events: list[EventRow] = []
        self._held = 0
        self._taking = self._empty = self._flushing = False
        self._over = asyncio.Event()

    async def run(self, base_url: str) -> None:
        """Connect, work, end."""
        address = urlsplit(base_url)
        await self._service.open(4, address.hostname, address.port)
        await self._provider.open(CONNECTIONS, address.hostname, address.port)
        self._take()
        await self._over.wait()
        self._journal.close()
        self._log.close()

    # taking

    def _take(self) -> None:
        if not self._taking and not self._empty and self._held <= PLACES - BATCH:
            self._taking = True
            self._service.send(b"GET /queue?take=%d HTTP/1.1\r\nHost: x\r\n\r\n" % BATCH, self._taken)

    def _taken(self, body: bytes) -> None:
        messages = parse(body)
        self._taking = False
        self._empty = not messages
        self._held += len(messages)
        now = timestamp()
        rows, events = [], []
        for message in messages:
            id_ = message["id"]
            variables = orjson.dumps(message["variables"]).decode()
            rows.append((id_, message["settingsId"], message["customerId"], variables, now))
            events.append((id_, 0, f'{{"timestamp":"{now}","messageId":{id_},"status":"dequeued"}}'))
        self._journal.write(journal.TAKEN, rows)
        self._journal.write(journal.EVENT, list(events))
        self._journal.then(self._dequeue, (messages, events))
        self._take()

    def _dequeue(self, batches: list[tuple[list[Json], list[EventRow]]]) -> None:
        for messages, events in batches:
            if messages:
                self._service.send(_post_events(events), partial(self._dequeued, messages, events))
            else:
                self._end_if_over()

    def _dequeued(self, messages: list[Json], events: list[EventRow], _: bytes) -> None:
        self._journal.write(journal.SETTLED, [(id_, seq) for id_, seq, _ in events])
        self._fetch(list(self._templates.unknown(messages)), messages)

    def _fetch(self, unknown: list[int], messages: list[Json]) -> None:
        if not unknown:
            self._prepare(messages)
            return
        settings_id = unknown.pop()

        def fetched(body: bytes) -> None:
            self._templates.add(settings_id, parse(body))
            self._fetch(unknown, messages)

        self._service.send(b"GET /settings/%d HTTP/1.1\r\nHost: x\r\n\r\n" % settings_id, fetched)

    # sending

    def _prepare(self, messages: list[Json]) -> None:
        now = timestamp()
        requests, intents = [], []
        for message in messages:
            id_ = message["id"]
            body = orjson.dumps(self._templates.request(message))
            head = b"POST /sms HTTP/1.1\r\n%bIdempotency-Key: floor-%d\r\nContent-Length: %d\r\n\r\n"
            requests.append((id_, head % (JSON_HEAD, id_, len(body)) + body))
            intents.append((id_, f"floor-{id_}", now))
        self._journal.write(journal.INTENT, intents)
        self._journal.then(self._send, requests)

    def _send(self, batches: list[list[tuple[int, bytes]]]) -> None:
        for requests in batches:
            for id_, request in requests:
                self._provider.send(request, partial(self._sent, id_))

    def _sent(self, id_: int, body: bytes) -> None:
        now = timestamp()
        event = (id_, 1, f'{{"timestamp":"{now}","messageId":{id_},"status":"sent"}}')
        self._journal.write(journal.OUTCOME, [(now, orjson.loads(body)["id"], id_)])
        self._journal.write(journal.ENDED, [(now, id_)])
        self._journal.write(journal.EVENT, [event])
        self._journal.then(self._recorded, event)

    # reporting

    def _recorded(self, events: list[EventRow]) -> None:
        self._log.write("".join([LOG_LINE % (id_, body) for id_, _, body in events]).encode())
        self._events += events
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH, self._flush)

    def _flush(self) -> None:
        events, self._events = self._events, []
        self._service.send(_post_events(events), partial(self._reported, events))

    def _reported(self, events: list[EventRow], _: bytes) -> None:
        self._journal.write(journal.SETTLED, [(id_, seq) for id_, seq, _ in events])
        self._held -= len(events)
        self._flushing = bool(self._events)
        if self._events:
            self._loop.call_later(FLUSH, self._flush)
        self._journal.then(self._end_if_over, None)
        self._take()

    def _end_if_over(self, _: object = None) -> None:
        if self._empty and not self._held:
            self._over.set()


def _post_events(events: list[EventRow]) -> bytes:
    body = ("[" + ",".join([body for _, _, body in events]) + "]").encode()
    return b"POST /events HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (JSON_HEAD, len(body), body)


async def main() -> None:
    """Do the work at the address and in the folder that the command names."""
    await Floor(Path(sys.argv[2])).run(sys.argv[1])


if __name__ == "__main__":
    uvloop.run(main())
