"""What providers report: verified, read, recorded and answered. What was answered 2xx is in the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import JournalError
from deliveryd.http.peers import EVERYBODY, Peers
from deliveryd.journal.base import NOT_OURS
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.metrics import Metrics, ReceiptResult
from deliveryd.model import (
    Clock,
    OptOut,
    ProgressReport,
    Receipt,
    RecipientReport,
    Reported,
    SharedReceipt,
    UnreadReport,
    channel_of,
)
from deliveryd.receipts.batcher import ReceiptBatcher
from deliveryd.receipts.endpoint import NOTHING_HERE, STARTING, ReceiptEndpoint, ReceiptRoute
from deliveryd.receipts.inlet import Inlet, Inlets, ReceiptReply
from deliveryd.receipts.pages import FetchPage, Pages
from deliveryd.receipts.reading import READ_AT_ONCE, ReadReports, Report, Slices
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import (
    CertificateMissing,
    Forged,
    NoReport,
    Subscription,
    Untrusted,
    Verified,
)
from deliveryd.telemetry.log_events import Event, Fields, log

STRANGERS_LOG_INTERVAL = 60.0
"""Seconds between two log lines of one kind about requests that anybody may send in any number."""

_LONGEST_CHAIN = 2
"""Certificates that are fetched to verify a request: one and its issuer's."""

_SHORT = 4 << 10
"""Bytes of a request of which the first slice is read at once, as of nearly all requests."""

_RECORDED_AT_ONCE = 250
"""Reports of one request that are recorded in one transaction."""

_LATER = ReceiptReply(503, "can't be recorded now; report it again later")
_UNREACHABLE = ReceiptReply(503, "the provider's certificate or confirmation can't be fetched now")


@dataclass(slots=True)
class _Quiet:
    """Until when a log line isn't repeated, and how often it would have been."""

    until: float = float("-inf")
    count: int = 0


class _Unreachable(Exception):
    """An address of the provider that verification needs can't be fetched."""


class Receipts:
    """Verifies, reads, records and answers what providers report."""

    def __init__(
        self,
        inlets: Inlets,
        recorder: Recorder,
        clock: Clock,
        metrics: Metrics,
        *,
        fetch: FetchPage,
        peers: Peers = EVERYBODY,
    ) -> None:
        self._inlets = inlets
        self._endpoint = ReceiptEndpoint(
            inlets, self.take_in, self._turned_away, is_started=lambda: recorder.recovered, peers=peers
        )
        self._recorder = recorder
        self._batcher = ReceiptBatcher(recorder)
        self._clock = clock
        self._metrics = metrics
        self._pages: defaultdict[str, Pages] = defaultdict(lambda: Pages(fetch))
        self._quiet: defaultdict[tuple[str | None, Event, int | None], _Quiet] = defaultdict(_Quiet)
        self._one_list = anyio.Lock()
        self._one_verified = anyio.Lock()

    def app(self) -> ReceiptEndpoint:
        """The ASGI application."""
        return self._endpoint

    def adopt(self, inlets: Inlets) -> None:
        """Take in by another configuration from now on; requests under way are verified by it, too."""
        self._inlets = inlets
        self._endpoint.adopt(inlets)

    async def take_in(self, provider: str, request: ReceiptRequest) -> ReceiptReply:
        """Verify, read and record what a provider reports; not before the start is over."""
        if not self._recorder.recovered:
            return STARTING
        inlet = self._inlets.by_provider.get(provider)
        if inlet is None:
            return NOTHING_HERE
        if (challenged := inlet.answer_challenge(request)) is not None:
            return challenged
        now = self._clock.now()
        try:
            verified = await self._verified(inlet, self._pages[provider], request, now)
            if isinstance(verified, ReceiptRequest) and verified.token is not None:
                await self._use(verified.token)
        except Forged:
            self._log_seldom("forged", Event.RECEIPT_FORGED, provider)
            return inlet.refusal
        except _Unreachable:
            return _UNREACHABLE
        except (JournalError, OSError):
            return _LATER
        if isinstance(verified, NoReport):
            return inlet.reply_to(verified)
        try:
            results = await self._read_and_record(provider, inlet.read(verified, now), len(request.body), now)
        except Unreadable as error:
            self._log_seldom("malformed", Event.RECEIPT_MALFORMED, provider)
            return ReceiptReply(400, str(error))
        return _LATER if results is None else inlet.reply.after(results)

    async def _use(self, token: SignedToken) -> None:
        """Note what a token was used for, durably. Raises Forged if that was another report."""
        if not await self._recorder.use_token(token):
            raise Forged("the token was used for another report")

    async def _verified(
        self, inlet: Inlet, pages: Pages, request: ReceiptRequest, now: int
    ) -> ReceiptRequest | NoReport:
        """Return a genuine request, after a subscription of it is confirmed. Raises Forged, _Unreachable.

        Others have a turn before each long one, since anybody may send many at once.
        """
        if max(len(request.body), len(request.sent or b"")) > _SHORT:
            async with self._one_verified:
                await anyio.lowlevel.checkpoint()
        verified: Verified
        try:
            verified = inlet.verify(request, now)
        except CertificateMissing as missing:
            verified = await self._with_certificates(inlet, pages, request, now, missing)
        if not isinstance(verified, Subscription):
            return verified
        if await pages.get(verified.url, lambda: True, request.peer()) is None:
            raise _Unreachable
        return NoReport()

    async def _with_certificates(
        self, inlet: Inlet, pages: Pages, request: ReceiptRequest, now: int, missing: CertificateMissing
    ) -> Verified:
        """Verify with the certificate, and its issuer's; requests that wait for one fetch it once."""
        for _ in range(_LONGEST_CHAIN):
            page = await pages.get(missing.url, missing.is_missing, request.peer())
            try:
                if page is not None:
                    missing.learn(page)
                return inlet.verify(request, now)
            except Untrusted:
                pages.note_missing(missing.url)
                raise
            except CertificateMissing as another:
                if another.url == missing.url:
                    if page is not None:
                        pages.note_missing(missing.url)
                    break
                missing = another
        raise _Unreachable

    async def _read_and_record(
        self, provider: str, slices: Slices, size: int, now: int
    ) -> Sequence[str] | None:
        """Record the reports of a request; return what each did, or None if it failed. Raises Unreadable.

        Long requests are read one at a time, slice by slice: many at once would stop the loop.
        """
        if size <= _SHORT:
            try:
                next(slices)
            except StopIteration as end:
                return await self._record(provider, end.value, now)
        async with self._one_list:
            while True:
                await anyio.lowlevel.checkpoint()
                try:
                    next(slices)
                except StopIteration as end:
                    return await self._record(provider, end.value, now)

    async def _record(self, provider: str, reading: ReadReports, now: int) -> Sequence[str] | None:
        """Record reports, a part of them in each transaction; return what each did, or None if it failed."""
        if reading.more_unread:
            self._log_seldom("malformed", Event.RECEIPT_MALFORMED, provider, times=reading.more_unread)
        unread = [UnreadReport(provider, raw, reason, now) for raw, reason in reading.unread]
        results: list[str] = []
        for begin in range(0, max(1, len(reading.reports)), _RECORDED_AT_ONCE):
            part = reading.reports[begin : begin + _RECORDED_AT_ONCE]
            recorded = await self._record_part(provider, unread, part, now)
            unread = []
            if recorded is None:
                return None
            for place, result in enumerate(recorded, 1):
                self._log_result(result, provider)
                if place % READ_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            results += recorded
        return results

    async def _record_part(
        self, provider: str, unread: Sequence[Reported], part: Sequence[Report], now: int
    ) -> Sequence[str] | None:
        """Record reports that can't be read and those that can; of a message of others nothing is kept."""
        reports = [*unread]
        of_nobody = 0
        opt_outs: list[OptOut] = []
        depending: list[tuple[int, OptOut]] = []  # each with the place of its report
        for report in part:
            if report.meaning != "none" and not report.names_message:
                of_nobody += 1
                continue
            if (reported := self._reported(provider, report, now)) is not None:
                reports.append(reported)
            if report.consent is not None and (opt_out := _opt_out(provider, report, now)) is not None:
                if _depends(report):
                    depending.append((len(reports) - 1, opt_out))
                else:
                    opt_outs.append(opt_out)
        results = await self._batcher.record(reports, opt_outs) if reports or opt_outs else ()
        if results is None:
            return None
        of_ours = [opt_out for place, opt_out in depending if results[place] != NOT_OURS]
        if of_nobody:
            results = [*results, *[NOT_OURS] * of_nobody]
        if of_ours:
            more = await self._batcher.record((), of_ours)
            return None if more is None else [*results, *more]
        return results

    def _reported(self, provider: str, report: Report, now: int) -> Reported | None:
        """Return what the journal records of a report."""
        id_ = report.provider_id or ""
        if report.meaning in ("delivered", "failed"):
            delivered = report.meaning == "delivered"
            status = report.word if delivered else report.details
            kind = SharedReceipt if report.is_shared else Receipt
            return kind(provider, id_, delivered, status, report.at, now, report.reference)
        if report.intermediate is not None and report.intermediate in self._inlets.intermediate:
            return ProgressReport(provider, id_, report.intermediate, now, report.reference)
        if report.consent is not None and _depends(report):
            return RecipientReport(provider, id_, "", now, report.reference)
        return None

    def _turned_away(self, status: int, route: ReceiptRoute | None) -> None:
        """A request was no report to a provider, or one that is too large: perhaps a mistyped address.

        Of what others made up as a path nothing is logged.
        """
        path, provider = (None, None) if route is None else route
        self._log_seldom("turned_away", Event.RECEIPT_TURNED_AWAY, provider, status, path)

    def _log_result(self, result: str, provider: str) -> None:
        match result:
            case "unmatched":
                self._log_seldom("unmatched", Event.RECEIPT_UNMATCHED, provider)
            case "unread":
                self._log_seldom("malformed", Event.RECEIPT_MALFORMED, provider)
            case "noted":
                pass
            case "not_ours":
                self._metrics.receipt("not_ours", provider)
            case "repeated":
                self._log("repeated", Event.RECEIPT_REPEATED, provider)
            case _:
                self._log("accepted", Event.RECEIPT_ACCEPTED, provider)

    def _log(self, result: ReceiptResult, event: Event, provider: str) -> None:
        self._metrics.receipt(result, provider)
        log(event, channel=channel_of(provider), provider=provider)

    def _log_seldom(
        self,
        result: ReceiptResult,
        event: Event,
        provider: str | None,
        status: int | None = None,
        path: str | None = None,
        *,
        times: int = 1,
    ) -> None:
        """Count what anybody may send, and log it at most once in `STRANGERS_LOG_INTERVAL`."""
        if not times:
            return
        self._metrics.receipt(result, provider, times)
        kept_quiet = self._quiet[provider, event, status]
        if (now := anyio.current_time()) < kept_quiet.until:
            kept_quiet.count += times
        else:
            self._quiet[provider, event, status] = _Quiet(now + STRANGERS_LOG_INTERVAL)
            fields: Fields = {"count": kept_quiet.count + times}
            if provider is not None:
                fields["channel"], fields["provider"] = channel_of(provider), provider
            if status is not None:
                fields["status"] = status
            if path is not None:
                fields["path"] = path
            log(event, **fields)


def _depends(report: Report) -> bool:
    """Whether what a report has about a recipient counts only if the message that it names is ours."""
    return report.is_shared and report.names_message


def _opt_out(provider: str, report: Report, now: int) -> OptOut | None:
    """Return what a report has about its recipient."""
    if report.recipient is None:
        return None
    stopped = report.consent == "stopped"
    return OptOut(channel_of(provider), report.recipient, stopped, report.at, now, report.is_dated)
