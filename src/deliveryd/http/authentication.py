"""What proves to a server who sends a request: headers that are added on the wire, below every client."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio

from deliveryd.errors import BrokenOff, NoCredentials, NotSent, OutOfFiles, ProxyRefused
from deliveryd.http.wire import BeforeSend, Headers, Target, Wire, WireResponse
from deliveryd.runtime.secret_file import RenewedValue

_KEYS_REJECTED = "ExpiredToken|InvalidClientTokenId|InvalidSignature|SignatureDoesNotMatch|UnrecognizedClient"
_IN_HEADER = re.compile(f"(?:{_KEYS_REJECTED})")
_IN_BODY = re.compile(rf'(?:<Code>|"__type"\s*:\s*"(?:[^"#]*#)?)(?:{_KEYS_REJECTED})'.encode())
_SEARCHED_BODY = 4096


def rejects_credentials(answer: WireResponse | BrokenOff) -> bool:
    """Whether an answer rejects what authenticated the request: a 401, or AWS's 400 or 403.

    AWS names the error in a header, in JSON or in XML.
    """
    if answer.status not in (400, 403):
        return answer.status == 401
    named = _IN_HEADER.match(answer.headers.get("x-amzn-errortype", ""))
    return named is not None or _IN_BODY.search(answer.body[:_SEARCHED_BODY]) is not None


class OutgoingRequest(NamedTuple):
    """A request, as it is written but for the headers that authenticate it."""

    method: str
    target: Target
    headers: Headers
    body: bytes


class Authentication(Protocol):
    """Authenticates requests."""

    async def headers(self, request: OutgoingRequest, /) -> Headers:
        """Return the headers to add. Raises NotSent if there are none at present."""

    async def renew(self, shown: Headers, /) -> bool:
        """Give up credentials that were rejected. Return whether there may be others."""

    def secrets(self) -> Iterable[str]:
        """Return what must be in no text that a server answers, as far as requests show it."""

    async def aclose(self) -> None:
        """Close what the credentials come from."""


class FileCredentials:
    """Headers made from files, which are read again when they change or are rejected.

    Raises ValueError if they can't be used.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], Headers]) -> None:
        self._made = RenewedValue(paths, make)

    async def headers(self, _request: OutgoingRequest) -> Headers:
        """Return the same headers for every request."""
        return self._made.current()

    async def renew(self, shown: Headers) -> bool:
        """Read the files again, unless another request has done so already."""
        if self._made.current() == shown:
            self._made.renew()
        return self._made.current() != shown

    def secrets(self) -> Iterable[str]:
        """Return the values of the headers, and what they are made of."""
        return secrets_in(self._made.current())

    async def aclose(self) -> None:
        """Nothing is open."""


def secrets_in(headers: Headers) -> Iterator[str]:
    """Yield the values of headers without their scheme, and the password of Basic authentication."""
    for _name, raw in headers:
        scheme, _, value = raw.decode("latin-1").rpartition(" ")
        yield value
        if scheme == "Basic":
            yield b64decode(value).decode().partition(":")[2]


class AuthenticatedWire:
    """Sends authenticated requests over a wire, once more with other credentials if those are rejected."""

    def __init__(self, wire: Wire, authentication: Authentication) -> None:
        self._wire = wire
        self._authentication = authentication

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
        """Send a request as a wire does; the deadline is that of the credentials and a repeat, too."""
        ends = anyio.current_time() + deadline
        request = OutgoingRequest(method, target, headers, body)
        shown = await self._credentials(request, ends)

        async def attempt() -> WireResponse:
            left = ends - anyio.current_time()
            return await self._wire.exchange(
                method, target, [*shown, *headers], body, deadline=left, max_body=max_body, check=check
            )

        try:
            response = await attempt()
            if not rejects_credentials(response) or not await self._authentication.renew(shown):
                return response
        except BrokenOff as error:
            if not rejects_credentials(error) or not await self._authentication.renew(shown):
                raise
        shown = await self._credentials(request, ends)
        return await attempt()

    async def _credentials(self, request: OutgoingRequest, ends: float) -> Headers:
        try:
            with anyio.move_on_after(ends - anyio.current_time()):
                return await self._authentication.headers(request)
        except NotSent as error:
            if isinstance(error, OutOfFiles) or (isinstance(error, ProxyRefused) and not error.may_pass):
                raise
            raise NoCredentials(str(error)) from None
        raise NoCredentials("no credentials came within the time of the request")

    async def aclose(self) -> None:
        """Close all connections."""
        try:
            await self._wire.aclose()
        finally:
            await self._authentication.aclose()
