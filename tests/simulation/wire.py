"""Carries the worker's requests to the stand-ins, and lets happen to each what the plan has for it."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import anyio
from anyio.lowlevel import checkpoint

from deliveryd.errors import BrokenOff, NotSent, OutcomeUnknown
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse
from deliveryd.network.deadline import within
from simulation.plan import Step, Trouble
from simulation.world import World

TIMEOUT = 2.0
TURNS = 5
"""Turns of the event loop that it takes to read an answer."""

IN_ONE_INSTANT = 0.001
"""Seconds between an answer that a hang held back and the time-out that it meets: either may be first."""

SLOW_CONNECTION = 1.0
STATUSES = {
    Trouble.BUSY: 503,
    Trouble.BROKEN: 500,
    Trouble.TOO_MANY: 429,
    Trouble.BAD_REQUEST: 400,
    Trouble.CUT_REFUSAL: 400,
    Trouble.UNAUTHORIZED: 401,
    Trouble.NOT_FOUND: 404,
    Trouble.CONFLICT: 409,
    Trouble.UNPROCESSABLE: 422,
    Trouble.OPTED_OUT: 410,
}
DENIALS = {
    Trouble.GATEWAY_AFTER: 502,
    Trouble.BROKEN_AFTER: 500,
    Trouble.BUSY_AFTER: 503,
    Trouble.OVERDUE_AFTER: 408,
}
"""What is said in place of an answer, after the work."""

BROKEN_OFF = frozenset({Trouble.CUT_AFTER, Trouble.DRIP_AFTER, Trouble.OVERSIZED_AFTER})
"""The answer's head comes, and the first part of its body."""

PAGE = b"<html>welcome</html>"
IN_ITS_PLACE = {
    Trouble.PAGE: (200, PAGE),
    Trouble.PAGE_NOT_FOUND: (404, PAGE),
    Trouble.NOTHING: (200, b""),
}
"""What something else answers, without the work."""

GARBAGE = (
    PAGE,
    b"",
    b'[{"id": 1, "settingsId": 1, "custo',
    b'{"content": {"en": {"sms": {"te',
    b'"\xff\xfe',
    b"NaN!",
    b"[" * 2000,
)
NOT_OF_THE_SERVICE = frozenset({PAGE, b"", b"NaN!"})
"""What doesn't even begin as JSON."""


class Request(NamedTuple):
    """A request on its way, which a worker sent in one of its lives."""

    number: int
    life: int
    endpoint: str
    host: str
    path: str
    headers: Headers
    body: bytes
    trouble: Trouble | None


class StandIn(Protocol):
    """The other side of a wire."""

    def endpoint(self, target: Target) -> str:
        """Whose troubles a request has."""

    def provider(self, target: Target) -> str | None:
        """The provider that is asked, if it is one."""

    def rejection(self, target: Target, headers: Headers, body: bytes) -> Trouble | None:
        """What a plan answers to requests with these headers and this content."""

    def hang(self, request: Request) -> str | None:
        """What of it a plan can have hang, by its name there."""

    def arrives(self, request: Request) -> None:
        """The worker sends this request; it may not come through."""

    def work(self, request: Request) -> WireResponse:
        """Do what is asked."""

    def spoiled(self, request: Request, status: int) -> None:
        """The request came to this status instead of its work, or its answer was unreadable (200)."""

    def lost(self, request: Request, received: bytes) -> None:
        """The worker hears no more of the answer than its first part, and lives on."""

    def steps(self, endpoint: str) -> tuple[Step, Step] | None:
        """Where the worker's life can end: before the work, and after it."""


class TroubledWire:
    """A wire to one stand-in."""

    def __init__(self, world: World, stand_in: StandIn) -> None:
        self._world = world
        self._stand_in = stand_in

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
        """Send a request. Raises NotSent and OutcomeUnknown."""
        await self._world.awake()
        endpoint = self._stand_in.endpoint(target)
        trouble = self._stand_in.rejection(target, headers, body)
        if trouble is None:
            trouble = self._world.next_trouble(endpoint, self._stand_in.provider(target))
        number, path = self._world.ledger.number(), target.path.decode()
        request = Request(number, self._world.life, endpoint, target.host, path, headers, body, trouble)
        way = _Way(self._world, self._stand_in, request, anyio.current_time() + deadline, check)
        try:
            if self._world.plan.suspensions:
                return await way.there_and_back_within(deadline)
            return await way.there_and_back()
        except anyio.get_cancelled_exc_class():
            self._world.ledger.cut_short.add(number)
            raise
        finally:
            self._world.ledger.ended[number] = self._world.ledger.number()

    async def aclose(self) -> None:
        """Nothing is held open."""


class _Way:
    """One request and its answer. `gives_up`: the second of the run up to which the worker waits."""

    def __init__(
        self, world: World, stand_in: StandIn, request: Request, gives_up: float, check: BeforeSend | None
    ) -> None:
        self._world = world
        self._stand_in = stand_in
        self._request = request
        self._gives_up = self._ends = gives_up
        self._check = check
        self._has_left = False
        self._received: WireResponse | None = None

    async def there_and_back_within(self, deadline: float) -> WireResponse:
        """The same by the deadlines of the worker's own wires, which read what lies there when it wakes."""
        self._gives_up = math.inf
        try:
            return await within(deadline, self.there_and_back)
        except TimeoutError:
            if not self._has_left:
                self._stand_in.arrives(self._request._replace(trouble=Trouble.NO_CONNECTION))
                raise NotSent("no connection in time") from None
            if self._received is not None:
                raise self._broken_off(self._received) from None
            self._stand_in.lost(self._request, b"")
            raise OutcomeUnknown("no whole answer in time") from None

    async def there_and_back(self) -> WireResponse:
        """Send the request; its answer. Raises NotSent and OutcomeUnknown."""
        await self._connect()
        await self._world.awake()
        if self._check is not None:
            self._check()
        self._has_left = True
        self._stand_in.arrives(self._request)
        try:
            answer = await self._suffer()
        except BrokenOff:
            raise
        except OutcomeUnknown:
            self._stand_in.lost(self._request, b"")
            raise
        await self._world.awake()
        says_nothing = self._request.trouble in DENIALS or (
            self._request.endpoint == "events" and answer.body == PAGE
        )
        heard = (
            set() if says_nothing else {self._request.number}
        )  # it says nothing of what was done behind it
        if abs(anyio.current_time() - self._ends) >= IN_ONE_INSTANT:
            self._world.ledger.answered |= heard
        for _ in range(TURNS if self._world.plan.suspensions else 0):
            await checkpoint()
        self._world.ledger.answered |= heard
        return answer

    async def _connect(self) -> None:
        """Look up the host, and connect to it. Raises NotSent."""
        request, gives_up = self._request, self._gives_up
        silent = self._world.hangs_for(f"host {request.host}")
        if silent > 0.0:
            await anyio.sleep_until(min(anyio.current_time() + silent, gives_up))
        if request.trouble is Trouble.SLOW_CONNECTION:
            await anyio.sleep_until(min(anyio.current_time() + SLOW_CONNECTION, gives_up))
        if request.trouble is Trouble.NO_CONNECTION or anyio.current_time() >= gives_up:
            self._stand_in.arrives(request._replace(trouble=Trouble.NO_CONNECTION))
            raise NotSent("no connection")

    async def _suffer(self) -> WireResponse:
        request, trouble = self._request, self._request.trouble
        steps = self._stand_in.steps(request.endpoint)
        if steps is not None:
            await self._world.step(steps[0])
        if trouble is Trouble.RESET_BEFORE:
            raise OutcomeUnknown("the connection broke")
        if trouble is Trouble.SILENCE_BEFORE:
            await self._silence()
        if trouble in IN_ITS_PLACE:
            status, body = IN_ITS_PLACE[trouble]
            return WireResponse(status, {}, body)
        if trouble in STATUSES:
            return self._refused(STATUSES[trouble])
        if (what := self._stand_in.hang(request)) and (silent := self._world.hangs_for(what)) > 0.0:
            if anyio.current_time() + silent >= self._gives_up:
                await self._silence()
            await anyio.sleep(silent)
        await anyio.sleep(1.0 if trouble is Trouble.LATE else self._usual_seconds())
        answer = self._stand_in.work(request)
        if steps is not None:
            await self._world.step(steps[1])
        return await self._answered(answer)

    def _usual_seconds(self) -> float:
        return self._world.plan.provider_seconds if self._request.endpoint == "provider" else 0.01

    def _refused(self, status: int) -> WireResponse:
        request = self._request
        self._stand_in.spoiled(request, status)
        if request.trouble is Trouble.CUT_REFUSAL:
            self._world.ledger.answered.add(request.number)
            raise BrokenOff("the connection broke within the answer", status, {}, b"no")
        return WireResponse(status, {"retry-after": "2"} if status == 429 else {}, b"")

    async def _answered(self, answer: WireResponse) -> WireResponse:
        """The way back."""
        request, trouble = self._request, self._request.trouble
        if trouble in BROKEN_OFF:
            received = answer.body[: request.number * 37 % (len(answer.body) + 1)]
            self._received = answer._replace(body=received)
            self._stand_in.lost(request, received)
            if trouble is Trouble.DRIP_AFTER:
                await anyio.sleep_until(self._gives_up)
            raise self._broken_off(self._received)
        if trouble in DENIALS:
            self._stand_in.lost(request, b"")
            return WireResponse(DENIALS[trouble], {}, b"")
        match trouble:
            case Trouble.RESET_AFTER:
                raise OutcomeUnknown("the connection broke")
            case Trouble.SILENCE_AFTER:
                await self._silence()
            case Trouble.GARBAGE_AFTER:
                self._stand_in.lost(request, b"")
                garbage = GARBAGE[request.number % len(GARBAGE)]
                if garbage not in NOT_OF_THE_SERVICE:
                    self._stand_in.spoiled(request, answer.status)
                return WireResponse(answer.status, {}, garbage)
            case Trouble.SLOW:
                await anyio.sleep(1.0)
        return answer

    def _broken_off(self, received: WireResponse) -> BrokenOff:
        why = str(self._request.trouble)
        return BrokenOff(why, received.status, received.headers, received.body)

    async def _silence(self) -> None:
        await anyio.sleep_until(self._gives_up)
        raise OutcomeUnknown("no whole answer in time")
