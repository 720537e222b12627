"""One request to a host, with a few retries inside one call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

import anyio

from deliveryd import __version__
from deliveryd.errors import (
    AnswerTooLarge,
    BrokenOff,
    NotSent,
    ServiceRefused,
    ServiceUnavailable,
    TooLarge,
    WireError,
)
from deliveryd.http.client import HttpClient, raw_header
from deliveryd.http.responses import retry_after
from deliveryd.http.target import target_of
from deliveryd.http.wire import Target, WireResponse
from deliveryd.runtime.breaker import backoff
from deliveryd.runtime.waits import LONGEST_ANSWER_WAIT

TRIES = 3
FIRST_RETRY_PAUSE = 0.2
LONGEST_BACKOFF = 2.0
"""Seconds between the tries of one call, where the service asks for no pause."""

LONGEST_RETRY_PAUSE = 5.0
"""Most seconds between the tries of one call; a longer Retry-After raises ServiceUnavailable."""

WORTH_RETRYING = frozenset({408, 425, 429})
PROXY_REFUSED = 407
REDIRECTS = frozenset({301, 302, 303, 307, 308})

TextHeaders = Sequence[tuple[str, str]]
Sleep = Callable[[float], Awaitable[None]]
Ready = Callable[[], Awaitable[None]]
"""Awaited before each request of a call, the repeated ones too."""

_ALWAYS = (("accept", "application/json"), ("user-agent", f"deliveryd/{__version__}"))
_LOOKED_UP: tuple[str | None, ...] = (None,)  # resolved when connecting


class _Call(NamedTuple):
    """What `Caller.call` is given."""

    method: str
    target: Target
    body: bytes = b""
    headers: TextHeaders = ()
    also: Collection[int] = ()
    addresses: Sequence[str | None] = _LOOKED_UP
    ready: Ready | None = None
    max_body: int | None = None


def _is_brief(error: BaseException) -> bool:
    """Whether the error is transient, and the requested pause is short enough."""
    if isinstance(error, TooLarge):
        return False
    return isinstance(error, WireError) or (
        isinstance(error, ServiceUnavailable) and (error.after or 0.0) <= LONGEST_RETRY_PAUSE
    )


def _never_left(error: BaseException) -> bool:
    return isinstance(error, NotSent)


def below(base: Target, path: str) -> Target:
    """Return the address of an ASCII path below that of the service."""
    return base._replace(path=base.path.rstrip(b"/") + path.encode("ascii"))


class Caller:
    """Calls a host; errors name it as `whom`."""

    def __init__(self, http: HttpClient, whom: str, sleep: Sleep = anyio.sleep) -> None:
        self._http = http
        self._whom = whom
        self._sleep = sleep

    async def call(
        self,
        method: str,
        target: Target,
        *,
        body: bytes = b"",
        headers: TextHeaders = (),
        also: Collection[int] = (),
        addresses: Sequence[str | None] = _LOOKED_UP,
        ready: Ready | None = None,
        max_body: int | None = None,
    ) -> WireResponse:
        """Send a request and return its answer, with a 2xx status or one of `also`.

        `addresses` are tried in turn until one can be connected to. `max_body` overrides the client's. Raises
        ServiceUnavailable and ServiceRefused, and what `ready` raises.
        """
        call = _Call(method, target, body, headers, also, addresses, ready, max_body)
        try:
            return await self._some_tries(call, _is_brief)
        except TooLarge as error:
            raise AnswerTooLarge(str(error), error.status, error.body) from None
        except WireError as error:
            raise ServiceUnavailable(str(error), was_sent=not isinstance(error, NotSent)) from None

    async def ask(self, target: Target) -> WireResponse:
        """Send a GET once and return its answer, whatever its status. Raises WireError."""
        return await self._send(_Call("GET", target))

    async def credentials_problem(self, target: Target) -> str | None:
        """Return why requests can't be authenticated at present; None: they can, or needn't be."""
        return await self._http.credentials_problem(target)

    async def get_once(
        self, target: Target, ready: Ready | None = None, *, max_body: int | None = None
    ) -> WireResponse:
        """Send a GET that isn't idempotent, so that it is repeated only if it was never sent, or after a 401.

        Also raises OutcomeUnknown, if it was sent and no complete answer came back.
        """
        try:
            return await self._some_tries(_Call("GET", target, ready=ready, max_body=max_body), _never_left)
        except NotSent as error:
            raise ServiceUnavailable(str(error)) from None

    async def _some_tries(
        self, call: _Call, is_worth_another: Callable[[BaseException], bool]
    ) -> WireResponse:
        for number in range(1, TRIES):
            try:
                return await self._accepted(call)
            except (ServiceUnavailable, WireError) as error:
                if not is_worth_another(error):
                    raise
                asked = error.after if isinstance(error, ServiceUnavailable) else None
            pause = backoff(FIRST_RETRY_PAUSE, LONGEST_BACKOFF, number) if asked is None else asked
            await self._sleep(pause)
        return await self._accepted(call)

    async def _accepted(self, call: _Call) -> WireResponse:
        if call.ready is not None:
            await call.ready()
        answer = await self._send(call)
        if answer.status in WORTH_RETRYING or answer.status >= 500:
            asked = retry_after(answer.headers.get("retry-after"), LONGEST_ANSWER_WAIT)
            raise ServiceUnavailable(f"{self._whom} answered {answer.status}", asked, answer.status)
        if not (200 <= answer.status < 300 or answer.status in call.also):
            raise ServiceRefused(self._refusal(answer), answer.status)
        return answer

    async def _send(self, call: _Call) -> WireResponse:
        headers = [*_ALWAYS, *call.headers]
        if call.body:
            headers.append(("content-type", "application/json"))
        raw = [raw_header(name, value) for name, value in headers]
        problem = NotSent("there is no address to connect to")
        for address in call.addresses:
            try:
                return await self._http.exchange(
                    call.method, call.target._replace(address=address), raw, call.body, max_body=call.max_body
                )
            except NotSent as error:
                problem = error
            except BrokenOff as error:
                if 200 <= error.status < 300:
                    raise
                return WireResponse(error.status, dict(error.headers), error.body)
        raise problem

    def _refusal(self, answer: WireResponse) -> str:
        if answer.status in REDIRECTS:
            to = _origin_of(answer.headers.get("location", ""))
            return f"{self._whom} answered {answer.status}, a redirect{to}: redirects aren't followed"
        if answer.status == PROXY_REFUSED:
            return f"the proxy before {self._whom} answered {answer.status}"
        return f"{self._whom} answered {answer.status}"

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()


def _origin_of(location: str) -> str:
    """Return a redirect's target without parts that may be secret; empty if it isn't a full address."""
    try:
        target = target_of(location)
    except ValueError:
        return ""
    return f" to {target.scheme}://{target.authority}"
