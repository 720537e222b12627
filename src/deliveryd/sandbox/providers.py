"""The gateways behind the channels sms, messenger and inApp, as plain HTTP services."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse, Response

from deliveryd.sandbox.answers import UnreadableError, json_answer, problem
from deliveryd.sandbox.recipients import TEMPORARY_FAILURES, Temper, temper_of
from deliveryd.sandbox.records import Attempt, ReceivedMessage, StandInChannel
from deliveryd.sandbox.state import SandboxState, now_text
from deliveryd.sandbox.wire import Call, Handler

FORM = "application/x-www-form-urlencoded"


class Voice(Protocol):
    """The format of a gateway's responses."""

    def accepted(self, provider_id: str) -> Response:
        """Return the response for an accepted message with this ID."""

    def refused(self, status: int, error: str) -> Response:
        """Return the response for a refused message."""


class JsonVoice:
    """Answers as JSON: `{"id": ...}` or `{"error": ...}`."""

    def accepted(self, provider_id: str) -> Response:
        return json_answer({"id": provider_id})

    def refused(self, status: int, error: str) -> Response:
        return problem(status, error)


class PlainVoice:
    """Answers with a line of text: `OK id=...` or `ERROR ...`, like old gateways."""

    def accepted(self, provider_id: str) -> Response:
        return PlainTextResponse(f"OK id={provider_id}")

    def refused(self, status: int, error: str) -> Response:
        return PlainTextResponse(f"ERROR {error}", status)


@dataclass(frozen=True, slots=True)
class _Order:
    channel: StandInChannel
    to: str
    reference: str | None
    key: str | None
    payload: dict[str, Any]

    @property
    def identity(self) -> tuple[str, str]:
        """Return what identifies a repeat: its reference, else its key, else its recipient."""
        return self.channel, self.reference or self.key or self.to


class Providers:
    """The gateways over one state; `report` is called with each message that was newly accepted."""

    def __init__(self, state: SandboxState, report: Callable[[ReceivedMessage], None]) -> None:
        self._state = state
        self._report = report

    def gateway(self, channel: StandInChannel, voice: Voice) -> Handler:
        """The endpoint of one channel, answering with this voice."""

        async def handle(call: Call) -> Response:
            try:
                order = _order(channel, call)
            except UnreadableError as error:
                return voice.refused(400, str(error))
            return await self._answer(order, call, voice)

        return handle

    async def _answer(self, order: _Order, call: Call, voice: Voice) -> Response:
        temper = temper_of(order.channel, order.to)
        if temper is Temper.PERMANENT:
            return self._refuse(order, voice, 400, "invalid recipient")
        if temper is Temper.DOWN:
            return self._refuse(order, voice, 503, "out of service")
        if temper in (Temper.TEMPORARY, Temper.TIMEOUT):
            tries = self._state.count_try(temper.name, *order.identity)
            if temper is Temper.TEMPORARY and tries <= TEMPORARY_FAILURES:
                return self._refuse(order, voice, 503, "try again later")
            if temper is Temper.TIMEOUT and tries == 1:
                self._note(order, 0)
                if await call.line.stall(self._state.hang_seconds) != "elapsed":
                    return voice.refused(503, "closing")
        return self._accept(order, call, voice)

    def _accept(self, order: _Order, call: Call, voice: Voice) -> Response:
        message = self._state.accept(
            ReceivedMessage(
                seq=0,
                at=now_text(),
                channel=order.channel,
                provider_id=f"{order.channel}-{secrets.token_hex(6)}",
                message_id=message_id_of(order.reference),
                reference=order.reference,
                idempotency_key=order.key,
                to=order.to,
                payload=order.payload,
                headers=call.headers,
            )
        )
        self._note(order, 200)
        if message.duplicate_of is None:
            self._report(message)
        return voice.accepted(message.provider_id)

    def _refuse(self, order: _Order, voice: Voice, status: int, error: str) -> Response:
        self._note(order, status)
        return voice.refused(status, error)

    def _note(self, order: _Order, status: int) -> None:
        self._state.record_attempt(
            Attempt(now_text(), order.channel, order.to, order.reference, order.key, status)
        )


def message_id_of(reference: str | None) -> int | None:
    """Return a reference as a message ID, or None."""
    return int(reference) if reference and re.fullmatch(r"-?\d{1,19}", reference, re.ASCII) else None


def _order(channel: StandInChannel, call: Call) -> _Order:
    """Parse the request. Raises UnreadableError."""
    payload = _payload(call)
    to = payload.get("to")
    if not isinstance(to, str | int) or not str(to).strip():
        raise UnreadableError("missing recipient: to")
    reference = payload.get("reference")
    return _Order(
        channel=channel,
        to=str(to).strip(),
        reference=None if reference is None else str(reference),
        key=call.headers.get("idempotency-key"),
        payload=payload,
    )


def _payload(call: Call) -> dict[str, Any]:
    if call.method == "GET":
        return dict(call.query)
    if call.headers.get("content-type", "").split(";")[0].strip().lower() == FORM:
        return dict(parse_qsl(call.body.decode("utf-8"), keep_blank_values=True))
    try:
        payload = json.loads(call.body)
    except ValueError as error:
        raise UnreadableError("the body is not JSON") from error
    if not isinstance(payload, dict):
        raise UnreadableError("the body is not an object")
    return payload | _extra(call.query)


def _extra(query: QueryParams) -> dict[str, Any]:
    return dict(query) if query else {}
