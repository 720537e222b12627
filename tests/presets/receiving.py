"""Runs the cases of receipts and signatures: requests to the receipts server, on a real socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import anyio
import httpx

from deliveryd.channels.presets.catalogue import Preset
from deliveryd.commands.providers.preset_cases import CaseFile, ReceiptCase, SignatureCase
from deliveryd.commands.providers.preset_running import (
    PUBLIC_URL,
    OpenedCase,
    reply_differences,
    report_differences,
)
from deliveryd.http.server import serve
from deliveryd.receipts.endpoint import ReceiptEndpoint
from deliveryd.receipts.inlet import Inlet, Inlets, ReceiptReply
from deliveryd.receipts.reading import ReadReports, at_once
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import Forged
from support.plain_http import NO_TLS

LARGEST = 1 << 20


class Intake:
    """Verifies and reads what comes in, as the worker does, and keeps what was read in place of a journal."""

    def __init__(self, inlet: Inlet, now: int) -> None:
        self._inlet = inlet
        self._now = now
        self.readings: list[ReadReports] = []
        self.forged = 0
        self.verified = 0

    async def take_in(self, _provider: str, request: ReceiptRequest) -> ReceiptReply:
        """Answer one request."""
        if (challenged := self._inlet.answer_challenge(request)) is not None:
            return challenged
        try:
            verified = self._inlet.verify(request, self._now)
        except Forged:
            self.forged += 1
            return self._inlet.refusal
        assert isinstance(verified, ReceiptRequest)
        self.verified += 1
        try:
            self.readings.append(at_once(self._inlet.read(verified, self._now)))
        except Unreadable as error:
            return ReceiptReply(400, str(error))
        return self._inlet.reply


@asynccontextmanager
async def receipts_server(inlet: Inlet, intake: Intake, path: str, public: str) -> AsyncIterator[str]:
    """Serve one provider's address; yield the origin of the server."""
    inlets = Inlets({"x": inlet}, {path: "x"}, public)
    endpoint = ReceiptEndpoint(inlets, intake.take_in, lambda *_: None)
    bound = socket.create_server(("127.0.0.1", 0))
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(serve, endpoint, bound, stop)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        stop.set()


async def run_receipt(preset: Preset, file: CaseFile, case: ReceiptCase, folder: Path) -> list[str]:
    """Send a receipt, unsigned; return how the reports and the answer differ."""
    opened = OpenedCase(preset, file.given_to(case), folder)
    options = opened.options().receipt
    assert options is not None, "the preset has no receipts"
    inlet = Inlet(options.model_copy(update={"signature": None}), LARGEST)
    intake = Intake(inlet, opened.now)
    path = f"/receipts/{opened.block}"
    headers, body = case.written(case.headers)
    query = urlencode(case.query, doseq=True)
    async with receipts_server(inlet, intake, path, PUBLIC_URL) as origin:
        address = f"{origin}{path}{'?' if query else ''}{query}"
        answer = await _sent(case.method, address, body, headers)
    reports = [report for reading in intake.readings for report in reading.reports]
    return [
        *report_differences(case, reports, opened.now),
        *reply_differences(case, answer.status_code, answer.text),
    ]


async def _sent(method: str, address: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as client:
        return await client.request(method, address, content=body, headers=dict(headers))


async def run_signature(preset: Preset, file: CaseFile, case: SignatureCase, folder: Path) -> list[str]:
    """Send a signed receipt; return how its verification differs."""
    opened = OpenedCase(preset, file.given_to(case), folder)
    options = opened.options().receipt
    assert options is not None, "the preset has no receipts"
    assert options.signature is not None, "the preset has no signature"
    inlet = Inlet(options, LARGEST)
    intake = Intake(inlet, opened.now)
    called = urlsplit(case.url)
    path = called.path.rpartition("/")[0] if inlet.has_token_in_path else called.path.rstrip("/")
    headers, body = case.written(case.headers)
    async with receipts_server(inlet, intake, path, f"{called.scheme}://{called.netloc}") as origin:
        await _sent(case.method, origin + case.url.partition(called.netloc)[2], body, headers)
    seen = "invalid" if intake.forged else "valid" if intake.verified else "not verified at all"
    return [] if seen == case.expect else [f"expected {case.expect}, got {seen}"]
