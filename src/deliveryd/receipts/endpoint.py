"""The HTTP side of receipts: routing to providers, limits on bodies, and responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from deliveryd.model import channel_of
from deliveryd.receipts.inlet import Inlet, ReceiptReply
from deliveryd.receipts.request import ReceiptRequest

TakeIn = Callable[[str, ReceiptRequest], Awaitable[ReceiptReply]]
"""Handles a request of a provider."""

TurnedAway = Callable[[int, str | None], None]
"""Called for a rejected request, with the response's status and the provider, if the path names one."""

_METHODS = ("POST", "GET")
_PATHS = ("/receipts/{channel}", "/receipts/{channel}/{provider}")


SMALL_BODY = 64 << 10
"""Bytes of a body that always have room: of as many requests as there may be connections."""

LARGE_BODIES = 8 << 20
"""Bytes that all bodies together may have beyond that, or as many as the largest request."""

STARTING = ReceiptReply(503, "deliveryd is starting; report it again later")
"""As long as nobody knows what other workers have."""

ELSEWHERE = ReceiptReply(503, "another worker may have this provider; report it again later")
"""So that a report isn't lost that the other worker, or this one with a newer configuration, can read."""

NOTHING_HERE = ReceiptReply(404, "no provider of this name has receipts")
"""What no worker of the journal can read, as far as is known."""

_CROWDED = ReceiptReply(503, "too many large reports at once; report it again later")


class KnownProviders(NamedTuple):
    """The providers that this worker has, and those that other workers of the journal have."""

    here: Collection[str] = ()
    others: Collection[str] = ()


class LargeBodies:
    """Room for what bodies have beyond `SMALL_BODY`: so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0


class _Held:
    """What one request holds of that room."""

    __slots__ = ("_own", "_room")

    def __init__(self, room: LargeBodies) -> None:
        self._room = room
        self._own = 0

    def grow(self, size: int) -> bool:
        """Take room for a body of this size; whether there is enough."""
        more = size - SMALL_BODY - self._own
        if more <= 0:
            return True
        if self._room.taken + more > self._room.size:
            return False
        self._room.taken += more
        self._own += more
        return True

    def release(self) -> None:
        """Give the room back."""
        self._room.taken -= self._own
        self._own = 0


class ReceiptEndpoint:
    """The ASGI application: POST and GET of `paths`, such as /receipts/CHANNEL/PROVIDER, by providers.

    Reports bypass Starlette, whose routing costs as much as verifying, parsing and recording a report. It
    handles all other requests. `largest` are the sizes of providers' largest requests, `public_url` is what
    they call, in front of the path; `known` tells which providers there are, None before the start is over.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        inlets: Mapping[str, Inlet],
        take_in: TakeIn,
        turned_away: TurnedAway,
        *,
        largest: Mapping[str, int],
        public_url: str = "",
        known: Callable[[], KnownProviders | None] = KnownProviders,
    ) -> None:
        self._take_in = take_in
        self._turned_away = turned_away
        self._known = known
        self.adopt(paths, inlets, largest=largest, public_url=public_url)
        self._elsewhere = Starlette(
            routes=[Route(path, _unknown, methods=_METHODS) for path in _PATHS],
            exception_handlers={NOTHING_HERE.status: self._not_here},
        )

    def adopt(
        self,
        paths: Mapping[str, str],
        inlets: Mapping[str, Inlet],
        *,
        largest: Mapping[str, int],
        public_url: str,
    ) -> None:
        """Serve other paths, or by other limits, from now on."""
        self._paths = paths
        self._inlets = inlets
        self._with_token = {path: name for path, name in paths.items() if inlets[name].has_token_in_path}
        self._largest = largest
        self._room = LargeBodies(max([LARGE_BODIES, *largest.values()]))
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        provider = self._paths.get(path) or self._before_token(scope)
        if provider is None or scope["method"] not in _METHODS:
            await self._elsewhere(scope, receive, self._telling(provider, send))
            return
        held = _Held(self._room)
        try:
            reply = await self._answer(provider, scope, receive, held)
        finally:
            held.release()
        if reply is not None:
            await _send(send, reply)

    async def _answer(
        self, provider: str, scope: Scope, receive: Receive, held: _Held
    ) -> ReceiptReply | None:
        """Read and take in a request of a provider; None: the client is gone."""
        body = bytearray()
        more = True
        largest = self._largest[provider]  # a reload may remove the provider while the body arrives
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message["body"]
            if len(body) > largest:
                self._turned_away(413, provider)
                return ReceiptReply(413, f"a report must have at most {largest} bytes")
            if not held.grow(len(body)):
                self._turned_away(503, provider)
                return _CROWDED
            more = message["more_body"]
        request = ReceiptRequest(
            scope["method"],
            scope["raw_path"].decode("latin-1"),
            scope["query_string"],
            scope["headers"],
            bytes(body),
            base=self._public_url,
        )
        return await self._take_in(provider, request)

    def _before_token(self, scope: Scope) -> str | None:
        """Return the provider whose path ends with a token, which may have a slash in it (%2F).

        Another worker's provider may have the name that a wrong token would be.
        """
        if not self._with_token:
            return None
        raw_path = scope["raw_path"].decode("latin-1")
        provider = self._with_token.get(unquote(raw_path.rpartition("/")[0]))
        known = self._known()
        if provider is None or known is None or scope["path"] not in map(_path_of, known.others):
            return provider
        return provider if self._inlets[provider].has_token(raw_path) else None

    async def _not_here(self, request: Request, _error: Exception) -> Response:
        known = self._known()
        if known is None:
            reply = STARTING
        else:
            reply = ELSEWHERE if _is_elsewhere(request.scope["path"], known) else NOTHING_HERE
        return PlainTextResponse(reply.text, reply.status)

    def _telling(self, provider: str | None, send: Send) -> Send:
        """Return a `send` that also reports the response's status."""

        async def tell_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._turned_away(message["status"], provider)
            await send(message)

        return tell_and_send


async def _unknown(_request: Request) -> Response:
    raise HTTPException(NOTHING_HERE.status)


def _path_of(provider: str) -> str:
    """Return the path that names a provider, also one that has its channel's name."""
    channel, _, name = provider.partition("/")
    return f"/receipts/{channel}/{name or channel}"


def _is_elsewhere(path: str, known: KnownProviders) -> bool:
    """Whether workers have other providers of a path's channel than this one, and so other paths."""
    theirs = _in_channel(path, known.others)
    return bool(theirs) and theirs != _in_channel(path, known.here)


def _in_channel(path: str, providers: Iterable[str]) -> set[str]:
    """Return the providers of the channel that a path names."""
    return {each for each in providers if f"{path}/".startswith(f"/receipts/{channel_of(each)}/")}


async def _send(send: Send, reply: ReceiptReply) -> None:
    body = reply.text.encode()
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", reply.content_type.encode("latin-1")),
        (b"x-content-type-options", b"nosniff"),
    ]
    if reply.login:
        headers.append((b"www-authenticate", b'Basic realm="receipts", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
