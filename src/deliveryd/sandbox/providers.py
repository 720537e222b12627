"""The gateways behind the channels: what each does with a message, whatever form its requests have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from starlette.responses import Response

from deliveryd.sandbox.answers import UnknownAddressError, UnreadableError, problem
from deliveryd.sandbox.impersonation import Impersonation, Mood, SendOrder, lookup_answer, text_at
from deliveryd.sandbox.recipients import TEMPORARY_FAILURES, Temper, temper_of
from deliveryd.sandbox.records import Attempt, ReceivedMessage, StandInChannel
from deliveryd.sandbox.shapes import Shape
from deliveryd.sandbox.signing import SigningForm
from deliveryd.sandbox.state import SandboxState, now_text
from deliveryd.sandbox.wire import Call, Handler

JSON_ANSWERS: Mapping[Mood, Shape] = {
    "accepted": Shape(json_body={"id": "{id}"}),
    "refused": Shape(400, json_body={"error": "{error}"}),
    "busy": Shape(503, json_body={"error": "{error}"}),
}
PLAIN_ANSWERS: Mapping[Mood, Shape] = {
    "accepted": Shape(body="OK id={id}"),
    "refused": Shape(400, body="ERROR {error}"),
    "busy": Shape(503, body="ERROR {error}"),
}
"""Lines of text, as from old gateways."""

_REPORTS = {
    word: Shape(json_body={"id": "{id}", "status": word, "at": "{at.utc}"})
    for word in ("delivered", "failed")
}


def own_gateway(channel: StandInChannel, answers: Mapping[Mood, Shape]) -> Impersonation:
    """Return a gateway of the sandbox's own; its reports go to the channel's target, signed."""
    return Impersonation(
        "",
        channel,
        [re.compile("")],
        "/to",
        answers,
        reference="/reference",
        id=f"{channel}-{{hex}}",
        reports=_REPORTS,
        signature=SigningForm("hmac", header="X-Signature"),
        heeds_keys=True,
    )


class Providers:
    """The gateways over one state; `report` is called with each message that was newly accepted."""

    def __init__(self, state: SandboxState, report: Callable[[ReceivedMessage, Impersonation], None]) -> None:
        self._state = state
        self._report = report

    def gateway(self, provider: Impersonation) -> Handler:
        """Return the endpoint of a provider."""

        async def handle(call: Call) -> Response:
            try:
                provider.check_address(call)
                if provider.lookup is not None and call.method == "GET":
                    reference = text_at(dict(call.query), provider.lookup.reference)
                    found = self._state.accepted_as(provider.channel, reference)
                    return lookup_answer(provider.lookup, found)
                order = provider.order(call)
            except UnknownAddressError as error:
                return problem(404, str(error))
            except UnreadableError as error:
                return provider.answer("refused", provider.new_id(None), "", error=str(error))
            return await self._answer(order, call, provider)

        return handle

    async def _answer(self, order: SendOrder, call: Call, provider: Impersonation) -> Response:
        if "repeated" in provider.answers and self._state.accepted_as(order.channel, order.reference):
            return self._refuse(order, provider, "repeated", "the reference came before")
        temper = temper_of(order.channel, order.to)
        if temper is Temper.PERMANENT:
            return self._refuse(order, provider, "refused", "invalid recipient")
        if temper is Temper.STOPPED:
            return self._refuse(order, provider, "stopped", "the recipient opted out")
        if temper is Temper.DOWN:
            return self._refuse(order, provider, "busy", "out of service")
        if temper in (Temper.TEMPORARY, Temper.TIMEOUT):
            tries = self._state.count_try(temper.name, *order.identity)
            if temper is Temper.TEMPORARY and tries <= TEMPORARY_FAILURES:
                return self._refuse(order, provider, "busy", "try again later")
            if temper is Temper.TIMEOUT and tries == 1:
                self._note(order, 0)
                if await call.line.stall(self._state.hang_seconds) != "elapsed":
                    return provider.answer("busy", provider.new_id(None), order.to, error="closing")
        return self._accept(order, call, provider)

    def _accept(self, order: SendOrder, call: Call, provider: Impersonation) -> Response:
        message = self._state.accept(
            ReceivedMessage(
                seq=0,
                at=now_text(),
                channel=order.channel,
                provider_id=provider.new_id(order.reference),
                message_id=message_id_of(order.reference),
                reference=order.reference,
                idempotency_key=order.key,
                to=order.to,
                payload=order.payload,
                headers=call.headers,
            )
        )
        response = provider.answer("accepted", message.provider_id, message.to, message.reference)
        self._note(order, response.status_code)
        if message.duplicate_of is None:
            self._report(message, provider)
        return response

    def _refuse(self, order: SendOrder, provider: Impersonation, mood: Mood, error: str) -> Response:
        response = provider.answer(mood, provider.new_id(None), order.to, error=error)
        self._note(order, response.status_code)
        return response

    def _note(self, order: SendOrder, status: int) -> None:
        self._state.record_attempt(
            Attempt(now_text(), order.channel, order.to, order.reference, order.key, status)
        )


def message_id_of(reference: str | None) -> int | None:
    """Return a reference as a message ID, or None."""
    return int(reference) if reference and re.fullmatch(r"-?\d{1,19}", reference, re.ASCII) else None
