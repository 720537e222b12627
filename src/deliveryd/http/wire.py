"""The layer below the client: one exchange of a request and a response, and what a wire is opened with."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from deliveryd.runtime.secret_file import SecretFile

Header = tuple[bytes, bytes]
Headers = Sequence[Header]
IDENTITY = "identity"
"""The `Content-Encoding` of an unencoded body."""

IDLE_SECONDS = 4.0
"""Shorter than the idle time-out of common servers, so that the client closes first."""

BeforeSend = Callable[[], None]
"""Called immediately before the first byte of a request is written; raises TooLate to prevent that."""


class Target(NamedTuple):
    """A request's destination: scheme, host and port of the connection, and the path with the query.

    `address` is the resolved address to connect to; None: resolve the host's name.
    """

    scheme: str
    host: str
    port: int
    authority: str
    path: bytes
    address: str | None = None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path.decode('ascii')}"


class WireResponse(NamedTuple):
    """A complete response. Header names are lower-case; see `add_header` for repeated ones."""

    status: int
    headers: dict[str, str]
    body: bytes


def add_header(headers: dict[str, str], name: str, value: str) -> None:
    """Add a header of a response. The last of repeated ones counts, but codings are a list (RFC 9110 5.3)."""
    if name == "content-encoding" and name in headers:
        value = f"{headers[name]}, {value}"
    headers[name] = value


class Wire(Protocol):
    """Sends requests, and distinguishes: never sent; sent, outcome unknown; answered."""

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
        """Send a request and return the whole answer, within `deadline` seconds and `max_body` bytes.

        Data that has arrived by the deadline is read first. Raises NotSent or OutcomeUnknown; BrokenOff if a
        response's head has arrived. On cancellation the connection is closed, never reused.
        """

    async def aclose(self) -> None:
        """Close all connections."""


class Proxy(NamedTuple):
    """A forward proxy: its address, the user name there, and the file of the password."""

    url: str
    username: str | None = None
    password_file: SecretFile | None = None

    @property
    def paths(self) -> Sequence[Path]:
        """Return the file of the password, if there is one."""
        return [self.password_file.path] if self.password_file is not None else []

    def login(self) -> Header | None:
        """Return the header with the login, the password read from its file now. Raises ValueError."""
        if self.username is None or self.password_file is None:
            return None
        pair = f"{self.username}:{self.password_file.read()}".encode()
        return b"proxy-authorization", b"Basic " + base64.b64encode(pair)


def encode_request(method: str, target: Target, headers: Headers, body: bytes, accept: bytes) -> bytes:
    """Return a request as it is written, with `accept` as the codings that the answer may have."""
    lines = [_head(method, target, accept), *map(b": ".join, headers)]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % len(body))
    lines.append(b"")
    lines.append(body)
    return b"\r\n".join(lines)


@lru_cache(maxsize=1024)
def _head(method: str, target: Target, accept: bytes) -> bytes:
    """Return the lines common to all requests to one target."""
    words = method.encode("ascii"), target.path, target.authority.encode("ascii"), accept
    return b"%b %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: %b" % words
