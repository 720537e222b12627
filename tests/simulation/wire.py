"""Carries the worker's requests to the stand-ins, and lets happen to each what the plan has for it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import anyio

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.wire import Answer, Check, Headers, Target
from simulation.plan import Step, Trouble
from simulation.world import World

TIMEOUT = 2.0
STATUSES = {
    Trouble.BUSY: 503,
    Trouble.BROKEN: 500,
    Trouble.TOO_MANY: 429,
    Trouble.BAD_REQUEST: 400,
    Trouble.UNAUTHORIZED: 401,
    Trouble.NOT_FOUND: 404,
    Trouble.CONFLICT: 409,
    Trouble.UNPROCESSABLE: 422,
}
GARBAGE = (
    b"<html>welcome</html>",
    b"",
    b'[{"id": 1, "settingsId": 1, "custo',
    b'{"content": {"en": {"sms": {"te',
    b'"\xff\xfe"',
    b"NaN",
    b"[" * 2000,
)


class Request(NamedTuple):
    """A request on its way."""

    number: int
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

    def arrives(self, request: Request) -> None:
        """The worker sends this request; it may not come through."""

    def work(self, request: Request) -> Answer:
        """Do what is asked."""

    def spoiled(self, request: Request, status: int) -> None:
        """The request came to this status instead of its work, or its answer was unreadable (200)."""

    def lost(self, request: Request) -> None:
        """The worker won't ever hear the answer, and lives on."""

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
        check: Check | None = None,
    ) -> Answer:
        """Send a request. Raises NotSent and OutcomeUnknown."""
        if check is not None:
            check()
        endpoint = self._stand_in.endpoint(target)
        trouble = self._world.next_trouble(endpoint)
        number, path = self._world.ledger.number(), target.path.decode()
        request = Request(number, endpoint, target.host, path, headers, body, trouble)
        self._stand_in.arrives(request)
        try:
            answer = await self._suffer(request, deadline)
        except OutcomeUnknown:
            self._stand_in.lost(request)
            raise
        if trouble is not Trouble.GATEWAY_AFTER:  # which says nothing of what was done behind it
            self._world.ledger.answered.add(request.number)
        return answer

    async def _suffer(self, request: Request, deadline: float) -> Answer:
        trouble = request.trouble
        if trouble is Trouble.NO_CONNECTION:
            raise NotSent("no connection")
        steps = self._stand_in.steps(request.endpoint)
        if steps is not None:
            await self._world.step(steps[0])
        if trouble is Trouble.RESET_BEFORE:
            raise OutcomeUnknown("the connection broke")
        if trouble is Trouble.SILENCE_BEFORE:
            await anyio.sleep(deadline)
            raise OutcomeUnknown("no whole answer in time")
        if trouble in STATUSES:
            status = STATUSES[trouble]
            self._stand_in.spoiled(request, status)
            return Answer(status, {"retry-after": "2"} if status == 429 else {}, b"")
        await anyio.sleep(1.0 if trouble is Trouble.LATE else self._usual_seconds(request))
        answer = self._stand_in.work(request)
        if steps is not None:
            await self._world.step(steps[1])
        return await self._answered(request, answer, deadline)

    def _usual_seconds(self, request: Request) -> float:
        return self._world.plan.provider_seconds if request.endpoint == "provider" else 0.01

    async def _answered(self, request: Request, answer: Answer, deadline: float) -> Answer:
        """The way back."""
        match request.trouble:
            case Trouble.RESET_AFTER:
                raise OutcomeUnknown("the connection broke")
            case Trouble.SILENCE_AFTER:
                await anyio.sleep(deadline)
                raise OutcomeUnknown("no whole answer in time")
            case Trouble.GATEWAY_AFTER:
                self._stand_in.lost(request)
                return Answer(502, {}, b"")
            case Trouble.GARBAGE_AFTER:
                self._stand_in.lost(request)
                self._stand_in.spoiled(request, answer.status)
                return Answer(answer.status, {}, GARBAGE[request.number % len(GARBAGE)])
            case Trouble.SLOW:
                await anyio.sleep(1.0)
        return answer

    async def aclose(self) -> None:
        """Nothing is held open."""
