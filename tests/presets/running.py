"""Runs a case of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deliveryd.channels.preset_catalogue import Preset
from presets.cases import AnswerCase, CaseFile, LookupCase, ReceiptCase, RequestCase, SignatureCase
from presets.receiving import receipt_differences, signature_differences
from presets.sending import answer_differences, lookup_differences, request_differences

Case = RequestCase | AnswerCase | LookupCase | ReceiptCase | SignatureCase


async def differences(preset: Preset, file: CaseFile, case: Case, folder: Path) -> list[str]:
    """Run a case with files in `folder`; return how what happened differs from what it says."""
    match case:
        case RequestCase():
            return await request_differences(preset, file, case, folder)
        case AnswerCase():
            return await answer_differences(preset, file, case, folder)
        case LookupCase():
            return await lookup_differences(preset, file, case, folder)
        case ReceiptCase():
            return await receipt_differences(preset, file, case, folder)
        case SignatureCase():
            return await signature_differences(preset, file, case, folder)


def labelled(file: CaseFile) -> Iterator[tuple[str, Case]]:
    """Yield the cases of a file, each with a label: its kind, its rows and what it says."""
    for kind in ("request", "answer", "lookup", "receipt", "signature"):
        for number, case in enumerate(getattr(file, kind), 1):
            said = f" {case.says}" if case.says else ""
            yield f"{kind} {number} ({', '.join(case.row)}){said}", case
