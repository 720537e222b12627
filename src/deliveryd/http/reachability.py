"""Checks that an address can be reached: connects, with TLS if required, and disconnects."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

import anyio

from deliveryd.errors import NotSent, OutOfFiles
from deliveryd.http.tls import TlsFiles
from deliveryd.network.connection import open_stream, over_tls, verified_by
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
    ca_key = tls.ca_key if tls is not None else ""
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            context = None if tls is None else verified_by(tls.context, host, port, ca_key)
            stream = await open_stream(Resolver(), host, port, ca_key)
            if context is not None:
                stream = await over_tls(stream, context, host, port, ca_key)
            await stream.aclose()
    except TimeoutError:
        return f"no connection to {host}:{port} within {CONNECT_TIMEOUT:g} s"
    except OutOfFiles:
        raise
    except NotSent as error:
        return str(error)
    return None
