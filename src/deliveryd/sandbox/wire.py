"""The HTTP layer of the sandbox: reads a request, applies planned faults, and writes the response."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias, cast

from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deliveryd.sandbox.faults import (
    ApplyThenAnswer,
    ApplyThenDelay,
    ApplyThenHangUp,
    CutInHalf,
    Delay,
    Drip,
    Fault,
    FaultAnswer,
    Hang,
    HangUp,
    Pass,
    StandInEndpoint,
)
from deliveryd.sandbox.state import SandboxState, Seen


class UnreadableError(ValueError):
    """A request can't be parsed; the text is for the client."""


class UnknownAddressError(UnreadableError):
    """A gateway has no such address; the text is for the client."""


def json_answer(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return json_response(json.dumps(value, ensure_ascii=False, separators=(",", ":")), status)


def json_response(text: str | bytes, status: int = 200) -> Response:
    """Return a JSON text as a response."""
    return Response(text, status, media_type="application/json")


def problem(status: int, error: str, **more: Any) -> Response:
    """Return an error as JSON: `error` is a sentence."""
    return json_answer({"error": error, **more}, status)


class OpenProtocol(HttpToolsProtocol):
    """uvicorn's protocol with access to its transport: ASGI can't close a client's connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport


class Line:
    """One client's connection during one request."""

    def __init__(self, scope: Scope, receive: Receive, closing: asyncio.Event) -> None:
        self._transport: asyncio.Transport = scope["state"]["transport"]
        self._receive = receive
        self._closing = closing

    async def body(self) -> bytes | None:
        """Return the request's body, or None if the client disconnected before its end."""
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def stall(self, seconds: float) -> bool:
        """Wait; return whether `seconds` passed before the sandbox closes or the client disconnects."""
        gone = asyncio.ensure_future(self._until_gone())
        closing = asyncio.ensure_future(self._closing.wait())
        timeout = None if math.isinf(seconds) else seconds
        done, pending = await asyncio.wait(
            {gone, closing}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        for waiting in pending:
            waiting.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return not done

    async def hang_up(self, last_words: bytes = b"") -> None:
        """Close the connection, after writing `last_words` if there are any."""
        if last_words:
            self._transport.write(last_words)
        self._transport.close()
        await self._until_gone()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


@dataclass(frozen=True, slots=True)
class StandInRequest:
    """One complete request. `params` are the parts of its path; header names are in lower case."""

    method: str
    params: Mapping[str, str]
    query: QueryParams
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(StandInRequest):
    """A request with the connection on which it came."""

    line: Line


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


class Endpoint:
    """An ASGI application that answers with `handler`, unless the plan for `endpoint` says otherwise.

    Requests to one without a name aren't counted, and have no plan.
    """

    def __init__(
        self, endpoint: StandInEndpoint | None, handler: Handler, state: SandboxState, closing: asyncio.Event
    ) -> None:
        self._endpoint = endpoint
        self._handler = handler
        self._state = state
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = Line(scope, receive, self._closing)
        body = await line.body()
        if body is None:
            return
        call = _call(scope, body, line)
        fault: Fault = Pass()
        if self._endpoint is not None:
            fault = self._state.next_fault(self._endpoint)
            self._state.note_request(Seen(self._endpoint, call.method, _target(scope), call.headers))
        response = await self._respond(call, fault)
        if response is None:
            await line.hang_up()
        elif isinstance(fault, CutInHalf):
            await line.hang_up(_half(response))
        elif isinstance(fault, Drip):
            await _drip(response, fault.pause, line, send)
        else:
            await response(scope, receive, send)

    async def _respond(self, call: Call, fault: Fault) -> Response | None:
        """Return the response to send, or None for none."""
        match fault:
            case Pass() | CutInHalf() | Drip():
                return await self._handler(call)
            case FaultAnswer(status, body, headers):
                return Response(body, status, dict(headers))
            case HangUp():
                return None
            case ApplyThenAnswer(status):
                await self._handler(call)
                return Response(b"", status)
            case ApplyThenHangUp():
                await self._handler(call)
                return None
            case Delay(seconds):
                return await self._handler(call) if await call.line.stall(seconds) else None
            case ApplyThenDelay(seconds):
                response = await self._handler(call)
                return response if await call.line.stall(seconds) else None
            case Hang():
                await call.line.stall(math.inf)
                return None


def _call(scope: Scope, body: bytes, line: Line) -> Call:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return Call(
        method=scope["method"],
        params=cast("Mapping[str, str]", scope.get("path_params", {})),
        query=QueryParams(scope["query_string"]),
        headers=headers,
        body=body,
        line=line,
    )


def _target(scope: Scope) -> str:
    path: str = scope["raw_path"].decode("ascii")
    query: str = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _half(response: Response) -> bytes:
    head = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    head += [name + b": " + value for name, value in response.raw_headers]
    body = bytes(response.body)
    return b"\r\n".join([*head, b"", b""]) + body[: len(body) // 2]


async def _drip(response: Response, pause: float, line: Line, send: Send) -> None:
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    body = bytes(response.body)
    for position in range(len(body)):
        if not await line.stall(pause):
            await line.hang_up()
            return
        more = position < len(body) - 1
        await send({"type": "http.response.body", "body": body[position : position + 1], "more_body": more})
    if not body:
        await send({"type": "http.response.body", "body": b""})
