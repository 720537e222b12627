"""A wire over anyio's streams, for what is rare: proxies, and event loops other than asyncio's."""

from __future__ import annotations

import select
import ssl
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import anyio
from anyio.abc import ByteStream, SocketAttribute

from deliveryd.errors import NotSent, OutcomeUnknown, ProxyRefused
from deliveryd.http.response_reader import BROKE, ResponseReader
from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import (
    IDENTITY,
    IDLE_SECONDS,
    BeforeSend,
    Header,
    Headers,
    Proxy,
    Target,
    WireResponse,
    encode_request,
)
from deliveryd.network.connection import open_stream, over_tls, verified_by
from deliveryd.network.deadline import within
from deliveryd.network.resolver import Resolver

Login = Callable[[], Header | None]
"""Returns the header with the login at a proxy; None: it requires none."""

_Origin = tuple[str, str, int, str | None, ssl.SSLContext | None]
_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class StreamWire:
    """Sends requests directly, or through `proxy` with its `login`. The rest is as for `AsyncioWire`."""

    def __init__(
        self,
        tls_context: Callable[[], ssl.SSLContext],
        proxy: Proxy | None = None,
        login: Login | None = None,
        accept_encoding: str = IDENTITY,
        ca_key: str = "tls.ca_file",
    ) -> None:
        self._tls_context = tls_context
        self._proxy = target_of(proxy.url) if proxy is not None else None
        self._login = login
        self._accept = accept_encoding.encode("ascii")
        self._ca_key = ca_key
        self._resolver = Resolver()
        self._proxy_context = cache(TlsFiles().context)
        self._idle: defaultdict[_Origin, deque[tuple[float, ByteStream]]] = defaultdict(deque)
        self._open: set[ByteStream] = set()
        self._closed = False

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        """Send a request and return the whole answer. Raises NotSent or OutcomeUnknown."""
        sent = target
        if self._proxy is not None and target.scheme == "http":
            sent = target._replace(path=str(target).encode("ascii"))
            headers = [*headers, *self._login_headers()]
        message = encode_request(method, sent, headers, body, self._accept)
        answer = ResponseReader()
        ends = anyio.current_time() + deadline
        try:
            await within(deadline, partial(self._exchange, target, message, answer, max_body, check, ends))
        except TimeoutError:
            if not answer.is_awaited and answer.outcome is None:
                raise NotSent(f"no connection to {target.host}:{target.port} within {deadline:g} s") from None
            answer.fail(f"no whole answer within {deadline:g} s")
        if isinstance(answer.outcome, WireResponse):
            return answer.outcome
        raise answer.outcome or OutcomeUnknown(BROKE)

    async def aclose(self) -> None:
        """Close all connections; requests in progress fail."""
        self._closed = True
        self._idle.clear()
        for stream in list(self._open):
            await self._close(stream)

    async def _exchange(  # noqa: PLR0917 - what `exchange` has
        self,
        target: Target,
        message: bytes,
        answer: ResponseReader,
        max_body: int,
        check: BeforeSend | None,
        ends: float,
    ) -> None:
        context = None
        if target.scheme == "https":
            context = verified_by(self._tls_context, target.host, target.port, self._ca_key)
        origin = (*target[:3], target.address, context)
        stream = await self._reuse(origin) or await self._connect(target, context)
        is_reusable = True
        try:
            if anyio.current_time() >= ends:  # the loop, or the process, stood still while it connected
                raise TimeoutError
            if check is not None:
                check()
            is_reusable = False
            answer.begin(max_body)
            is_reusable = await _ask(stream, message, answer)
        finally:
            is_current = context is None or context is self._tls_context()
            if is_reusable and is_current and not self._closed:
                self._idle[origin].append((anyio.current_time(), stream))
            else:
                await self._close(stream)

    async def _reuse(self, origin: _Origin) -> ByteStream | None:
        """Return an idle connection; close those that were idle for too long, or that the peer has closed."""
        oldest = anyio.current_time() - IDLE_SECONDS
        for other, idle in list(self._idle.items()):
            while idle and idle[0][0] <= oldest:
                await self._close(idle.popleft()[1])
            if not idle:
                self._idle.pop(other, None)
        while waiting := self._idle.get(origin):
            _, stream = waiting.pop()
            if _is_quiet(stream):
                return stream
            await self._close(stream)
        return None

    async def _connect(self, target: Target, context: ssl.SSLContext | None) -> ByteStream:
        via, proxy_context = self._proxy or target, None
        if via is self._proxy and via.scheme == "https":
            proxy_context = verified_by(self._proxy_context, via.host, via.port, self._ca_key)
        stream = await open_stream(self._resolver, via.address or via.host, via.port, self._ca_key)
        if proxy_context is not None:
            stream = await over_tls(stream, proxy_context, via.host, via.port, self._ca_key)
        if via is self._proxy and context is not None:
            try:
                await self._tunnel(stream, target)
            except BaseException:
                await self._close(stream)
                raise
        if context is not None:
            stream = await over_tls(stream, context, target.host, target.port, self._ca_key)
        self._open.add(stream)
        if self._closed:
            await self._close(stream)
            raise NotSent("the client is closed")
        return stream

    async def _tunnel(self, stream: ByteStream, target: Target) -> None:
        """Have the proxy connect to the target. Raises NotSent."""
        host = f"[{target.host}]" if ":" in target.host else target.host
        at = f"{host}:{target.port}"
        place = target._replace(authority=at, path=at.encode("ascii"))
        answer = ResponseReader()
        answer.begin(0, is_tunnel=True)
        await _ask(stream, encode_request("CONNECT", place, self._login_headers(), b"", self._accept), answer)
        outcome = answer.outcome
        if not isinstance(outcome, WireResponse):
            raise NotSent(f"no connection to {at} through the proxy: {outcome}")
        if not 200 <= outcome.status < 300:
            raise ProxyRefused(f"the proxy answered {outcome.status}", outcome.status)

    def _login_headers(self) -> Headers:
        login = self._login() if self._login is not None else None
        return [] if login is None else [login]

    async def _close(self, stream: ByteStream) -> None:
        self._open.discard(stream)
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)


async def _ask(stream: ByteStream, message: bytes, answer: ResponseReader) -> bool:
    """Send a request and read its answer; return whether the connection can be used again."""
    is_sent = False
    with suppress(*_BROKEN):  # an answer may have come before
        await stream.send(message)
        is_sent = True
    while answer.is_awaited:
        try:
            answer.feed(await stream.receive())
        except anyio.EndOfStream:
            answer.end()
        except _BROKEN:
            answer.fail(BROKE)
    return is_sent and answer.allows_another


def _is_quiet(stream: ByteStream) -> bool:
    """Whether the socket has nothing to read, such as the peer's close."""
    unread = select.poll()
    connection = stream.extra(SocketAttribute.raw_socket)  # noqa: S610  # no database
    unread.register(connection.fileno(), select.POLLIN)
    return not unread.poll(0)
