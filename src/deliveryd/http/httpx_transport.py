"""httpx's transport over connections that resolve names without blocking others."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import anyio
import httpcore
import httpx

from deliveryd.http.lenient_answer import LARGEST_HEAD, LenientAnswer, end_of_head, is_strict
from deliveryd.http.proxy import Login, Proxy
from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.network.address import Address
from deliveryd.network.connection import first_connected
from deliveryd.network.resolver import Resolver

POOL_IDLE_SECONDS = 4.0
MOST_IDLE = 100


class ResolvingTransport(httpx.AsyncHTTPTransport):
    """httpx's transport with our own pool, since httpx has no option for how to connect."""

    def __init__(self, context: ssl.SSLContext, proxy: Proxy | None, login: Login | None) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = _pool(context, proxy, login)


def _pool(context: ssl.SSLContext, proxy: Proxy | None, login: Login | None) -> httpcore.AsyncConnectionPool:
    backend = _Backend(Resolver())
    if proxy is None:
        return httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            max_keepalive_connections=MOST_IDLE,
            keepalive_expiry=POOL_IDLE_SECONDS,
            network_backend=backend,
        )
    at = target_of(proxy.url)
    return httpcore.AsyncHTTPProxy(
        httpcore.URL(scheme=at.scheme.encode(), host=at.host.encode("ascii"), port=at.port, target=b"/"),
        proxy_auth=(login.username.encode(), login.password.encode()) if login is not None else None,
        ssl_context=context,
        proxy_ssl_context=TlsFiles().context() if at.scheme == "https" else None,
        max_connections=None,
        max_keepalive_connections=MOST_IDLE,
        keepalive_expiry=POOL_IDLE_SECONDS,
        network_backend=backend,
    )


class _Backend(httpcore.AsyncNetworkBackend):
    """A network backend for httpcore that connects to resolved addresses."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._numeric = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers. Raises httpcore's ConnectError and ConnectTimeout."""
        options = list(socket_options or ())

        async def connect(address: Address) -> httpcore.AsyncNetworkStream:
            try:
                return await self._numeric.connect_tcp(
                    address.host, port, local_address=local_address, socket_options=options
                )
            except httpcore.ConnectError as error:
                raise OSError(str(error)) from error

        try:
            with anyio.fail_after(timeout):
                made = await first_connected(await self._resolver.look_up(host), connect, _close)
                return _LenientStream(made)
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)


class _LenientStream(httpcore.AsyncNetworkStream):
    """A connection whose answers have strict heads: h11 refuses what isn't."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._is_at_head = False
        self._lenient: LenientAnswer | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read the next bytes; the head of an answer as a whole."""
        if self._lenient is not None:
            return await self._read_leniently(self._lenient, b"", max_bytes, timeout)
        raw = await self._stream.read(max_bytes, timeout)
        while self._is_at_head and raw:
            try:
                end = end_of_head(raw)
            except ValueError:
                break
            if end is not None:
                self._is_at_head = False
                if not is_strict(raw[:end]):
                    self._lenient = LenientAnswer()
                    return await self._read_leniently(self._lenient, raw, max_bytes, timeout)
                break
            more = await self._stream.read(max_bytes, timeout)
            if not more or len(raw) > LARGEST_HEAD:
                break
            raw += more
        return raw

    async def _read_leniently(
        self, answer: LenientAnswer, raw: bytes, max_bytes: int, timeout: float | None
    ) -> bytes:
        """Read what is known next of an answer; nothing behind its end."""
        strict: list[bytes] = []
        try:
            strict.extend(answer.feed(raw))
            while not strict and not answer.is_over:
                raw = await self._stream.read(max_bytes, timeout)
                if not raw and answer.breaks_off:
                    raise httpcore.RemoteProtocolError("the answer breaks off")
                if not raw:
                    break
                strict.extend(answer.feed(raw))
        except ValueError:
            if not strict:
                raise httpcore.RemoteProtocolError("the answer isn't HTTP") from None
        return b"".join(strict)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write a part of a request, whose answer begins with a head."""
        self._is_at_head, self._lenient = True, None
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Go on encrypted."""
        return _LenientStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore asks of a connection."""
        return self._stream.get_extra_info(info)


async def _close(stream: httpcore.AsyncNetworkStream) -> None:
    await stream.aclose()
