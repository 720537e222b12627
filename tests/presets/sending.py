"""Runs the cases of requests, answers and lookups: the adapter against a gateway on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from deliveryd.channels.base import Channel, Refused
from deliveryd.channels.presets.catalogue import Preset
from deliveryd.channels.registry import open_adapter
from deliveryd.commands.providers.preset_cases import AnswerCase, CaseFile, LookupCase, RequestCase
from deliveryd.commands.providers.preset_running import (
    PUBLIC_URL,
    OpenedCase,
    SentRequest,
    lookup_differences,
    request_differences,
    verdict_differences,
)
from deliveryd.testing.gateway import Gateway, GatewayRequest, Reply, open_gateway


@asynccontextmanager
async def provider(opened: OpenedCase) -> AsyncIterator[Channel]:
    """Open what the preset makes."""
    block = opened.block
    channel = open_adapter(
        block, block, "http", opened.options(), timeout=5.0, receipt_url=f"{PUBLIC_URL}/receipts/{block}"
    )
    try:
        yield channel
    finally:
        await channel.aclose()


async def run_request(preset: Preset, file: CaseFile, case: RequestCase, folder: Path) -> list[str]:
    """Send the message of a case; return how the request differs from the expected one."""
    async with _opened(preset, file, case, folder) as (opened, gateway), provider(opened) as channel:
        dispatch = opened.dispatch()
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


@asynccontextmanager
async def _opened(
    preset: Preset, file: CaseFile, case: RequestCase | AnswerCase | LookupCase, folder: Path
) -> AsyncIterator[tuple[OpenedCase, Gateway]]:
    """Open a case with a gateway in the provider's place, which answers as the case says."""
    async with open_gateway() as gateway:
        if not isinstance(case, RequestCase):
            headers, body = case.written(case.headers)
            gateway.respond = lambda _request: Reply(case.status, body, tuple(headers.items()))
        yield OpenedCase(preset, file.given_to(case), folder, gateway.url), gateway


async def run_answer(preset: Preset, file: CaseFile, case: AnswerCase, folder: Path) -> list[str]:
    """Send the message of the first request and answer it; return how the verdict differs."""
    async with _opened(preset, file, case, folder) as (opened, _), provider(opened) as channel:
        return list(verdict_differences(case, await channel.send(opened.dispatch())))


async def run_lookup(preset: Preset, file: CaseFile, case: LookupCase, folder: Path) -> list[str]:
    """Ask about the message of the first request; return how the question or what was found differs."""
    async with _opened(preset, file, case, folder) as (opened, gateway), provider(opened) as channel:
        found = await channel.look_up(opened.dispatch())
        asked = _sent(gateway.seen[0]) if gateway.seen else None
        return list(lookup_differences(case, found, asked))
