"""The pages of docs/, wherever below it they lie, and their blocks of code."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> Path:
    """The one page with this file name."""
    (found,) = DOCS.rglob(name)
    return found


def blocks_of(document: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language, in order."""
    text = document.read_text(encoding="utf-8")
    return [block for fenced, block in BLOCK.findall(text) if fenced == language]
