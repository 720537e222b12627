"""The one place that builds HTTP clients: no redirects, no environment, total deadlines, bounded answers."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import lru_cache

import httpx
import sniffio

from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import Answer, Target, Wire

MAX_BODY = 1 << 20


class HttpClient:
    """Sends requests over a wire, each within one total deadline (seconds) and one bound of its answer."""

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
    ) -> Answer:
        """Send one request and return its whole answer, whatever the status; `timeout` overrides the client's.

        Raises NotSent or OutcomeUnknown.
        """
        raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
        return await self._wire.exchange(
            method, target_of(url), raw, body, deadline=timeout or self._timeout, max_body=self._max_body
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.aclose()


@lru_cache(maxsize=4096)
def target_of(url: str) -> Target:
    """Take an absolute http or https address apart. Raises ValueError when it is anything else."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("an address starts with http:// or https:// and a host")
    if parsed.userinfo:
        raise ValueError("an address carries no user name or password")
    port = parsed.port or (443 if parsed.scheme == "https" else 80)
    return Target(parsed.scheme, parsed.host, port, parsed.netloc.decode("ascii"), parsed.raw_path)


def build_client(
    *,
    timeout: float,
    max_body: int = MAX_BODY,
    tls: TlsFiles | None = None,
    proxy: str | None = None,
) -> HttpClient:
    """A client for the running event loop. Must be called within it; raises OSError for unusable TLS files.

    On asyncio without a proxy requests go over our own wire, else over httpx's transport.
    """
    return HttpClient(_build_wire(tls or TlsFiles(), proxy), timeout=timeout, max_body=max_body)


def _build_wire(tls: TlsFiles, proxy: str | None) -> Wire:
    if proxy is None and sniffio.current_async_library() == "asyncio":
        from deliveryd.http.asyncio_wire import AsyncioWire

        return AsyncioWire(tls.context)
    from deliveryd.http.httpx_wire import HttpxWire

    return HttpxWire(_httpx_transport(tls.context(), proxy))


def _httpx_transport(context: ssl.SSLContext, proxy: str | None) -> httpx.AsyncHTTPTransport:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=4.0)
    return httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits, proxy=proxy)
