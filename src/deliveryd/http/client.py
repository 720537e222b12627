"""Builds all HTTP clients: no redirects, no environment, total deadlines, bounded responses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache

import sniffio

from deliveryd.errors import NotSent
from deliveryd.http.asyncio_wire import AsyncioWire
from deliveryd.http.authentication import AuthenticatedWire, Authentication, OutgoingRequest
from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import IDENTITY, BeforeSend, Header, Headers, Proxy, Target, Wire, WireResponse
from deliveryd.runtime.secret_file import RenewedValue

MAX_BODY = 1 << 20

_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


class HttpClient:
    """Sends requests over a wire, each with a total deadline in seconds and a limit on its response.

    `authentication` adds headers to each.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        timeout: float,
        max_body: int = MAX_BODY,
        note: Callable[[WireResponse], None] | None = None,
        authentication: Authentication | None = None,
    ) -> None:
        self._wire = wire if authentication is None else AuthenticatedWire(wire, authentication)
        self._authentication = authentication
        self._timeout = timeout
        self._max_body = max_body
        self._note = note

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        timeout: float | None = None,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        """Send one request and return its complete response, whatever the status.

        `timeout` overrides the client's. Raises NotSent, TooLate if `check` does, or OutcomeUnknown, and
        ValueError for an address or a header that can't be sent.
        """
        deadline = self._timeout if timeout is None else timeout
        raw = [raw_header(name, value) for name, value in headers]
        response = await self._wire.exchange(
            method, target_of(url), raw, body, deadline=deadline, max_body=self._max_body, check=check
        )
        if self._note is not None:
            self._note(response)
        return response

    def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        check: BeforeSend | None = None,
        *,
        max_body: int | None = None,
    ) -> Awaitable[WireResponse]:
        """Send a request with a parsed address and checked headers.

        `max_body` overrides the client's. Awaiting raises NotSent, OutcomeUnknown, or TooLate if `check` does
        so, before anything is written.
        """
        largest = self._max_body if max_body is None else max_body
        answer = self._wire.exchange(
            method, target, headers, body, deadline=self._timeout, max_body=largest, check=check
        )
        return answer if self._note is None else _noted(answer, self._note)

    async def credentials_problem(self, target: Target) -> str | None:
        """Return why requests can't be authenticated at present; None: they can, or needn't be."""
        if self._authentication is not None:
            try:
                await self._authentication.headers(OutgoingRequest("GET", target, (), b""))
            except NotSent as error:
                return str(error)
        return None

    def noted(self, note: Callable[[WireResponse], None]) -> HttpClient:
        """Return a client over the same connections that calls `note` with each response."""
        client = HttpClient(self._wire, timeout=self._timeout, max_body=self._max_body, note=note)
        client._authentication = self._authentication  # its wire has it already
        return client

    def secrets(self) -> Iterable[str]:
        """Return what authenticates requests and must be in no text that a server answers."""
        return () if self._authentication is None else self._authentication.secrets()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.aclose()


async def _noted(answer: Awaitable[WireResponse], note: Callable[[WireResponse], None]) -> WireResponse:
    response = await answer
    note(response)
    return response


def raw_header(name: str, value: str) -> Header:
    """Encode a header. Raises ValueError, without the value, if it can't be sent as is."""
    try:
        raw = name.encode("ascii"), value.strip(" \t").encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"the header {name!a} can't be encoded") from None
    if not _NAME.fullmatch(raw[0]) or not _VALUE.fullmatch(raw[1]):
        raise ValueError(f"the header {name!a} contains characters not allowed in headers")
    return raw


def build_client(
    *,
    timeout: float,
    max_body: int = MAX_BODY,
    tls: TlsFiles | None = None,
    proxy: Proxy | None = None,
    accept_encoding: str = IDENTITY,
    authentication: Authentication | None = None,
    http2: bool = False,
) -> HttpClient:
    """Build a client for the running event loop, which adds what authenticates its requests.

    Raises OSError for unusable TLS files. On asyncio without a proxy it uses the faster wire; with `http2`,
    which needs asyncio and no proxy, one connection for many requests at a time.
    """
    tls = tls or TlsFiles()
    # Without files there is nothing to check at once; reading the system's authorities is slow.
    context = cache(tls.context) if tls.is_empty else RenewedValue(tls.paths, tls.context).current
    wire: Wire
    if http2:
        from deliveryd.http.http2_wire import Http2Wire  # noqa: PLC0415  # needs a library that few have

        wire = Http2Wire(context, tls.ca_key)
    elif proxy is None and sniffio.current_async_library() == "asyncio":
        wire = AsyncioWire(context, accept_encoding, tls.ca_key)
    else:
        from deliveryd.http.stream_wire import StreamWire  # noqa: PLC0415  # few need it

        login = RenewedValue(proxy.paths, proxy.login).current if proxy is not None else None
        wire = StreamWire(context, proxy, login, accept_encoding, tls.ca_key)
    return HttpClient(wire, timeout=timeout, max_body=max_body, authentication=authentication)
