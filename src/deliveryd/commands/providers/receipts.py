"""`deliveryd receipts`: try what a provider reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import anyio
import typer
from starlette.types import Message, Scope

from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.channels.signature_schemes import SnsSignature
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.offline import OfflineProvider, ProviderChoice, offline_provider
from deliveryd.commands.common.options import AsData, AtOption, ConfigOption, instant_of
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.providers.trying import (
    KeysOption,
    PresetOption,
    PresetsDirOption,
    ProviderOption,
    SecretsOption,
    TriedChannel,
    read_message,
)
from deliveryd.config import ReceiptsOptions
from deliveryd.errors import DeliverydError, UsageError
from deliveryd.http.raw_message import RawRequest, parse_request
from deliveryd.model import format_instant
from deliveryd.receipts.endpoint import NOTHING_HERE, ReceiptEndpoint
from deliveryd.receipts.inlet import Inlet, Inlets, ReceiptReply
from deliveryd.receipts.reading import LONGEST_RAW, NOTHING, ReadReports, Report, Unread, at_once
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import CertificateMissing, Forged, Verified

_TRIED = "tried"
"""The name of the only provider that the endpoint has."""

SignatureResult = Literal["valid", "invalid", "unchecked"]


class ReceiptTable(NamedTuple):
    """How a provider reports: its options, the addresses that it calls, and `receipts.max_body`.

    `public_url` stands in front of each of `paths`. A preset alone has neither, and any path is its own.
    """

    options: ReceiptOptions
    max_body: int
    paths: Sequence[str] = ()
    public_url: str | None = None


class ReceiptTrial(NamedTuple):
    """What became of a request. `reason` says why the signature isn't valid, or what makes it valid.

    What can't be read is in `reading` whatever the signature is.
    """

    signature: SignatureResult
    reason: str | None
    reading: ReadReports
    reply: ReceiptReply


def receipt_table(offline: OfflineProvider) -> ReceiptTable:
    """Return how a provider reports. Raises DeliverydError if it doesn't."""
    provider, receipt, config = offline.provider, offline.options.receipt, offline.config
    if receipt is None:
        raise DeliverydError(f"{provider.identity} has no receipts; add [{provider.place}.receipt]")
    if config is None:
        return ReceiptTable(receipt, ReceiptsOptions().max_body)
    paths = [path for path, name in config.channels.receipt_paths.items() if name == provider.identity]
    return ReceiptTable(receipt, config.receipts.max_body, paths, config.receipts.public_url)


def try_receipts(
    table: ReceiptTable,
    raw: bytes,
    source: str,
    now: int,
    url: str | None = None,
    *,
    certificate: bytes | None = None,
) -> ReceiptTrial:
    """Try a request as it went over the wire. `url` is the address that was called, or its host alone.

    `certificate` is taken for the one that the signature names, of a scheme that has one.
    Raises DeliverydError if `source` isn't a request, or a secret can't be read.
    """
    if certificate is not None and not isinstance(table.options.signature, SnsSignature):
        raise UsageError("--certificate is for the scheme sns; this provider's signature has no certificate")
    try:
        parsed = parse_request(raw)
    except ValueError as error:
        raise DeliverydError(f"{source}: {error}") from None
    try:
        called = _called(parsed, table.public_url, url)
        trying = _Trying(table, called, now, certificate)
    except ValueError as error:
        raise DeliverydError(str(error)) from None
    reply = anyio.run(trying.answer, parsed)
    if trying.result is not None:
        return trying.result
    hint = f"; this one's are {', '.join(table.paths)}" if reply.status == NOTHING_HERE.status else ""
    return ReceiptTrial("unchecked", f"{reply.text}{hint}", NOTHING, reply)


class _Called(NamedTuple):
    """The address that a provider called."""

    base: str
    path: str
    query: bytes


class _Trying:
    """Takes in one request, as the worker does, and keeps what became of it in place of recording it."""

    def __init__(self, table: ReceiptTable, called: _Called, now: int, certificate: bytes | None) -> None:
        self._table = table
        self._inlet = Inlet(table.options, table.max_body)
        self._called = called
        self._now = now
        self._certificate = certificate
        self.result: ReceiptTrial | None = None

    async def answer(self, raw: RawRequest) -> ReceiptReply:
        """Send a request to the worker's endpoint; return the answer."""
        path = unquote(raw.path)
        paths = self._table.paths or (path.rstrip("/"),)
        inlets = Inlets({_TRIED: self._inlet}, dict.fromkeys(paths, _TRIED))
        endpoint = ReceiptEndpoint(inlets, self._take_in, lambda *_: None)
        scope: Scope = {
            "type": "http", "method": raw.method, "path": path, "raw_path": raw.path.encode("latin-1"),
            "query_string": raw.query, "headers": raw.headers,
        }  # fmt: skip
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": raw.body, "more_body": False}

        async def send(message: Message) -> None:
            messages.append(message)

        await endpoint(scope, receive, send)
        head, body = messages
        return ReceiptReply(head["status"], body["body"].decode())

    async def _take_in(self, _provider: str, request: ReceiptRequest) -> ReceiptReply:
        request.base, request.path, request.query = self._called
        self.result = self._tried(request)
        return self.result.reply

    def _tried(self, request: ReceiptRequest) -> ReceiptTrial:
        inlet = self._inlet
        if (challenged := inlet.answer_challenge(request)) is not None:
            reason: str | None = "the verification of the address isn't signed"
            return ReceiptTrial("unchecked", reason, NOTHING, challenged)
        signature: SignatureResult = "valid" if inlet.is_signed else "unchecked"
        reason = None if inlet.is_signed else "no signature is configured"
        try:
            content, vouched = self._verified(request)
            reason = vouched or reason
        except CertificateMissing as missing:
            content = self._inlet.unverified(request)
            signature, reason = "unchecked", f"{missing}; it would be fetched from {missing.url}"
        except Forged as error:
            content = self._inlet.unverified(request)
            signature, reason = "invalid", str(error)
        reading, reply = self._read(content)
        return ReceiptTrial(signature, reason, reading, inlet.refusal if signature == "invalid" else reply)

    def _verified(self, request: ReceiptRequest) -> tuple[Verified, str | None]:
        """Return what a genuine request holds, and who vouches for it. Raises Forged, CertificateMissing."""
        try:
            return self._inlet.verify(request, self._now), None
        except CertificateMissing as missing:
            if self._certificate is None:
                raise
            missing.trust(self._certificate)
        verified = self._inlet.verify(request, self._now)
        return verified, "by the given certificate; who issued it isn't checked"

    def _read(self, content: Verified) -> tuple[ReadReports, ReceiptReply]:
        if not isinstance(content, ReceiptRequest):
            return NOTHING, self._inlet.reply_to(content)
        try:
            return at_once(self._inlet.read(content, self._now)), self._inlet.reply
        except Unreadable as error:
            raw = (content.body or content.query).decode("utf-8", "replace")[:LONGEST_RAW]
            return ReadReports((), (Unread(raw, str(error)),)), ReceiptReply(400, str(error))


def _called(raw: RawRequest, public_url: str | None, url: str | None) -> _Called:
    """Return the address that was called: `url`, or the request's own path below `public_url`."""
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
    return _Called(base, path, query)


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
        "reports": [report_data(report) for report in trial.reading.reports],
        "answer": {"status": trial.reply.status, "body": trial.reply.text},
    }
    if trial.reading.unread:
        data["unreadable"] = [unread._asdict() for unread in trial.reading.unread]
    return data


def report_data(report: Report) -> dict[str, object]:
    """Return a report as JSON has it."""
    return {
        "provider_id": report.provider_id,
        "reference": report.reference,
        "word": report.word,
        "meaning": report.meaning,
        "consent": report.consent,
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


receipts = CommandGroup(no_args_is_help=True, help="Try what providers report.")


@receipts.command("test")
def try_request(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: TriedChannel = None,
    provider: ProviderOption = None,
    preset: PresetOption = None,
    keys: KeysOption = None,
    secrets: SecretsOption = None,
    presets_dir: PresetsDirOption = None,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The request as it was sent: request line, headers, body; or -."),
    ],
    at: AtOption = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address that the provider called; left out: receipts.public_url."),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificate of an SNS signature, PEM or DER; trusted as it is."),
    ] = None,
    as_data: AsData = False,
) -> None:
    """Try a provider's request offline.

    Prints whether its signature is valid, each report in it or why it can't be read, and the answer that the
    provider would get. Nothing is recorded, fetched or sent.

    Exit status 1: the answer isn't 2xx.
    """
    choice = ProviderChoice(config, channel, provider, preset, keys or (), secrets or (), presets_dir)
    table = receipt_table(offline_provider(choice))
    page = None if certificate is None else read_message(certificate)
    trial = try_receipts(table, read_message(file), file, instant_of(at), url, certificate=page)
    if as_data:
        print_json(trial_data(trial))
    else:
        print_lines(*trial_lines(trial))
    if not 200 <= trial.reply.status < 300:
        raise typer.Exit(1)
