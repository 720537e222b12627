"""How what happened differs from what a case of a preset says, a line for each difference."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from deliveryd.channels.base import AskLater, Found, NotTaken, Refused, Taken, Unknown, Verdict
from deliveryd.commands.providers.answers import VERDICT_NAMES
from deliveryd.commands.providers.preset_cases import (
    AnswerCase,
    CaseBody,
    ExpectedReport,
    ExpectedRequest,
    LookupCase,
    ReceiptCase,
)
from deliveryd.commands.providers.preset_given import micros, written_body
from deliveryd.model import format_instant
from deliveryd.receipts.reading import Report

FOUND_NAMES: Mapping[type[Found], str] = {
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


def request_differences(expected: ExpectedRequest, sent: SentRequest) -> Iterator[str]:
    """Yield how a request differs."""
    target = urlsplit(sent.target)
    yield from _differs("method", expected.method, sent.method)
    yield from _differs("path", expected.path, target.path)
    yield from _differs("query", _lists(expected.query), parse_qs(target.query, keep_blank_values=True))
    headers = dict(expected.headers)
    if expected.basic is not None:
        login = base64.b64encode(":".join(expected.basic).encode()).decode()
        headers["Authorization"] = f"Basic {login}"
    for name, value in headers.items():
        yield from _differs(f"header {name}", value, sent.headers.get(name.lower()))
    yield from _body_differences(expected, sent)


def _body_differences(expected: CaseBody, sent: SentRequest) -> Iterator[str]:
    kind = sent.headers.get("content-type", "").partition(";")[0]
    if expected.json_body is not None:
        yield from _differs("content type", "application/json", kind)
        yield from _differs("json", expected.json_body, _parsed(sent.body))
    elif expected.form is not None:
        yield from _differs("content type", "application/x-www-form-urlencoded", kind)
        form = parse_qs(sent.body.decode("ascii", "replace"), keep_blank_values=True)
        yield from _differs("form", _lists(expected.form), form)
    else:
        yield from _differs("body", written_body(expected)[0], sent.body)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _lists(values: Mapping[str, str | list[str]]) -> dict[str, list[str]]:
    return {name: [value] if isinstance(value, str) else value for name, value in values.items()}


def _differs(what: str, expected: object, got: object) -> Iterator[str]:
    if expected != got:
        yield f"{what}: expected {expected!r}, got {got!r}"


def verdict_differences(case: AnswerCase, verdict: Verdict) -> Iterator[str]:
    """Yield how a verdict differs."""
    name = VERDICT_NAMES.get(type(verdict), type(verdict).__name__)
    yield from _differs("verdict", case.verdict, name)
    yield from _differs("provider_id", case.provider_id, getattr(verdict, "provider_id", None))
    after = getattr(verdict, "after", None)
    if after != case.after and (after is None or case.after is None or abs(after - case.after) > 1):
        yield f"after: expected {case.after}, got {after}"
    if case.only_this is not None:
        only_this = (
            verdict.by is None if isinstance(verdict, Refused) else getattr(verdict, "only_this", None)
        )
        yield from _differs("only_this", case.only_this, only_this)
    if case.words is not None:
        yield from _differs("words", case.words, getattr(verdict, "words", None))


def lookup_differences(case: LookupCase, found: Found, asked: SentRequest | None) -> Iterator[str]:
    """Yield how what was found differs, and the question `asked`."""
    yield from _differs("verdict", case.verdict, FOUND_NAMES[type(found)])
    yield from _differs("provider_id", case.provider_id, getattr(found, "provider_id", None))
    if case.expect is not None:
        yield from ["no request was made"] if asked is None else request_differences(case.expect, asked)


def report_differences(case: ReceiptCase, reports: Sequence[Report], now: int) -> Iterator[str]:
    """Yield how reports that arrived at `now` differ."""
    if len(reports) != len(case.reports):
        count = len(case.reports)
        yield f"expected {count} report{'' if count == 1 else 's'}, got {[_told(each) for each in reports]}"
        return
    for number, (expected, got) in enumerate(zip(case.reports, reports, strict=True), 1):
        wanted = _expected(expected, now)
        told = {name: value for name, value in _told(got).items() if name in wanted}
        for name, value in wanted.items():
            yield from _differs(f"report {number}: {name}", value, told[name])


def _expected(report: ExpectedReport, now: int) -> dict[str, Any]:
    """Return what a case says of a report; a word or a recipient that it doesn't say is left out."""
    said = report.model_dump(exclude_none=True)
    at = micros(report.at) if report.at is not None else now
    return {"provider_id": None, "reference": None, "consent": None, **said, "at": format_instant(at)}


def _told(report: Report) -> dict[str, Any]:
    return {
        "provider_id": report.provider_id,
        "reference": report.reference,
        "word": report.word,
        "meaning": report.meaning,
        "consent": report.consent,
        "recipient": report.recipient,
        "at": format_instant(report.at),
    }


def reply_differences(case: ReceiptCase, status: int, text: str) -> Iterator[str]:
    """Yield how the answer to a receipt differs."""
    if status != case.answer.status:
        yield f"answer: expected {case.answer.status}, got {status} {text!r}"
    elif status < 300 and text != case.answer.body:
        yield f"answer: expected {case.answer.body!r}, got {text!r}"
