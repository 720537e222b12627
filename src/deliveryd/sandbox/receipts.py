"""Providers' receipts: signed, posted to the configured target, retried a few times."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from itertools import count
from types import TracebackType
from typing import Literal, Self

import httpx

from deliveryd.sandbox.providers import Voice
from deliveryd.sandbox.recipients import Temper, temper_of
from deliveryd.sandbox.records import PlannedReceipt, ReceivedMessage
from deliveryd.sandbox.signing import Outgoing
from deliveryd.sandbox.state import SandboxState, instant_text

SENDERS = 4
PAUSES = (0.05, 0.2, 0.8, 2.0)


class ReceiptSender:
    """Posts a receipt for each message reported to it, `state.receipt_delay` seconds after that."""

    def __init__(self, state: SandboxState) -> None:
        self._state = state
        self._due: asyncio.Queue[tuple[ReceivedMessage, Voice]] = asyncio.Queue()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._numbers = count()
        self._senders: list[asyncio.Task[None]] = []
        # Receipts stay on this host over plain HTTP; loading the system's authorities would cost 50 ms.
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=5.0, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )

    async def __aenter__(self) -> Self:
        self._senders = [asyncio.create_task(self._send_all()) for _ in range(SENDERS)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        await self._client.aclose()

    def report(self, message: ReceivedMessage, voice: Voice) -> None:
        """Send a receipt for this message, if there is where to send it."""
        temper = temper_of(message.channel, message.to)
        if temper is Temper.SILENT or voice.report(message, _word(message), datetime.now(UTC)) is None:
            return
        for _ in range(2 if temper is Temper.TWICE else 1):
            self._plan(message, voice)

    def _plan(self, message: ReceivedMessage, voice: Voice) -> None:
        if self._state.receipt_delay <= 0:
            self._due.put_nowait((message, voice))
            return
        number, loop = next(self._numbers), asyncio.get_running_loop()
        self._timers[number] = loop.call_later(self._state.receipt_delay, self._ripen, number, message, voice)

    def _ripen(self, number: int, message: ReceivedMessage, voice: Voice) -> None:
        del self._timers[number]
        self._due.put_nowait((message, voice))

    async def _send_all(self) -> None:
        while True:
            await self._send(*await self._due.get())

    async def _send(self, message: ReceivedMessage, voice: Voice) -> None:
        word = _word(message)
        at = datetime.now(UTC)
        for pause in (*PAUSES, None):
            answered = await self._post(voice.report(message, word, at))
            self._state.record_receipt(
                PlannedReceipt(message.channel, message.provider_id, word, instant_text(at), answered)
            )
            if pause is None or (answered is not None and answered < 500):
                return
            await asyncio.sleep(pause)

    async def _post(self, report: Outgoing | None) -> int | None:
        if report is None:
            return None
        try:
            answer = await self._client.request(
                report.method, report.url, content=report.body, headers=report.headers
            )
        except httpx.HTTPError:
            return None
        return answer.status_code


def _word(message: ReceivedMessage) -> Literal["delivered", "failed"]:
    return "failed" if temper_of(message.channel, message.to) is Temper.FAILED else "delivered"
