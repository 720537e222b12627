"""A wire over any httpx transport: for trio, for proxies, and for tests with their own transport."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import httpx

from deliveryd.errors import AnswerUnreadable, BrokenOff, NotSent, OutcomeUnknown, ProxyRefused, TooLarge
from deliveryd.http.content_coding import Undecodable, decoder_of
from deliveryd.http.httpx_transport import ResolvingTransport
from deliveryd.http.proxy import Login, Proxy
from deliveryd.http.wire import IDENTITY, BeforeSend, Headers, Target, WireResponse, add_header
from deliveryd.network.connection import not_connected
from deliveryd.network.deadline import within

_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)

NOTHING_CAME = "Server disconnected without sending a response."
"""What httpcore says of a connection that ended before an answer."""

EARLIER = 0.9
"""The part of the deadline that connecting may take: httpcore closes the socket of a time-out of its own, but
leaks that of a cancelled TLS handshake."""


def open_transport(
    context: ssl.SSLContext, proxy: Proxy | None = None, login: Login | None = None
) -> httpx.AsyncHTTPTransport:
    """Return httpx's transport with the same pooling and name resolution as our wire."""
    return ResolvingTransport(context, proxy, login)


class HttpxWire:
    """Sends requests over an httpx transport, and translates its errors.

    `ca_key` is the configuration key that names the trusted authorities, for errors.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        accept_encoding: str = IDENTITY,
        ca_key: str = "tls.ca_file",
    ) -> None:
        self._transport = transport
        self._accept = accept_encoding.encode("ascii")
        self._ca_key = ca_key

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
        progress = _Progress(check)
        url, more, extensions = _connected_to(target)
        request = httpx.Request(
            method,
            url,
            headers=[(b"accept-encoding", self._accept), *more, *headers],
            content=body,
            extensions={
                "trace": progress.follow, "timeout": {"connect": EARLIER * deadline}, **extensions
            },
        )  # fmt: skip
        progress.check()  # for a transport that doesn't report its progress
        try:
            return await within(deadline, partial(self._receive, request, max_body, progress))
        except TimeoutError:
            if progress.connecting:
                raise NotSent(f"no connection to {target.host}:{target.port} within {deadline:g} s") from None
            raise progress.unknown(f"no whole answer within {deadline:g} s") from None
        except httpx.ProxyError as error:
            raise _refused_by_proxy(target, error) from None
        except _NEVER_SENT as error:
            raise not_connected(target.host, target.port, error, self._ca_key) from None
        except httpx.RemoteProtocolError as error:
            if progress.status is None and str(error) != NOTHING_CAME:
                raise AnswerUnreadable("the answer isn't HTTP") from None
            raise progress.unknown("the connection broke before the whole answer was there") from None
        except httpx.TransportError as error:
            raise progress.unknown(f"the connection broke ({type(error).__name__})") from None

    async def _receive(self, request: httpx.Request, max_body: int, progress: _Progress) -> WireResponse:
        response = await self._transport.handle_async_request(request)
        progress.answered(response)
        try:
            body = _Body(progress, max_body)
            with anyio.CancelScope() as end:  # breaking out would leave httpcore's generators open
                async for chunk in response.stream:  # type: ignore[union-attr]  # async transports stream async
                    if not body.take(chunk):
                        end.cancel()
            body.end()
            return WireResponse(response.status_code, progress.headers, bytes(progress.body))
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


def _connected_to(target: Target) -> tuple[str, Headers, dict[str, str]]:
    """Return the URL to connect to, with the headers and extensions for the target's host name.

    Such a connection isn't reused: httpcore would use it for other hosts with the same address.
    """
    if target.address is None:
        return str(target), (), {}
    host = f"[{target.address}]" if ":" in target.address else target.address
    url = f"{target.scheme}://{host}:{target.port}{target.path.decode('ascii')}"
    headers = ((b"host", target.authority.encode("ascii")), (b"connection", b"close"))
    return url, headers, {"sni_hostname": target.host}


def _headers_of(response: httpx.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in response.headers.raw:  # httpx's own mapping would join all repeated ones
        add_header(headers, name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


def _refused_by_proxy(target: Target, error: httpx.ProxyError) -> NotSent:
    """Return the proxy's refusal; httpcore gives its status as the first word of the text."""
    status = str(error).partition(" ")[0]
    if status.isascii() and status.isdigit():
        return ProxyRefused(f"the proxy answered {status}", int(status))
    return NotSent(f"no connection to {target.host}:{target.port} ({type(error).__name__})")


class _Progress:
    """The progress of a request in httpcore. Without reports, the request counts as sent."""

    def __init__(self, check: BeforeSend | None) -> None:
        self.check = check or _nothing_to_check
        self.connecting = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()

    async def follow(self, event: str, details: Mapping[str, Any]) -> None:
        """Process a trace event. Raises TooLate."""
        if event == "connection.connect_tcp.started":
            self.connecting = True
        elif event.endswith(".send_request_headers.started") and details["request"].method != b"CONNECT":
            self.check()
            self.connecting = False

    def answered(self, response: httpx.Response) -> None:
        """Record that the response's head is complete."""
        self.status, self.headers = response.status_code, _headers_of(response)

    def unknown(self, reason: str, kind: type[BrokenOff] = BrokenOff) -> OutcomeUnknown:
        """Return the error for an incomplete response, with its status if the head was complete."""
        if self.status is None:
            return OutcomeUnknown(reason)
        return kind(reason, self.status, self.headers, bytes(self.body))


class _Body:
    """The body of a response, decoded as it arrives, within its limit. Raises OutcomeUnknown."""

    def __init__(self, progress: _Progress, max_size: int) -> None:
        self._progress = progress
        self._max_size = max_size
        self._problem: str | None = None
        self._kind: type[BrokenOff] = BrokenOff
        try:
            self._decoder = decoder_of(progress.headers.get("content-encoding", ""), max_size)
        except Undecodable as error:
            raise progress.unknown(str(error)) from None

    def take(self, chunk: bytes) -> bool:
        """Add the next piece; return False if no more is needed."""
        try:
            for data in self._decoder.decode(chunk) if self._decoder is not None else (chunk,):
                self._append(data)
        except Undecodable as error:
            if self._problem is None:
                self._problem, self._kind = str(error), error.kind
        return self._problem is None

    def _append(self, data: bytes) -> None:
        received = self._progress.body
        if self._problem is None and len(received) + len(data) > self._max_size:
            self._problem, self._kind = f"the answer is larger than {self._max_size} bytes", TooLarge
        received += data[: self._max_size - len(received)]

    def end(self) -> None:
        """Check that it is complete."""
        try:
            if self._problem is None and self._decoder is not None:
                self._decoder.end()
        except Undecodable as error:
            self._problem = str(error)
        if self._problem is not None:
            raise self._progress.unknown(self._problem, self._kind)


def _nothing_to_check() -> None:
    """Do nothing: the request can't be too late."""
