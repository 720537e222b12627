"""Checks that an address can be reached: connects, with TLS if required, and disconnects."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream

from deliveryd.errors import OutOfFiles
from deliveryd.http.tls import TlsFiles
from deliveryd.network.address import Address
from deliveryd.network.connection import first_connected, not_connected
from deliveryd.network.resolver import Resolver

CONNECT_TIMEOUT = 5.0
"""Seconds after which an address counts as unreachable."""


class ConnectTarget(NamedTuple):
    """The host that a client connects to: the origin, or its proxy. `tls` None: without TLS."""

    host: str
    port: int
    tls: TlsFiles | None


def endpoint_of(url: str, tls: TlsFiles, proxy: str | None) -> ConnectTarget:
    """Return the host to connect to for an address, which may have placeholders in its path."""
    address = urlsplit(proxy or url)
    is_secure = address.scheme == "https"
    port = address.port or (443 if is_secure else 80)
    files = TlsFiles() if proxy is not None else tls
    return ConnectTarget(address.hostname or "", port, files if is_secure else None)


async def connect_problem(host: str, port: int, tls: TlsFiles | None) -> str | None:
    """Return why `host` can't be reached, or None. `tls` None: without TLS. Makes no request.

    Raises OutOfFiles: this process can open no connection now, whatever the host.
    """
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            await _connect(host, port, tls)
    except TimeoutError:
        return f"no connection to {host}:{port} within {CONNECT_TIMEOUT:g} s"
    except (anyio.BrokenResourceError, anyio.EndOfStream):
        return f"TLS with {host}:{port} failed: the connection was closed"
    except OSError as error:
        problem = not_connected(host, port, error, tls.ca_key if tls is not None else "")
        if isinstance(problem, OutOfFiles):
            raise problem from error
        return str(problem)
    return None


async def _connect(host: str, port: int, tls: TlsFiles | None) -> None:
    context = tls.context() if tls is not None else None

    async def connect(address: Address) -> ByteStream:
        if context is None:
            return await anyio.connect_tcp(address.host, port)
        return await anyio.connect_tcp(
            address.host, port, ssl_context=context, tls_hostname=host, tls_standard_compatible=False
        )

    stream = await first_connected(await Resolver().look_up(host), connect, anyio.aclose_forcefully)
    await stream.aclose()
