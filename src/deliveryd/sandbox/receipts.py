"""Providers' receipts: signed, posted to the configured target, retried a few times."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import httpx

from deliveryd.sandbox.impersonation import Impersonation
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
