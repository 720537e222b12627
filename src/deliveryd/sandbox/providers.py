"""The gateways behind the channels: what each does with a message, in whatever form, and its receipts.

Receipts are signed, posted to the configured target, and retried a few times.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import httpx
from starlette.responses import Response

from deliveryd.sandbox.faults import StandInChannel, Temper, temper_of
from deliveryd.sandbox.impersonation import (
    Impersonation,
    Mood,
    Outgoing,
    SendOrder,
    Shape,
    SigningForm,
    account_answer,
    lookup_answer,
    text_at,
)
from deliveryd.sandbox.state import (
    Attempt,
    PlannedReceipt,
    ReceivedMessage,
    SandboxState,
    instant_text,
    now_text,
)
from deliveryd.sandbox.wire import Call, Handler, UnknownAddressError, UnreadableError, problem

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

_REFUSALS: Mapping[Temper, tuple[Mood, str]] = {
    Temper.PERMANENT: ("refused", "invalid recipient"),
    Temper.STOPPED: ("stopped", "the recipient opted out"),
    Temper.DOWN: ("busy", "out of service"),
    Temper.TEMPORARY: ("busy", "try again later"),
}
"""How a try is refused; without an entry it isn't answered."""

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
                if provider.account is not None and provider.account.is_asked_by(call):
                    return account_answer(provider.account)
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
        if self._state.refuses(temper, *order.identity):
            if temper in _REFUSALS:
                return self._refuse(order, provider, *_REFUSALS[temper])
            self._note(order, 0)
            if not await call.line.stall(self._state.hang_seconds):
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


SENDERS = 4
PAUSES = (0.05, 0.2, 0.8, 2.0)


class ReceiptSender:
    """Posts a receipt for each message reported to it, `state.receipt_delay` seconds after that."""

    def __init__(self, state: SandboxState) -> None:
        self._state = state
        self._sending: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(SENDERS)
        # Receipts stay on this host over plain HTTP; loading the system's authorities would cost 50 ms.
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=5.0, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )

    async def close(self) -> None:
        """Send no more."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._client.aclose()

    def report(self, message: ReceivedMessage, provider: Impersonation) -> None:
        """Send a receipt for this message, if there is where to send it."""
        temper = temper_of(message.channel, message.to)
        if temper is Temper.SILENT or self._written(message, provider, datetime.now(UTC)) is None:
            return
        for _ in range(2 if temper is Temper.TWICE else 1):
            task = asyncio.create_task(self._send(message, provider))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, message: ReceivedMessage, provider: Impersonation) -> None:
        await asyncio.sleep(self._state.receipt_delay)
        word = _word(message)
        at = datetime.now(UTC)
        for pause in (*PAUSES, None):
            answered = await self._post(self._written(message, provider, at))
            self._state.record_receipt(
                PlannedReceipt(message.channel, message.provider_id, word, instant_text(at), answered)
            )
            if pause is None or (answered is not None and answered < 500):
                return
            await asyncio.sleep(pause)

    def _written(self, message: ReceivedMessage, provider: Impersonation, at: datetime) -> Outgoing | None:
        """Write a report; None: there is nowhere to send it. Each own gateway has a target."""
        target = self._state.receipts_server
        if not provider.name:
            target = self._state.receipt_targets.get(message.channel)
            provider = replace(provider, secret=self._state.receipt_secret)
        return None if target is None else provider.report(message, _word(message), target, at)

    async def _post(self, report: Outgoing | None) -> int | None:
        if report is None:
            return None
        try:
            async with self._places:
                answer = await self._client.request(
                    report.method, report.url, content=report.body, headers=report.headers
                )
        except httpx.HTTPError:
            return None
        return answer.status_code


def _word(message: ReceivedMessage) -> Literal["delivered", "failed"]:
    return "failed" if temper_of(message.channel, message.to) is Temper.FAILED else "delivered"
