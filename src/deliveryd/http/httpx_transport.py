"""httpx's transport over connections that resolve names without blocking others."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import anyio
import httpcore
import httpx

from deliveryd.http.client import target_of
from deliveryd.http.proxy import Login, Proxy
from deliveryd.http.tls import TlsFiles
from deliveryd.network.connection import first_connected
from deliveryd.network.resolver import Address, Resolver

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
                return await first_connected(await self._resolver.look_up(host), connect, _close)
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)


async def _close(stream: httpcore.AsyncNetworkStream) -> None:
    await stream.aclose()
