"""Runs a case of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deliveryd.channels.presets.catalogue import Preset
from deliveryd.commands.providers.preset_cases import (
    AnswerCase,
    Case,
    CaseFile,
    LookupCase,
    ReceiptCase,
    RequestCase,
    SignatureCase,
)
from presets.receiving import run_receipt, run_signature
from presets.sending import run_answer, run_lookup, run_request


async def differences(preset: Preset, file: CaseFile, case: Case, folder: Path) -> list[str]:
    """Run a case with files in `folder`; return how what happened differs from what it says."""
    match case:
        case RequestCase():
            return await run_request(preset, file, case, folder)
        case AnswerCase():
            return await run_answer(preset, file, case, folder)
        case LookupCase():
            return await run_lookup(preset, file, case, folder)
        case ReceiptCase():
            return await run_receipt(preset, file, case, folder)
        case SignatureCase():
            return await run_signature(preset, file, case, folder)


def labelled(file: CaseFile) -> Iterator[tuple[str, Case]]:
    """Yield the cases of a file, each with a label: its kind, its rows and what it says."""
    for kind, number, case in file.cases():
        said = f" {case.says}" if case.says else ""
        yield f"{kind} {number} ({', '.join(case.row)}){said}", case
