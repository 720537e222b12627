"""Providers' receipts: signed, posted to the configured target, retried a few times."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
from types import TracebackType
from typing import Literal, Self

import httpx

from deliveryd.sandbox.recipients import Temper, temper_of
from deliveryd.sandbox.records import PlannedReceipt, ReceivedMessage
from deliveryd.sandbox.state import SandboxState, now_text

SENDERS = 4
PAUSES = (0.05, 0.2, 0.8, 2.0)
SIGNATURE_HEADER = "X-Signature"


def signature(secret: str, body: bytes) -> str:
    """The hex HMAC-SHA256 over the raw body that a receipt carries."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class ReceiptSender:
    """Posts a receipt for each message reported to it, `state.receipt_delay` seconds after that."""

    def __init__(self, state: SandboxState) -> None:
        self._state = state
        self._due: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        self._timers: set[asyncio.TimerHandle] = set()
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
        for timer in self._timers:
            timer.cancel()
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        await self._client.aclose()

    def report(self, message: ReceivedMessage) -> None:
        """Send a receipt for this message, if its channel has a target."""
        if message.channel not in self._state.receipt_targets:
            return
        if self._state.receipt_delay <= 0:
            self._due.put_nowait(message)
            return
        timer = asyncio.get_running_loop().call_later(self._state.receipt_delay, self._ripen, message)
        self._timers = {each for each in self._timers if not each.cancelled()} | {timer}

    def _ripen(self, message: ReceivedMessage) -> None:
        self._due.put_nowait(message)

    async def _send_all(self) -> None:
        while True:
            await self._send(await self._due.get())

    async def _send(self, message: ReceivedMessage) -> None:
        failed = temper_of(message.channel, message.to) is Temper.FAILED
        status: Literal["delivered", "failed"] = "failed" if failed else "delivered"
        at = now_text()
        body = json.dumps({"id": message.provider_id, "status": status, "at": at}).encode()
        for pause in (*PAUSES, None):
            answered = await self._post(message, body)
            self._state.record_receipt(
                PlannedReceipt(message.channel, message.provider_id, status, at, answered)
            )
            if pause is None or (answered is not None and answered < 500):
                return
            await asyncio.sleep(pause)

    async def _post(self, message: ReceivedMessage, body: bytes) -> int | None:
        headers = {
            "content-type": "application/json",
            SIGNATURE_HEADER: signature(self._state.receipt_secret, body),
        }
        try:
            answer = await self._client.post(
                self._state.receipt_targets[message.channel], content=body, headers=headers
            )
        except (httpx.HTTPError, KeyError):
            return None
        return answer.status_code
