"""Runs the cases of requests, answers and lookups: the adapter against a gateway on a real socket."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from deliveryd.channels.base import (
    Accepted,
    AskLater,
    Channel,
    Found,
    InDoubt,
    Misconfigured,
    NotTaken,
    Refused,
    Stopped,
    Taken,
    TryAgain,
    Unknown,
    Verdict,
)
from deliveryd.channels.http_options import HttpChannelOptions
from deliveryd.channels.options import ProviderTable
from deliveryd.channels.preset_catalogue import Preset
from deliveryd.channels.registry import open_adapter
from deliveryd.testing.gateway import Gateway, GatewayRequest, Reply, open_gateway
from presets.cases import AnswerCase, Body, CaseFile, ExpectedRequest, Given, LookupCase, RequestCase
from presets.given import block_of, dispatch_of, expanded, merged, written

PUBLIC_URL = "https://receipts.example"

VERDICTS: Mapping[type, str] = {
    Accepted: "accepted",
    Refused: "refused",
    Stopped: "stopped",
    TryAgain: "try_again",
    InDoubt: "in_doubt",
    Misconfigured: "misconfigured",
}

FOUND: Mapping[type[Found], str] = {
    Taken: "taken",
    NotTaken: "not_taken",
    Unknown: "unknown",
    AskLater: "unknown",
}


@asynccontextmanager
async def provider(preset: Preset, given: Given, folder: Path, gateway: Gateway) -> AsyncIterator[Channel]:
    """Open what the preset makes, with the gateway in the provider's place."""
    table = expanded(preset, given, folder, gateway.url)
    own = {name: value for name, value in table.items() if name not in ProviderTable.model_fields}
    options = HttpChannelOptions.model_validate(own)
    block = block_of(preset, given)
    channel = open_adapter(
        block, block, "http", options, timeout=5.0, receipt_url=f"{PUBLIC_URL}/receipts/{block}"
    )
    try:
        yield channel
    finally:
        await channel.aclose()


async def request_differences(preset: Preset, file: CaseFile, case: RequestCase, folder: Path) -> list[str]:
    """Send the message of a case; return how the request differs from the expected one."""
    given = merged(file.given, case)
    dispatch = dispatch_of(preset, given)
    async with open_gateway() as gateway, provider(preset, given, folder, gateway) as channel:
        reached = channel.reaches(dispatch.customer)
        if case.unreachable or not reached:
            return [] if case.unreachable and not reached else [f"reaches the customer: {reached}"]
        verdict = await channel.send(dispatch)
        if case.unfit:
            refused = isinstance(verdict, Refused) and not gateway.seen
            return [] if refused else [f"not refused before the request: {verdict}"]
        if not gateway.seen:
            return [f"no request was made: {verdict}"]
        assert case.expect is not None
        return list(_differences(case.expect, gateway.seen[0]))


def _differences(expected: ExpectedRequest, seen: GatewayRequest) -> Iterator[str]:
    target = urlsplit(seen.target)
    yield from _differs("method", expected.method, seen.method)
    yield from _differs("path", expected.path, target.path)
    query = parse_qs(target.query, keep_blank_values=True)
    yield from _differs("query", _lists(expected.query), query)
    headers = dict(expected.headers)
    if expected.basic is not None:
        login = base64.b64encode(":".join(expected.basic).encode()).decode()
        headers["Authorization"] = f"Basic {login}"
    for name, value in headers.items():
        yield from _differs(f"header {name}", value, seen.headers.get(name.lower()))
    yield from _body_differences(expected, seen)


def _body_differences(expected: Body, seen: GatewayRequest) -> Iterator[str]:
    kind = seen.headers.get("content-type", "").partition(";")[0]
    if expected.json_body is not None:
        yield from _differs("content type", "application/json", kind)
        yield from _differs("json", expected.json_body, _parsed(seen.body))
    elif expected.form is not None:
        yield from _differs("content type", "application/x-www-form-urlencoded", kind)
        form = parse_qs(seen.body.decode("ascii", "replace"), keep_blank_values=True)
        yield from _differs("form", _lists(expected.form), form)
    else:
        yield from _differs("body", written(expected)[0], seen.body)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _lists(values: Mapping[str, str | list[str]]) -> dict[str, list[str]]:
    return {name: [value] if isinstance(value, str) else value for name, value in values.items()}


def _differs(what: str, expected: object, seen: object) -> Iterator[str]:
    if expected != seen:
        yield f"{what}: expected {expected!r}, got {seen!r}"


async def answer_differences(preset: Preset, file: CaseFile, case: AnswerCase, folder: Path) -> list[str]:
    """Send the message of the first request and answer it; return how the verdict differs."""
    given = merged(merged(file.given, _parts(file.request[0])), case.given)
    body, kind = written(case)
    headers = {**({"Content-Type": kind} if kind else {}), **case.headers}
    async with open_gateway() as gateway:
        gateway.respond = lambda _request: Reply(case.status, body, tuple(headers.items()))
        async with provider(preset, given, folder, gateway) as channel:
            verdict = await channel.send(dispatch_of(preset, given))
    return list(_verdict_differences(case, verdict))


def _parts(case: RequestCase) -> Given:
    return Given(**{name: getattr(case, name) for name in Given.model_fields})


def _verdict_differences(case: AnswerCase, verdict: Verdict) -> Iterator[str]:
    name = VERDICTS.get(type(verdict), type(verdict).__name__)
    yield from _differs("verdict", case.verdict, name)
    yield from _differs("provider_id", case.provider_id, getattr(verdict, "provider_id", None))
    after = getattr(verdict, "after", None)
    if after != case.after and (after is None or case.after is None or abs(after - case.after) > 1):
        yield f"after: expected {case.after}, got {after}"
    for part in ("only_this", "words"):
        if (expected := getattr(case, part)) is not None:
            yield from _differs(part, expected, getattr(verdict, part, None))


async def lookup_differences(preset: Preset, file: CaseFile, case: LookupCase, folder: Path) -> list[str]:
    """Ask about the message of the first request; return how the question or what was found differs."""
    given = merged(merged(file.given, _parts(file.request[0])), case.given)
    body, kind = written(case)
    headers = {**({"Content-Type": kind} if kind else {}), **case.headers}
    async with open_gateway() as gateway:
        gateway.respond = lambda _request: Reply(case.status, body, tuple(headers.items()))
        async with provider(preset, given, folder, gateway) as channel:
            found = await channel.look_up(dispatch_of(preset, given))
        differing = [
            *_differs("verdict", case.verdict, FOUND[type(found)]),
            *_differs("provider_id", case.provider_id, getattr(found, "provider_id", None)),
        ]
        if case.expect is not None:
            differing += _differences(case.expect, gateway.seen[0])
    return differing
