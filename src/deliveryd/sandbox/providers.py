"""The gateways behind the channels: what each does with a message, whatever form its requests have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from starlette.responses import Response

from deliveryd.sandbox.answers import UnknownAddressError, UnreadableError, problem
from deliveryd.sandbox.recipients import TEMPORARY_FAILURES, Temper, temper_of
from deliveryd.sandbox.records import Attempt, ReceivedMessage, StandInChannel
from deliveryd.sandbox.signing import Outgoing
from deliveryd.sandbox.state import SandboxState, now_text
from deliveryd.sandbox.wire import Call, Handler

Mood = Literal["accepted", "refused", "busy", "stopped", "repeated"]
"""How a gateway answers a request."""


class Voice(Protocol):
    """The form of a gateway's requests, responses and reports."""

    def order(self, channel: StandInChannel, call: Call) -> SendOrder:
        """Parse a request. Raises UnreadableError."""

    def new_id(self, order: SendOrder) -> str:
        """Return an ID for an accepted message."""

    def accepted(self, message: ReceivedMessage) -> Response:
        """Return the response for an accepted message."""

    def found(self, call: Call) -> Response | None:
        """Return the response to a question about a message; None: the request sends one."""

    def rejects_repeats(self) -> bool:
        """Whether a message with a reference that came before is answered as repeated."""

    def refused(self, mood: Mood, error: str, to: str) -> Response:
        """Return the response for a message that isn't accepted."""

    def report(self, message: ReceivedMessage, word: str, at: datetime) -> Outgoing | None:
        """Return a report about a message; None: there is nowhere to send one."""


@dataclass(frozen=True, slots=True)
class SendOrder:
    """A request to send a message, whatever its form was."""

    channel: StandInChannel
    to: str
    reference: str | None
    key: str | None
    payload: Mapping[str, Any]

    @property
    def identity(self) -> tuple[str, str]:
        """Return what identifies a repeat: its reference, else its key, else its recipient."""
        return self.channel, self.reference or self.key or self.to


class Providers:
    """The gateways over one state; `report` is called with each message that was newly accepted."""

    def __init__(self, state: SandboxState, report: Callable[[ReceivedMessage, Voice], None]) -> None:
        self._state = state
        self._report = report

    def gateway(self, channel: StandInChannel, voice: Voice) -> Handler:
        """The endpoint of one channel, in this voice."""

        async def handle(call: Call) -> Response:
            try:
                if (found := voice.found(call)) is not None:
                    return found
                order = voice.order(channel, call)
            except UnknownAddressError as error:
                return problem(404, str(error))
            except UnreadableError as error:
                return voice.refused("refused", str(error), "")
            return await self._answer(order, call, voice)

        return handle

    async def _answer(self, order: SendOrder, call: Call, voice: Voice) -> Response:
        if voice.rejects_repeats() and self._state.accepted_as(order.channel, order.reference) is not None:
            return self._refuse(order, voice, "repeated", "the reference came before")
        temper = temper_of(order.channel, order.to)
        if temper is Temper.PERMANENT:
            return self._refuse(order, voice, "refused", "invalid recipient")
        if temper is Temper.STOPPED:
            return self._refuse(order, voice, "stopped", "the recipient opted out")
        if temper is Temper.DOWN:
            return self._refuse(order, voice, "busy", "out of service")
        if temper in (Temper.TEMPORARY, Temper.TIMEOUT):
            tries = self._state.count_try(temper.name, *order.identity)
            if temper is Temper.TEMPORARY and tries <= TEMPORARY_FAILURES:
                return self._refuse(order, voice, "busy", "try again later")
            if temper is Temper.TIMEOUT and tries == 1:
                self._note(order, 0)
                if await call.line.stall(self._state.hang_seconds) != "elapsed":
                    return voice.refused("busy", "closing", order.to)
        return self._accept(order, call, voice)

    def _accept(self, order: SendOrder, call: Call, voice: Voice) -> Response:
        message = self._state.accept(
            ReceivedMessage(
                seq=0,
                at=now_text(),
                channel=order.channel,
                provider_id=voice.new_id(order),
                message_id=message_id_of(order.reference),
                reference=order.reference,
                idempotency_key=order.key,
                to=order.to,
                payload=order.payload,
                headers=call.headers,
            )
        )
        response = voice.accepted(message)
        self._note(order, response.status_code)
        if message.duplicate_of is None:
            self._report(message, voice)
        return response

    def _refuse(self, order: SendOrder, voice: Voice, mood: Mood, error: str) -> Response:
        response = voice.refused(mood, error, order.to)
        self._note(order, response.status_code)
        return response

    def _note(self, order: SendOrder, status: int) -> None:
        self._state.record_attempt(
            Attempt(now_text(), order.channel, order.to, order.reference, order.key, status)
        )


def message_id_of(reference: str | None) -> int | None:
    """Return a reference as a message ID, or None."""
    return int(reference) if reference and re.fullmatch(r"-?\d{1,19}", reference, re.ASCII) else None
