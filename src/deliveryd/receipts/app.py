"""The addresses that providers report to: POST /receipts/CHANNEL/PROVIDER.

What is answered with 2xx is in the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import anyio

from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.delivery.recorder import Recorder
from deliveryd.metrics import Metrics, ReceiptResult
from deliveryd.model import Clock, channel_of
from deliveryd.receipts.batcher import ReceiptBatcher
from deliveryd.receipts.endpoint import ReceiptEndpoint, ReceiptReply
from deliveryd.receipts.parser import NoNews, Unreadable, is_genuine, read_receipt
from deliveryd.runtime.renewal import RenewedValue
from deliveryd.telemetry import Event, Fields, log

STRANGERS_LOG_INTERVAL = 60.0
"""Seconds between two log lines of one kind about requests that anybody may send in any number."""


@dataclass(slots=True)
class _Quiet:
    """Until when a log line isn't repeated, and how often it would have been."""

    until: float = float("-inf")
    count: int = 0


class Inlet(NamedTuple):
    """How one provider reports. `secrets` are what its signatures may be made with."""

    options: ReceiptOptions
    secrets: RenewedValue[list[str]] | None


def open_inlet(options: ReceiptOptions) -> Inlet:
    """Read the secrets of a provider's receipts, now and whenever they are replaced. Raises ValueError."""
    signature = options.signature
    if signature is None:
        return Inlet(options, None)
    return Inlet(options, RenewedValue([secret.path for secret in signature.secret_file], signature.secrets))


class Receipts:
    """Verifies, records and matches providers' reports."""

    def __init__(
        self,
        inlets: Mapping[str, Inlet],
        paths: Mapping[str, str],
        recorder: Recorder,
        clock: Clock,
        metrics: Metrics,
        *,
        max_body: int,
    ) -> None:
        self._inlets = inlets
        self._paths = paths
        self._recorder = recorder
        self._batcher = ReceiptBatcher(recorder)
        self._clock = clock
        self._metrics = metrics
        self._max_body = max_body
        self._quiet: defaultdict[tuple[str | None, Event, int | None], _Quiet] = defaultdict(_Quiet)

    def app(self) -> ReceiptEndpoint:
        """The ASGI application."""
        return ReceiptEndpoint(self._paths, self.take_in, self._turned_away, self._max_body)

    async def take_in(self, provider: str, headers: Mapping[str, str], body: bytes) -> ReceiptReply:
        """Verify, record and match a report of a configured provider; not before the start is over."""
        if not self._recorder.recovered:
            return ReceiptReply(503, "deliveryd is starting; report it again later")
        inlet = self._inlets[provider]
        signature, secrets = inlet.options.signature, inlet.secrets
        if (signature is not None and secrets is not None) and not is_genuine(
            signature, secrets.current(), headers.get(signature.header), body
        ):
            self._log_seldom("forged", Event.RECEIPT_FORGED, provider)
            return ReceiptReply(401, "the signature doesn't fit")
        try:
            receipt = read_receipt(inlet.options, provider, body, self._clock.now())
        except Unreadable as error:
            self._log_seldom("malformed", Event.RECEIPT_MALFORMED, provider)
            return ReceiptReply(400, str(error))
        if isinstance(receipt, NoNews):
            return ReceiptReply(200, "noted\n")
        result = await self._batcher.record(receipt)
        if result is None:
            return ReceiptReply(503, "can't be recorded now; report it again later")
        self._log_result(result, provider)
        return ReceiptReply(202 if result == "unmatched" else 200, f"{result}\n")

    def _turned_away(self, status: int, provider: str | None) -> None:
        """A request was no report of a provider, or one that is too large: perhaps a mistyped address."""
        self._log_seldom("turned_away", Event.RECEIPT_TURNED_AWAY, provider, status)

    def _log_result(self, result: str, provider: str) -> None:
        match result:
            case "unmatched":
                self._log_seldom("unmatched", Event.RECEIPT_UNMATCHED, provider)
            case "repeated":
                self._log("repeated", Event.RECEIPT_REPEATED, provider)
            case _:
                self._log("accepted", Event.RECEIPT_ACCEPTED, provider)

    def _log(self, result: ReceiptResult, event: Event, provider: str) -> None:
        self._metrics.receipt(result)
        log(event, channel=channel_of(provider), provider=provider)

    def _log_seldom(
        self, result: ReceiptResult, event: Event, provider: str | None, status: int | None = None
    ) -> None:
        """Count what anybody may send, and log it at most once in `STRANGERS_LOG_INTERVAL`."""
        self._metrics.receipt(result)
        kept_quiet = self._quiet[provider, event, status]
        if (now := anyio.current_time()) < kept_quiet.until:
            kept_quiet.count += 1
        else:
            self._quiet[provider, event, status] = _Quiet(now + STRANGERS_LOG_INTERVAL)
            fields: Fields = {"count": kept_quiet.count + 1}
            if provider is not None:
                fields["channel"], fields["provider"] = channel_of(provider), provider
            if status is not None:
                fields["status"] = status
            log(event, **fields)
