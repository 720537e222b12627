"""Server-sent events to a bounded number of viewers: what a worker shows, and what happens to messages.

Each message is made once, however many viewers there are; without a viewer, nothing is made.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from deliveryd.delivery.tail import Tail, TailFilter

MOST_VIEWERS = 20
INTERVAL = 1.0
RETRY_MILLISECONDS = 1000
"""When a browser connects again after it lost the connection."""

_NOTHING = b":\n\n"
"""A comment, sent while nothing happens, so that a lost connection is noticed."""

_FRESH = 0.9 * INTERVAL
_EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Feed(Protocol):
    """What viewers are sent."""

    def next(self, seen: int) -> tuple[int, bytes]:
        """Return the number of the latest message, and what a viewer needs of it who has seen that one.

        0: the viewer has seen none.
        """


class ViewerPlaces:
    """The viewers of all feeds together.

    If there are too many, one leaves for the next: of the peer that has most of them, the one that has been
    there for longest. So viewers that only hold their connections don't shut out others.
    """

    def __init__(self, most: int = MOST_VIEWERS) -> None:
        self._most = most
        self._viewers: dict[anyio.CancelScope, str] = {}

    @contextmanager
    def taken(self, scope: Scope) -> Iterator[None]:
        """Hold a place for the viewer of a request; the block is cancelled when it has to leave."""
        if len(self._viewers) >= self._most:
            [(peer, _count)] = Counter(self._viewers.values()).most_common(1)
            oldest = next(each for each, its_peer in self._viewers.items() if its_peer == peer)
            del self._viewers[oldest]
            oldest.cancel()
        client = scope.get("client")
        with anyio.CancelScope() as watched:
            self._viewers[watched] = client[0] if client is not None else ""
            try:
                yield
            finally:
                self._viewers.pop(watched, None)


class FeedStream:
    """The ASGI application that sends one feed."""

    def __init__(self, feed: Feed, places: ViewerPlaces) -> None:
        self._feed = feed
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the viewer leaves."""
        await _serve(partial(self._send, send), self._places, scope, receive, send)

    async def _send(self, send: Send) -> None:
        await _send_part(send, b"retry: %d\n" % RETRY_MILLISECONDS)
        seen = 0
        while True:
            seen, message = self._feed.next(seen)
            await _send_part(send, b"data: %b\n\n" % message)
            # All viewers at the same instants, so that they share what is made.
            await anyio.sleep(INTERVAL - anyio.current_time() % INTERVAL)


async def _serve(
    send_all: Callable[[], Coroutine[Any, Any, None]],
    places: ViewerPlaces,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a request for a stream: send until the viewer leaves or has to, then end it."""
    if scope["method"] != "GET":
        await PlainTextResponse("", headers={"content-type": "text/event-stream"})(scope, receive, send)
        return
    with places.taken(scope):
        async with anyio.create_task_group() as tasks:
            await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM_HEADERS})
            tasks.start_soon(send_all)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()
    with anyio.move_on_after(1):
        await send({"type": "http.response.body", "body": b""})


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


class WholeFeed:
    """Sends all of a value as JSON each time."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._number = 0
        self._made_at = float("-inf")
        self._message = b""

    def next(self, seen: int) -> tuple[int, bytes]:  # noqa: ARG002 - every message has everything
        """Return the value of this second."""
        now = anyio.current_time()
        if now - self._made_at >= _FRESH:
            self._made_at = now
            self._number += 1
            self._message = json.dumps(self._make(), separators=(",", ":")).encode()
        return self._number, self._message


class RegionsFeed:
    """Sends the regions of a page that changed since a viewer's last message."""

    def __init__(self, draw: Callable[[], Mapping[str, str]]) -> None:
        self._draw = draw
        self._number = 0
        self._drawn_at = float("-inf")
        self._regions: dict[str, str] = {}
        self._changed: dict[str, int] = {}  # in which message each region changed last
        self._common = b""  # for viewers who saw the message before

    def next(self, seen: int) -> tuple[int, bytes]:
        """Return what changed."""
        now = anyio.current_time()
        if now - self._drawn_at >= _FRESH:
            self._drawn_at = now
            self._number += 1
            for name, content in self._draw().items():
                if self._regions.get(name) != content:
                    self._regions[name] = content
                    self._changed[name] = self._number
            self._common = self._since(self._number - 1)
        return self._number, self._common if seen == self._number - 1 else self._since(seen)

    def _since(self, seen: int) -> bytes:
        changed = {name: self._regions[name] for name, number in self._changed.items() if number > seen}
        return json.dumps(changed, separators=(",", ":")).encode()


OpenTail = Callable[[TailFilter], Tail]


class TailStream:
    """The ASGI application that sends the events that a query selects."""

    def __init__(self, open_tail: OpenTail, places: ViewerPlaces) -> None:
        self._open_tail = open_tail
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the reader leaves."""
        try:
            wanted = _filter_of(Request(scope).query_params)
        except ValueError as error:
            await PlainTextResponse(f"{error}\n", 400)(scope, receive, send)
            return
        await _serve(partial(self._send, wanted, send), self._places, scope, receive, send)

    async def _send(self, wanted: TailFilter, send: Send) -> None:
        with self._open_tail(wanted) as tail:
            await _send_part(send, _NOTHING)
            while True:
                events = ",".join(event.as_text() for event in await tail.next_events())
                await _send_part(send, f'data: {{"events":[{events}]}}\n\n'.encode() if events else _NOTHING)


def _filter_of(query: Mapping[str, str]) -> TailFilter:
    """Read `channel`, `message` and `failed`. Raises ValueError."""
    if unknown := sorted(query.keys() - {"channel", "message", "failed"}):
        raise ValueError(f"unknown parameter {unknown[0]!a}: expected channel, message, failed")
    try:
        message = int(query["message"]) if "message" in query else None
    except ValueError:
        raise ValueError("message must be an integer") from None
    if query.get("failed", "false") not in ("true", "false"):
        raise ValueError("failed must be true or false")
    return TailFilter(query.get("channel"), message, query.get("failed") == "true")
