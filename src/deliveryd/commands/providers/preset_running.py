"""Runs a case of a preset: what it is given, opened, and how what happens differs from what it says."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio

from deliveryd.channels.base import (
    AskLater,
    Channel,
    Dispatch,
    Found,
    NotTaken,
    Refused,
    Taken,
    Unknown,
    Verdict,
)
from deliveryd.channels.devices import DevicesChannel
from deliveryd.channels.http.adapter import open_http_channel
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import Preset
from deliveryd.channels.presets.table import expand
from deliveryd.commands.providers.preset_cases import (
    AnswerCase,
    Case,
    CaseFile,
    ExpectedReport,
    ExpectedRequest,
    Given,
    LookupCase,
    ReceiptCase,
    RequestCase,
    SignatureCase,
)
from deliveryd.commands.providers.receipts import ReceiptTable, report_data, try_receipts
from deliveryd.commands.providers.trying import answer_reader, row_text, verdict_name
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse
from deliveryd.model import Customer, Entry, Rendered, format_instant
from deliveryd.options.file import ConfigFile
from deliveryd.receipts.reading import Report

PUBLIC_URL = "https://receipts.example"
USUAL_INSTANT = datetime(2026, 11, 21, 18, 40, tzinfo=UTC)
_ORIGIN = "http://127.0.0.1:1"
"""Stands for the provider's host; nothing is connected."""
_LARGEST = 1 << 20
_MESSAGE: Mapping[str, Any] = {"id": 12, "customerId": 7, "settingsId": 3, "key": "m-12-1"}
_FOUND_NAMES: Mapping[type[Found], str] = {
    Taken: "taken",
    NotTaken: "not_taken",
    Unknown: "unknown",
    AskLater: "unknown",
}


class SentRequest(NamedTuple):
    """A request that went out. `target` is the path with the query; header names are lower-case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class StillClock:
    """A clock that stands at one instant."""

    def __init__(self, at: int) -> None:
        self._at = at

    def now(self) -> int:
        """Return the instant, in microseconds."""
        return self._at


def _micros(at: datetime) -> int:
    """Return an instant in microseconds; without a zone it is UTC."""
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1_000_000)


class OpenedCase:
    """A preset with what a case gives it: the provider that it makes, and the message to send.

    Secrets become files in `folder`; the API is at `origin`.
    """

    def __init__(self, preset: Preset, given: Given, folder: Path, origin: str = _ORIGIN) -> None:
        self.preset = preset
        self.given = given
        self.block = given.block or preset.file.channels[0]
        self.now = _micros(given.at or USUAL_INSTANT)
        self._folder = folder
        self._origin = origin

    def options(self) -> HttpChannelOptions:
        """Return the options of the provider. Raises ConfigError, DeliverydError."""
        secrets = self.given.secrets
        missing = [
            f"given.secrets.{name} is missing: its value ({secret.description})"
            for name, secret in self.preset.file.secrets.items()
            if secret.required and name not in secrets
        ]
        if missing:
            raise DeliverydError("; ".join(missing))
        made = expand(self.preset.file, self._table(), self.block, ProviderTable.model_fields)
        if made.problems:
            raise DeliverydError("; ".join(f"given: {key} {text}" for key, text in made.problems))
        beside = (*ProviderTable.model_fields, "auth")  # tokens aren't part of a case
        own = {name: value for name, value in made.table.items() if name not in beside}
        if own.get("http2"):
            own["http2"] = False  # the same requests and answers, over what a case is run with
        file = ConfigFile(self.preset.path, {}, ())
        options = file.validate(HttpChannelOptions, own, "table")
        if options is None:
            raise ConfigError(file.problems)
        signature = options.receipt.signature if options.receipt is not None else None
        if signature is not None and signature.secret is not None:
            least = signature.least_secret
            if any(len(value) < least for value in secrets.get(signature.secret, ())):
                raise DeliverydError(f"given.secrets.{signature.secret}: at least {least} characters")
        return options

    def _table(self) -> dict[str, Any]:
        """Return what an operator would write: the keys, and secrets in files."""
        given, base = self.given, self.preset.file.keys.get("base_url")
        secrets = {name: self._secret_files(name, values) for name, values in given.secrets.items()}
        own = (
            {}
            if base is None
            else {"base_url": self._origin + urlsplit(str(base.default or base.example)).path}
        )
        return {**given.table, **own, **given.keys, **({"secrets": secrets} if secrets else {})}

    def _secret_files(self, name: str, values: Sequence[str]) -> str | list[str]:
        paths = []
        for index, value in enumerate(values):
            path = self._folder / f"{name}-{index}"
            path.touch(mode=0o600)
            path.write_text(value, encoding="utf-8")
            paths.append(str(path))
        return paths[0] if len(paths) == 1 else paths

    def dispatch(self) -> Dispatch:
        """Return the attempt to send the message of the case. Raises DeliverydError."""
        given, message = self.given, {**_MESSAGE, **self.given.message}
        unknown = set(message) - {*_MESSAGE, "expiresAt"}
        if unknown:
            raise DeliverydError(f"given.message: there is no {', '.join(sorted(unknown))}")
        if not isinstance(message.get("expiresAt", self.now), datetime | int):
            raise DeliverydError("given.message.expiresAt: expected a date and time without quotes")
        entry = Entry(
            message["id"], message["settingsId"], message["customerId"], given.variables, stay_tries=1,
            begun_at=self.now,
        )  # fmt: skip
        return Dispatch(
            message["key"],
            entry,
            Customer(message["customerId"], given.customer),
            Rendered(self.block, "en", given.content),
            _micros(message["expiresAt"]) if "expiresAt" in message else None,
            StillClock(self.now),
        )


class CaseResult(NamedTuple):
    """How a case differs. `decided_by` is the row of `answers` that decided about an answer, for people.

    `row` is its number in `table.answers`, from 1.
    """

    differences: Sequence[str]
    decided_by: str | None = None
    row: int | None = None


def run_case(preset: Preset, file: CaseFile, case: Case, folder: Path) -> CaseResult:
    """Run a case offline, with files in `folder`. Raises ConfigError, DeliverydError."""
    opened = OpenedCase(preset, file.given_to(case), folder)
    match case:
        case RequestCase():
            return CaseResult(list(_request(opened, case)))
        case AnswerCase():
            return _answer(opened, case)
        case LookupCase():
            wire = _Offline(_response(case))
            found = anyio.run(_found, opened, wire)
            return CaseResult(list(lookup_differences(case, found, wire.sent)))
        case ReceiptCase():
            return CaseResult(list(_receipt(opened, case)))
        case SignatureCase():
            return CaseResult(list(_signature(opened, case)))


class _Offline:
    """A wire that answers every request at once, and keeps the last."""

    def __init__(self, answer: WireResponse) -> None:
        self._answer = answer
        self.sent: SentRequest | None = None

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        """Keep the request and return the answer."""
        del deadline, max_body
        if check is not None:
            check()
        named = {name.decode().lower(): value.decode("latin-1") for name, value in headers}
        self.sent = SentRequest(method, target.path.decode("ascii"), named, body)
        return self._answer

    async def aclose(self) -> None:
        """Release nothing."""


def _channel(opened: OpenedCase, wire: _Offline) -> Channel:
    options = opened.options().reporting_to(f"{PUBLIC_URL}/receipts/{opened.block}")
    channel = open_http_channel(opened.block, opened.block, options, 5.0, wire)
    return channel if options.devices_field is None else DevicesChannel(channel, options.devices_field)


def _request(opened: OpenedCase, case: RequestCase) -> Iterator[str]:
    wire = _Offline(WireResponse(200, {}, b""))
    is_reached, verdict = anyio.run(_sent, opened, wire)
    if case.unreachable or not is_reached:
        if case.unreachable != (not is_reached):
            yield f"reaches the customer: {is_reached}"
    elif case.unfit:
        if not isinstance(verdict, Refused) or wire.sent is not None:
            yield f"not refused before the request: {verdict}"
    elif wire.sent is None:
        yield f"no request was made: {getattr(verdict, 'reason', verdict)}"
    elif case.expect is not None:
        yield from request_differences(case.expect, wire.sent)


async def _sent(opened: OpenedCase, wire: _Offline) -> tuple[bool, Verdict | None]:
    channel, dispatch = _channel(opened, wire), opened.dispatch()
    if not channel.reaches(dispatch.customer):
        return False, None
    return True, await channel.send(dispatch)


async def _found(opened: OpenedCase, wire: _Offline) -> Found:
    return await _channel(opened, wire).look_up(opened.dispatch())


def _answer(opened: OpenedCase, case: AnswerCase) -> CaseResult:
    options = opened.options()
    reader = answer_reader(options, options.url, opened.now)
    answer = _response(case)
    position = reader.row(answer)
    own = opened.preset.file.blocks.get(opened.block, {})
    row = position + 1 if position is not None and "answers" not in own else None
    differences = list(verdict_differences(case, reader.verdict(answer)))
    return CaseResult(differences, row_text(options, position), row)


def _response(case: AnswerCase | LookupCase) -> WireResponse:
    headers, body = case.written(case.headers)
    return WireResponse(case.status, {name.lower(): value for name, value in headers.items()}, body)


def _receipt(opened: OpenedCase, case: ReceiptCase) -> Iterator[str]:
    options = opened.options().receipt
    if options is None:
        yield "the preset has no [table.receipt]"
        return
    path = f"/receipts/{opened.block}"
    query = urlencode(case.query, doseq=True)
    raw = _raw_request(case, f"{path}{'?' if query else ''}{query}", PUBLIC_URL)
    table = ReceiptTable(options.model_copy(update={"signature": None}), _LARGEST, (path,), PUBLIC_URL)
    trial = try_receipts(table, raw, "the request", opened.now)
    yield from report_differences(case, trial.reading.reports, opened.now)
    yield from reply_differences(case, trial.reply.status, trial.reply.text)


def _signature(opened: OpenedCase, case: SignatureCase) -> Iterator[str]:
    options = opened.options().receipt
    if options is None or options.signature is None:
        yield "the preset has no [table.receipt] with a signature"
        return
    raw = _raw_request(case, urlsplit(case.url)._replace(scheme="", netloc="").geturl(), case.url)
    trial = try_receipts(ReceiptTable(options, _LARGEST), raw, "the request", opened.now, case.url)
    if trial.signature != case.expect:
        because = f": {trial.reason}" if trial.reason is not None else ""
        yield f"signature: expected {case.expect}, got {trial.signature}{because}"


def _raw_request(case: ReceiptCase | SignatureCase, target: str, url: str) -> bytes:
    """Return a request as it would go over the wire."""
    headers, body = case.written(case.headers)
    if "host" not in map(str.lower, headers):
        headers["Host"] = urlsplit(url).netloc
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{case.method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _differences(expected: Mapping[str, object], got: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each expected value that is another one."""
    for what, value in expected.items():
        if got.get(what) != value:
            yield f"{what}: expected {value!r}, got {got.get(what)!r}"


def request_differences(case: ExpectedRequest, sent: SentRequest) -> Iterator[str]:
    """Yield how a request differs."""
    target = urlsplit(sent.target)
    headers = dict(case.headers)
    if case.basic is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(':'.join(case.basic).encode()).decode()}"
    expected: dict[str, object] = {"method": case.method, "path": case.path, "query": _lists(case.query)}
    expected |= {f"header {name}": value for name, value in headers.items()}
    got: dict[str, object] = {
        "method": sent.method,
        "path": target.path,
        "query": parse_qs(target.query, keep_blank_values=True),
        **{f"header {name}": sent.headers.get(name.lower()) for name in headers},
        "content type": sent.headers.get("content-type", "").partition(";")[0],
    }
    if case.json_body is not None:
        kind = "application/json" if "Content-Type" not in headers else got["content type"]
        expected |= {"content type": kind, "json": case.json_body}
        got["json"] = _parsed(sent.body)
    elif case.form is not None:
        expected |= {"content type": "application/x-www-form-urlencoded", "form": _lists(case.form)}
        got["form"] = parse_qs(sent.body.decode("ascii", "replace"), keep_blank_values=True)
    else:
        expected["body"] = case.written({})[1]
        got["body"] = sent.body
    return _differences(expected, got)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _lists(values: Mapping[str, str | list[str]]) -> dict[str, list[str]]:
    return {name: [value] if isinstance(value, str) else value for name, value in values.items()}


def verdict_differences(case: AnswerCase, verdict: Verdict) -> Iterator[str]:
    """Yield how a verdict differs; seconds may by one."""
    after = getattr(verdict, "after", None)
    is_near = after is not None and case.after is not None and abs(after - case.after) <= 1
    only_this = verdict.by is None if isinstance(verdict, Refused) else getattr(verdict, "only_this", None)
    expected: dict[str, object] = {
        "verdict": case.verdict,
        "provider_id": case.provider_id,
        "after": case.after,
    }
    if_given = {"only_this": case.only_this, "words": case.words}
    got = {
        "verdict": verdict_name(verdict),
        "provider_id": getattr(verdict, "provider_id", None),
        "after": case.after if is_near else after,
        "only_this": only_this,
        "words": getattr(verdict, "words", None),
    }
    expected |= {name: value for name, value in if_given.items() if value is not None}
    return _differences(expected, got)


def lookup_differences(case: LookupCase, found: Found, asked: SentRequest | None) -> Iterator[str]:
    """Yield how what was found differs, and the question `asked`."""
    got = {"verdict": _FOUND_NAMES[type(found)], "provider_id": getattr(found, "provider_id", None)}
    yield from _differences({"verdict": case.verdict, "provider_id": case.provider_id}, got)
    if case.expect is not None:
        yield from ["no request was made"] if asked is None else request_differences(case.expect, asked)


def report_differences(case: ReceiptCase, reports: Sequence[Report], now: int) -> Iterator[str]:
    """Yield how reports that arrived at `now` differ."""
    received = [{**report_data(each), "recipient": each.recipient} for each in reports]
    if len(reports) != len(case.reports):
        count = len(case.reports)
        yield f"expected {count} report{'' if count == 1 else 's'}, got {received}"
        return
    for number, (expected, got) in enumerate(zip(case.reports, received, strict=True), 1):
        yield from (f"report {number}: {each}" for each in _differences(_expected(expected, now), got))


def _expected(report: ExpectedReport, now: int) -> dict[str, Any]:
    """Return what a case says of a report; a word or a recipient that it doesn't say is left out."""
    said = report.model_dump(exclude_none=True)
    at = _micros(report.at) if report.at is not None else now
    return {"provider_id": None, "reference": None, "consent": None, **said, "at": format_instant(at)}


def reply_differences(case: ReceiptCase, status: int, text: str) -> Iterator[str]:
    """Yield how the answer to a receipt differs."""
    if status != case.answer.status:
        yield f"answer: expected {case.answer.status}, got {status} {text!r}"
    elif status < 300 and text != case.answer.body:
        yield f"answer: expected {case.answer.body!r}, got {text!r}"
