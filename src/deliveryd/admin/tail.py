"""Server-sent events: what happens to messages, for `deliveryd tail --url`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from deliveryd.admin.viewers import EVENT_STREAM_HEADERS, ViewerPlaces, end_stream, send_until_left
from deliveryd.delivery.tail import Tail, TailFilter

_NOTHING = b":\n\n"
"""A comment, sent while nothing happens, so that a lost connection is noticed."""

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
        if scope["method"] != "GET":
            await PlainTextResponse("", headers={"content-type": "text/event-stream"})(scope, receive, send)
            return
        with self._places.taken(scope):
            await send_until_left(partial(self._send, wanted, send), receive)
        await end_stream(send)

    async def _send(self, wanted: TailFilter, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS})
        with self._open_tail(wanted) as tail:
            await _send_part(send, _NOTHING)
            while True:
                events = ",".join(event.as_text() for event in await tail.next_events())
                await _send_part(send, f'data: {{"events":[{events}]}}\n\n'.encode() if events else _NOTHING)


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


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
