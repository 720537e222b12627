"""What lies below the client: one exchange of a request for an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

Header = tuple[bytes, bytes]
Headers = Sequence[Header]
IDENTITY = "identity"
"""The `Content-Encoding` of what is as it is."""

BeforeSend = Callable[[], None]
"""Called immediately before the first byte of a request is written; raises TooLate to have none written."""


class Target(NamedTuple):
    """Where a request goes: scheme, host and port of the connection; the request's own path with query.

    `address` is the address to connect to, where the host's name was looked up before; None: look it up.
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
    """A whole answer. Header names are lower-case; of a repeated header the last one counts."""

    status: int
    headers: dict[str, str]
    body: bytes


class Wire(Protocol):
    """Carries requests. It tells apart: never sent; sent, outcome unknown; answered."""

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

        What has arrived at the deadline is read first. Raises NotSent, or OutcomeUnknown: BrokenOff where the
        head of an answer has come. When it is cancelled, its connection is closed, never reused.
        """

    async def aclose(self) -> None:
        """Close all connections."""
