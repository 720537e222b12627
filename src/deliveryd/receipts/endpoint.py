"""The HTTP side of receipts: routing to providers, limits on bodies, and responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import unquote

import anyio.lowlevel
from starlette.types import Receive, Scope, Send

from deliveryd.http.content_coding import Decoder, Layers, Undecodable, decoder_of
from deliveryd.http.peers import EVERYBODY, Peers, WrongTries
from deliveryd.http.wire import Header
from deliveryd.receipts.inlet import Inlets, ReceiptReply
from deliveryd.receipts.large_bodies import SMALL_BODY, HeldRoom, LargeBodies
from deliveryd.receipts.request import ReceiptRequest

TakeIn = Callable[[str, ReceiptRequest], Awaitable[ReceiptReply]]
"""Handles a request of a provider."""


class ReceiptRoute(NamedTuple):
    """A path to which a provider reports, without the token at its end."""

    path: str
    provider: str


TurnedAway = Callable[[int, ReceiptRoute | None], None]
"""Called for a rejected request, with the response's status and the route, if the path is one."""

_METHODS = ("POST", "GET")
_DECODED = frozenset({"gzip", "x-gzip", "deflate"})

MOST_VALUES = 100_000
"""Values, by their commas, that a body may have: more are parsed at one go than the loop may stand."""

STARTING = ReceiptReply(503, "deliveryd is starting; report it again later")

NOTHING_HERE = ReceiptReply(404, "no provider of this name has receipts")

_CROWDED = ReceiptReply(503, "too many large reports at once; report it again later")
_OTHER_METHOD = ReceiptReply(405, "reports come by POST or GET")
_OTHER_CODING = ReceiptReply(415, "a report's Content-Encoding may be gzip or deflate, or none")
_UNDECODABLE = ReceiptReply(400, "the body can't be decompressed")

_FORGED = 401
_TOO_OFTEN = ReceiptReply(429, "too many requests whose signature doesn't fit; try again later")


_HEADERS = {
    _OTHER_METHOD.status: (b"allow", b"GET, POST"),
    _OTHER_CODING.status: (b"accept-encoding", b"gzip, deflate"),
    _TOO_OFTEN.status: (b"connection", b"close"),
}
"""What an answer needs besides: RFC 9110, 15.5.6 and 15.5.16."""


class _Arrival:
    """A body that arrives, and is decompressed with `decoder`; `is_cut`: the client left before its end.

    `sent` are the bytes as they came, of a compressed one. `_follows`: more of it is to come.
    """

    __slots__ = ("_decoder", "_follows", "_receive", "body", "is_cut", "sent")

    def __init__(self, receive: Receive, decoder: Decoder | Layers | None) -> None:
        self._receive = receive
        self._decoder = decoder
        self._follows = True
        self.body = bytearray()
        self.sent = bytearray()
        self.is_cut = False

    @property
    def size(self) -> int:
        """How many bytes it takes up."""
        return len(self.body) + len(self.sent)

    async def more(self) -> bool:
        """Receive a part, if one is to come; whether another follows. Raises Undecodable."""
        if not self._follows:
            return False
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_cut, self._follows = True, False
            return False
        self._follows = bool(message["more_body"])
        if self._decoder is None:
            self.body += message["body"]
        else:
            self.sent += message["body"]
            for piece in self._decoder.decode(message["body"]):
                self.body += piece
                await anyio.lowlevel.checkpoint()
        return self._follows

    def whole(self) -> bytes:
        """Return the body, all of which has arrived. Raises Undecodable."""
        if self._decoder is not None:
            self._decoder.end()
        return bytes(self.body)


class ReceiptEndpoint:
    """The ASGI application: POST and GET of paths such as /receipts/CHANNEL/PROVIDER.

    A slash behind a path changes nothing.
    """

    def __init__(
        self,
        inlets: Inlets,
        take_in: TakeIn,
        turned_away: TurnedAway,
        *,
        is_started: Callable[[], bool] = lambda: True,
        peers: Peers = EVERYBODY,
    ) -> None:
        self._peers = peers
        self._wrong = WrongTries()
        self._take_in = take_in
        self._turned_away = turned_away
        self._is_started = is_started
        self.adopt(inlets)

    def adopt(self, inlets: Inlets) -> None:
        """Serve other paths, or by other limits, from now on."""
        self._inlets = inlets
        self._with_token = {
            path: name for path, name in inlets.paths.items() if inlets.by_provider[name].has_token_in_path
        }
        self._room = LargeBodies(max((inlet.largest for inlet in inlets.by_provider.values()), default=0))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        route = self._route(scope)
        if route is None:
            reply: ReceiptReply | None = self._turn_away(self._not_here(), None)
        elif scope["method"] not in _METHODS:
            reply = self._turn_away(_OTHER_METHOD, route)
        else:
            reply = await self._answer(route, scope, receive)
            if reply is not None and reply.status == _FORGED and self._wrong.add(self._peer(scope)):
                reply = self._turn_away(_TOO_OFTEN, route)
        if reply is not None:
            await _send(send, reply)

    async def _answer(self, route: ReceiptRoute, scope: Scope, receive: Receive) -> ReceiptReply | None:
        """Read and take in a request of a provider; None: the client is gone."""
        largest = self._inlets.by_provider[
            route.provider
        ].largest  # a reload may remove the provider while the body arrives
        coding = _coding(scope["headers"])
        small = min(SMALL_BODY, largest)
        try:
            arrival = _Arrival(receive, decoder_of(coding, largest) if coding else None)
            while arrival.size <= small and await arrival.more():
                pass
            if arrival.size <= small:
                return await self._answer_whole(route, scope, arrival, largest)
            return await self._answer_large(route, scope, arrival, largest)
        except Undecodable:
            return self._turn_away(_UNDECODABLE if coding in _DECODED else _OTHER_CODING, route)

    async def _answer_large(
        self, route: ReceiptRoute, scope: Scope, arrival: _Arrival, largest: int
    ) -> ReceiptReply | None:
        room, held = self._room, HeldRoom(self._peer(scope))
        try:
            with held.scope:
                while room.grow(held, arrival.size) and len(arrival.body) <= largest and await arrival.more():
                    pass
                room.grow(held, arrival.size)
            if held.is_evicted:
                return self._turn_away(_CROWDED, route)
            room.finish(held)
            return await self._answer_whole(route, scope, arrival, largest)
        finally:
            room.leave(held)

    async def _answer_whole(
        self, route: ReceiptRoute, scope: Scope, arrival: _Arrival, largest: int
    ) -> ReceiptReply | None:
        if arrival.is_cut:
            return None
        if len(arrival.body) > largest:
            return self._turn_away(ReceiptReply(413, f"a report must have at most {largest} bytes"), route)
        if len(arrival.body) > SMALL_BODY and arrival.body.count(b",") > MOST_VALUES:
            return self._turn_away(
                ReceiptReply(413, f"a report must have at most {MOST_VALUES} values"), route
            )
        request = ReceiptRequest(
            scope["method"],
            scope["raw_path"].decode("latin-1"),
            scope["query_string"],
            scope["headers"],
            arrival.whole(),
            base=self._inlets.public_url,
            sent=bytes(arrival.sent) or None,
            peer=partial(self._peer, scope),
        )
        return await self._take_in(route.provider, request)

    def _peer(self, scope: Scope) -> str | None:
        """Return who sent a request; None: a trusted proxy that names no peer."""
        client = scope.get("client")
        if client is None:
            return None
        forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        return self._peers.connected(client[0]) or self._peers.forwarded(forwarded)

    def _route(self, scope: Scope) -> ReceiptRoute | None:
        """Return whom a path belongs to. One that ends with a token may have a slash in that (%2F)."""
        path = scope["path"].rstrip("/")
        if (provider := self._inlets.paths.get(path)) is not None:
            return ReceiptRoute(path, provider)
        if not self._with_token:
            return None
        path = unquote(scope["raw_path"].decode("latin-1").rstrip("/").rpartition("/")[0])
        provider = self._with_token.get(path)
        return None if provider is None else ReceiptRoute(path, provider)

    def _not_here(self) -> ReceiptReply:
        return NOTHING_HERE if self._is_started() else STARTING

    def _turn_away(self, reply: ReceiptReply, route: ReceiptRoute | None) -> ReceiptReply:
        self._turned_away(reply.status, route)
        return reply


def _coding(headers: Sequence[Header]) -> str:
    """Return how a body is encoded, in lower case; empty: not at all."""
    if b"content-encoding" not in dict(headers):  # nearly every request, so without a loop
        return ""
    given = [value for name, value in headers if name == b"content-encoding"]
    codings = (each.strip() for each in b",".join(given).decode("latin-1").lower().split(","))
    return ", ".join(each for each in codings if each not in ("", "identity"))


async def _send(send: Send, reply: ReceiptReply) -> None:
    body, headers = _encoded(*reply[:4])
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@lru_cache(maxsize=64)
def _encoded(status: int, text: str, content_type: str, login: bool) -> tuple[bytes, Sequence[Header]]:
    """Return the body and the headers of a response; nearly all are the same."""
    body = text.encode()
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", content_type.encode("latin-1")),
        (b"x-content-type-options", b"nosniff"),
    ]
    if status in _HEADERS:
        headers.append(_HEADERS[status])
    if login:
        headers.append((b"www-authenticate", b'Basic realm="receipts", charset="UTF-8"'))
    return body, headers
