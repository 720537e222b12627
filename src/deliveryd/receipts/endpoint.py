"""The HTTP side of receipts: routing to providers, limits on bodies, and responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send


class ReceiptReply(NamedTuple):
    """The response to a provider."""

    status: int
    text: str


TakeIn = Callable[[str, Mapping[str, str], bytes], Awaitable[ReceiptReply]]
"""Handles a report: its provider, its headers, its body."""

TurnedAway = Callable[[int, str | None], None]
"""Called for a rejected request, with the response's status and the provider, if the path names one."""


class ReceiptEndpoint:
    """The ASGI application: POST /receipts/CHANNEL/PROVIDER. `paths` are the providers by their addresses.

    Reports bypass Starlette, whose routing costs as much as verifying, parsing and recording a report. It
    handles all other requests.
    """

    def __init__(
        self, paths: Mapping[str, str], take_in: TakeIn, turned_away: TurnedAway, max_body: int
    ) -> None:
        self._paths = paths
        self._take_in = take_in
        self._turned_away = turned_away
        self._max_body = max_body
        self._elsewhere = Starlette(
            routes=[
                Route("/receipts/{channel}", _unknown, methods=["POST"]),
                Route("/receipts/{channel}/{provider}", _unknown, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        provider = self._paths.get(scope["path"])
        if provider is None or scope["method"] != "POST":
            await self._elsewhere(scope, receive, self._telling(provider, send))
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if len(body) > self._max_body:
                self._turned_away(413, provider)
                await _send(send, ReceiptReply(413, f"a report must have at most {self._max_body} bytes"))
                return
            more = message["more_body"]
        await _send(send, await self._take_in(provider, Headers(raw=scope["headers"]), bytes(body)))

    def _telling(self, provider: str | None, send: Send) -> Send:
        """Return a `send` that also reports the response's status."""

        async def tell_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._turned_away(message["status"], provider)
            await send(message)

        return tell_and_send


async def _unknown(_request: Request) -> Response:
    raise HTTPException(404, "no provider reports to this address")


async def _send(send: Send, answer: ReceiptReply) -> None:
    body = answer.text.encode()
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
