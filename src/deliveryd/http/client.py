"""Builds all HTTP clients: no redirects, no environment, total deadlines, bounded responses."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import sniffio

from deliveryd.http.asyncio_wire import AsyncioWire
from deliveryd.http.proxy import Login, Proxy
from deliveryd.http.renewed_wire import RenewingWire
from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import IDENTITY, BeforeSend, Header, Headers, Target, Wire, WireResponse
from deliveryd.runtime.secret_file import RenewedValue

MAX_BODY = 1 << 20

_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


class HttpClient:
    """Sends requests over a wire, each with a total deadline in seconds and a limit on its response."""

    def __init__(self, wire: Wire, *, timeout: float, max_body: int = MAX_BODY) -> None:
        self._wire = wire
        self._timeout = timeout
        self._max_body = max_body

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
        return await self._wire.exchange(
            method, target_of(url), raw, body, deadline=deadline, max_body=self._max_body, check=check
        )

    def exchange(
        self, method: str, target: Target, headers: Headers, body: bytes, check: BeforeSend | None = None
    ) -> Awaitable[WireResponse]:
        """Send a request with a parsed address and checked headers.

        Awaiting raises NotSent, OutcomeUnknown, or TooLate if `check` does, before anything is written.
        """
        return self._wire.exchange(
            method, target, headers, body, deadline=self._timeout, max_body=self._max_body, check=check
        )

    def bounded(self, max_body: int) -> HttpClient:
        """Return a client over the same connections, with another limit on responses."""
        return HttpClient(self._wire, timeout=self._timeout, max_body=max_body)

    def noted(self, note: Callable[[WireResponse], None]) -> HttpClient:
        """Return a client over the same connections that calls `note` with each response."""
        return HttpClient(_NotedWire(self._wire, note), timeout=self._timeout, max_body=self._max_body)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.aclose()


class _NotedWire:
    """A wire whose responses are noted."""

    def __init__(self, wire: Wire, note: Callable[[WireResponse], None]) -> None:
        self._wire = wire
        self._note = note

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
        """Send a request over the wire, and note its response."""
        response = await self._wire.exchange(
            method, target, headers, body, deadline=deadline, max_body=max_body, check=check
        )
        self._note(response)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.aclose()


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
) -> HttpClient:
    """Build a client for the running event loop. Raises OSError for unusable TLS files.

    On asyncio without a proxy it uses our own wire, otherwise httpx's transport.
    """
    wire = _build_wire(tls or TlsFiles(), proxy, accept_encoding)
    return HttpClient(wire, timeout=timeout, max_body=max_body)


def _build_wire(tls: TlsFiles, proxy: Proxy | None, accept_encoding: str) -> Wire:
    if proxy is None and sniffio.current_async_library() == "asyncio":
        return _build_our_wire(tls, accept_encoding)
    from deliveryd.http.httpx_wire import HttpxWire, open_transport  # noqa: PLC0415  # loads httpx

    def read() -> _Shown:
        return _Shown(tls.context(), proxy.login() if proxy is not None else None)

    def open_wire(shown: _Shown) -> Wire:
        return HttpxWire(open_transport(shown.context, proxy, shown.login), accept_encoding, tls.ca_key)

    paths = [*tls.paths, *(proxy.paths if proxy is not None else ())]
    return RenewingWire(RenewedValue(paths, read), open_wire) if paths else open_wire(read())


def _build_our_wire(tls: TlsFiles, accept_encoding: str) -> Wire:
    if tls.is_empty:  # nothing to check; reading the system's authorities is slow
        return AsyncioWire(tls.context, accept_encoding, tls.ca_key)
    return RenewingWire(
        RenewedValue(tls.paths, tls.context),
        lambda context: AsyncioWire(lambda: context, accept_encoding, tls.ca_key),
    )


class _Shown(NamedTuple):
    """Values read from files: certificates, and the login at the proxy."""

    context: ssl.SSLContext
    login: Login | None
