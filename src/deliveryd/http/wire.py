"""The layer below the client: one exchange of a request and a response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

Header = tuple[bytes, bytes]
Headers = Sequence[Header]
IDENTITY = "identity"
"""The `Content-Encoding` of an unencoded body."""

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
