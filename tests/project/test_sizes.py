"""The sizes of functions and files, as CONTRIBUTING states them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support.places import ROOT

SOURCE = ROOT / "src" / "deliveryd"
LONGEST_FUNCTION, LONGEST_FILE = 60, 500

LONGER = {
    "commands/lint/lint.py:lint",
    "commands/sandbox/sandbox.py:sandbox",
    "config.py",
    "journal/journal.py",
    "journal/postgresql/journal.py",
    "metrics.py:__init__",
    "model.py",
    "worker/supervisor.py",
    "worker/wiring.py:assemble",
}
"""What is longer, to be made shorter: nothing is added."""


def _longer() -> Iterator[str]:
    for path in sorted(SOURCE.glob("**/*.py")):
        name = path.relative_to(SOURCE).as_posix()
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > LONGEST_FILE:
            yield name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION:
                    yield f"{name}:{node.name}"


def test_what_is_longer_than_it_should_be_is_listed() -> None:
    """A new function or file keeps to the sizes; one that was made shorter leaves the list."""
    assert set(_longer()) == LONGER
