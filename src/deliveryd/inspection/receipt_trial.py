"""Tries what a provider sent, offline: whether its signature holds, what it reports, the answer it would get.

Nothing is sent and nothing recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.errors import DeliverydError
from deliveryd.http.raw_message import RawRequest, parse_request
from deliveryd.inspection.offline import OfflineProvider
from deliveryd.model import format_instant
from deliveryd.receipts.inlet import Inlet, ReceiptReply, open_inlet
from deliveryd.receipts.reading import NOTHING, ReadReports, Report, at_once
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import CertificateMissing, Forged

SignatureResult = Literal["valid", "invalid", "unchecked"]


class ReceiptTable(NamedTuple):
    """How a provider reports. `public_url` is what it calls, in front of the path; it may be unknown."""

    options: ReceiptOptions
    public_url: str | None


class ReceiptTrial(NamedTuple):
    """What became of a request. `reason` says why the signature isn't valid."""

    signature: SignatureResult
    reason: str | None
    reading: ReadReports
    reply: ReceiptReply


def receipt_table(offline: OfflineProvider) -> ReceiptTable:
    """Return how a provider reports. Raises DeliverydError if it doesn't."""
    provider, receipt = offline.provider, offline.options.receipt
    if receipt is None:
        raise DeliverydError(f"{provider.identity} has no receipts; add [{provider.place}.receipt]")
    return ReceiptTable(receipt, offline.public_url)


def try_receipts(
    table: ReceiptTable, raw: bytes, source: str, now: int, url: str | None = None
) -> ReceiptTrial:
    """Try a request as it went over the wire. `url` is the address that was called, or its host alone.

    Raises DeliverydError if `source` isn't a request, or a secret can't be read.
    """
    try:
        parsed = parse_request(raw)
    except ValueError as error:
        raise DeliverydError(f"{source}: {error}") from None
    try:
        inlet = open_inlet(table.options)
        request = _request(parsed, table.public_url, url)
    except ValueError as error:
        raise DeliverydError(str(error)) from None
    if (challenged := inlet.answer_challenge(request)) is not None:
        return ReceiptTrial("unchecked", "the verification of the address isn't signed", NOTHING, challenged)
    return _tried(inlet, request, now)


def _tried(inlet: Inlet, request: ReceiptRequest, now: int) -> ReceiptTrial:
    signature: SignatureResult = "valid" if inlet.is_signed else "unchecked"
    reason = None if inlet.is_signed else "no signature is configured"
    content = request
    try:
        verified = inlet.verify(request, now)
        if not isinstance(verified, ReceiptRequest):
            return ReceiptTrial(signature, reason, NOTHING, inlet.reply)
        content = verified
    except CertificateMissing as missing:
        signature, reason = "unchecked", f"{missing}; it would be fetched from {missing.url}"
    except Forged as error:
        signature, reason = "invalid", str(error)
    try:
        reading, reply = at_once(inlet.read(content, now)), inlet.reply
    except Unreadable as error:
        reading, reply = NOTHING, ReceiptReply(400, str(error))
    return ReceiptTrial(signature, reason, reading, inlet.refusal if signature == "invalid" else reply)


def _request(raw: RawRequest, public_url: str | None, url: str | None) -> ReceiptRequest:
    """Return the request as it was sent to `url`, or to its own path below `public_url`."""
    path, query = raw.path, raw.query
    host = dict(raw.headers).get(b"host", b"").decode("latin-1")
    base = public_url or f"https://{host}"
    if url is not None:
        called = _split(url)
        base = f"{called.scheme}://{called.netloc}"
        if called.path not in ("", "/"):
            path, query = called.path, called.query.encode() or raw.query
    elif public_url is None and host:
        _split(base)
    return ReceiptRequest(raw.method, path, query, raw.headers, raw.body, base=base)


def _split(url: str) -> SplitResult:
    """Split an address that a provider called. Raises ValueError."""
    problem = f"{url} is no address such as https://receipts.example.com/receipts/sms"
    try:
        called = urlsplit(url)
        port = called.port
    except ValueError:
        raise ValueError(problem) from None
    if called.scheme not in ("http", "https") or not called.netloc or port == 0:
        raise ValueError(problem)
    return called


def trial_data(trial: ReceiptTrial) -> dict[str, object]:
    """Return a trial as JSON has it."""
    data: dict[str, object] = {
        "signature": trial.signature,
        "reports": [_report_data(report) for report in trial.reading.reports],
        "answer": {"status": trial.reply.status, "body": trial.reply.text},
    }
    if trial.reading.unread:
        data["unreadable"] = [unread._asdict() for unread in trial.reading.unread]
    return data


def _report_data(report: Report) -> dict[str, object]:
    return {
        "provider_id": report.provider_id,
        "reference": report.reference,
        "word": report.word,
        "meaning": report.consent or report.meaning,
        "at": format_instant(report.at),
    }


def trial_lines(trial: ReceiptTrial) -> Sequence[str]:
    """Return a trial as lines for a person."""
    because = f": {trial.reason}" if trial.reason is not None else ""
    return [
        f"signature  {trial.signature}{because}",
        *(f"report     {text}" for text in _report_lines(trial.reading.reports)),
        *(f"unreadable {unread.reason}: {unread.raw}" for unread in trial.reading.unread),
        f"answer     {trial.reply.status} {trial.reply.text}".rstrip(),
    ]


def _report_lines(reports: Sequence[Report]) -> Iterator[str]:
    for report in reports:
        names = (("id", report.provider_id), ("reference", report.reference))
        about = ", ".join(f"{name} {value}" for name, value in names if value is not None)
        meanings = [report.meaning, *([report.consent] if report.consent is not None else [])]
        at = f"at {format_instant(report.at)}" if report.is_dated else "undated"
        yield f"{report.word}: {' and '.join(meanings)}, {at}, {about or 'no message'}"
    if not reports:
        yield "none"
