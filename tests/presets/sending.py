"""Runs the cases of requests, answers and lookups: the adapter against a gateway on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from deliveryd.channels.base import Channel, Refused
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import Preset
from deliveryd.channels.registry import open_adapter
from deliveryd.commands.providers.preset_cases import AnswerCase, CaseFile, Given, LookupCase, RequestCase
from deliveryd.commands.providers.preset_differences import (
    SentRequest,
    lookup_differences,
    request_differences,
    verdict_differences,
)
from deliveryd.commands.providers.preset_given import (
    block_of,
    dispatch_of,
    expanded,
    merged,
    of_first_request,
    written_body,
)
from deliveryd.testing.gateway import Gateway, GatewayRequest, Reply, open_gateway

PUBLIC_URL = "https://receipts.example"


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


async def run_request(preset: Preset, file: CaseFile, case: RequestCase, folder: Path) -> list[str]:
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
        return list(request_differences(case.expect, _sent(gateway.seen[0])))


def _sent(request: GatewayRequest) -> SentRequest:
    return SentRequest(*request)


async def run_answer(preset: Preset, file: CaseFile, case: AnswerCase, folder: Path) -> list[str]:
    """Send the message of the first request and answer it; return how the verdict differs."""
    given = of_first_request(file, case.given)
    body, kind = written_body(case)
    headers = {**({"Content-Type": kind} if kind else {}), **case.headers}
    async with open_gateway() as gateway:
        gateway.respond = lambda _request: Reply(case.status, body, tuple(headers.items()))
        async with provider(preset, given, folder, gateway) as channel:
            verdict = await channel.send(dispatch_of(preset, given))
    return list(verdict_differences(case, verdict))


async def run_lookup(preset: Preset, file: CaseFile, case: LookupCase, folder: Path) -> list[str]:
    """Ask about the message of the first request; return how the question or what was found differs."""
    given = of_first_request(file, case.given)
    body, kind = written_body(case)
    headers = {**({"Content-Type": kind} if kind else {}), **case.headers}
    async with open_gateway() as gateway:
        gateway.respond = lambda _request: Reply(case.status, body, tuple(headers.items()))
        async with provider(preset, given, folder, gateway) as channel:
            found = await channel.look_up(dispatch_of(preset, given))
        asked = _sent(gateway.seen[0]) if gateway.seen else None
        return list(lookup_differences(case, found, asked))
