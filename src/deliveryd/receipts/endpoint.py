"""The HTTP side of receipts: routing to providers, limits on bodies, and responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from deliveryd.http.peers import EVERYBODY, Peers
from deliveryd.http.wrong_tries import WrongTries
from deliveryd.model import channel_of
from deliveryd.receipts.inlet import Inlet, ReceiptReply
from deliveryd.receipts.large_bodies import SMALL_BODY, HeldRoom, LargeBodies
from deliveryd.receipts.request import ReceiptRequest

TakeIn = Callable[[str, ReceiptRequest], Awaitable[ReceiptReply]]
"""Handles a request of a provider."""

TurnedAway = Callable[[int, str | None], None]
"""Called for a rejected request, with the response's status and the provider, if the path names one."""

_METHODS = ("POST", "GET")
_PATHS = ("/receipts/{channel}", "/receipts/{channel}/{provider}")


MOST_VALUES = 100_000
"""Values, by their commas, that a body may have: more are parsed at one go than the loop may stand."""

STARTING = ReceiptReply(503, "deliveryd is starting; report it again later")
"""As long as nobody knows what other workers have."""

ELSEWHERE = ReceiptReply(503, "another worker may have this provider; report it again later")
"""So that a report isn't lost that the other worker, or this one with a newer configuration, can read."""

NOTHING_HERE = ReceiptReply(404, "no provider of this name has receipts")
"""What no worker of the journal can read, as far as is known."""

_CROWDED = ReceiptReply(503, "too many large reports at once; report it again later")


_FORGED = 401
_TOO_OFTEN = ReceiptReply(429, "too many requests whose signature doesn't fit; try again later")


class KnownProviders(NamedTuple):
    """The providers that this worker has, and those that other workers of the journal have."""

    here: Collection[str] = ()
    others: Collection[str] = ()


class _Arrival:
    """A body that arrives; `is_cut`: the client left before its end."""

    __slots__ = ("_receive", "body", "is_cut")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.body = bytearray()
        self.is_cut = False

    async def more(self) -> bool:
        """Receive a part; whether another follows."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_cut = True
            return False
        self.body += message["body"]
        return bool(message["more_body"])


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
        peers: Peers = EVERYBODY,
    ) -> None:
        self._peers = peers
        self._wrong = WrongTries()
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
        self._room = LargeBodies(max(largest.values(), default=0))
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        provider = self._paths.get(path) or self._before_token(scope)
        if provider is None or scope["method"] not in _METHODS:
            await self._elsewhere(scope, receive, self._telling(provider, send))
            return
        reply = await self._answer(provider, scope, receive)
        if reply is not None and reply.status == _FORGED and self._wrong.add(self._peer(scope)):
            self._turned_away(_TOO_OFTEN.status, provider)
            reply = _TOO_OFTEN
        if reply is not None:
            await _send(send, reply)

    async def _answer(self, provider: str, scope: Scope, receive: Receive) -> ReceiptReply | None:
        """Read and take in a request of a provider; None: the client is gone."""
        largest = self._largest[provider]  # a reload may remove the provider while the body arrives
        arrival = _Arrival(receive)
        small = min(SMALL_BODY, largest)
        while len(arrival.body) <= small and await arrival.more():
            pass
        if len(arrival.body) <= small:
            return await self._answer_whole(provider, scope, arrival, largest)
        held = HeldRoom(self._room, self._peer(scope))
        try:
            with held.scope:
                while held.grow(len(arrival.body)) and len(arrival.body) <= largest and await arrival.more():
                    pass
                held.grow(len(arrival.body))
            if held.is_evicted:
                self._turned_away(503, provider)
                return _CROWDED
            held.finish()
            return await self._answer_whole(provider, scope, arrival, largest)
        finally:
            held.release()

    async def _answer_whole(
        self, provider: str, scope: Scope, arrival: _Arrival, largest: int
    ) -> ReceiptReply | None:
        if arrival.is_cut:
            return None
        if len(arrival.body) > largest:
            self._turned_away(413, provider)
            return ReceiptReply(413, f"a report must have at most {largest} bytes")
        if len(arrival.body) > SMALL_BODY and arrival.body.count(b",") > MOST_VALUES:
            self._turned_away(413, provider)
            return ReceiptReply(413, f"a report must have at most {MOST_VALUES} values")
        request = ReceiptRequest(
            scope["method"],
            scope["raw_path"].decode("latin-1"),
            scope["query_string"],
            scope["headers"],
            bytes(arrival.body),
            base=self._public_url,
            peer=partial(self._peer, scope),
        )
        return await self._take_in(provider, request)

    def _peer(self, scope: Scope) -> str | None:
        """Return who sent a request; None: a trusted proxy that names nobody."""
        client = scope.get("client")
        if client is None:
            return None
        forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        return self._peers.connected(client[0]) or self._peers.forwarded(forwarded)

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
    if reply is _TOO_OFTEN:
        headers.append((b"connection", b"close"))
    if reply.login:
        headers.append((b"www-authenticate", b'Basic realm="receipts", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
