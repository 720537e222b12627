"""The command line as somebody at a terminal uses it: arguments in, status and both outputs out."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys
from typing import Any, NamedTuple

import pytest

from deliveryd.commands.app import Program, run_program

_load = Program.load
_loaded: dict[str, Any] = {}
"""Commands by name: typer takes longer to build one than most tests take to use it."""


def _load_once(program: Program, name: str) -> None:
    if name not in _loaded:
        _load(program, name)
        _loaded[name] = program.commands[name]
    program.commands[name] = _loaded[name]


class Answered(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The answer of `--json`."""
        return json.loads(self.out)


def command(*arguments: object) -> Answered:
    """Run `deliveryd` with these arguments, in this process and without variables of the environment."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["deliveryd", *map(str, arguments)])
        patch.delenv("DELIVERYD_CONFIG", raising=False)
        patch.setattr(Program, "load", _load_once)
        patch.setattr(gc, "freeze", lambda: None)  # what a test leaves is garbage
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                run_program()
                status = 0
            except SystemExit as end:
                status = int(end.code or 0)
    return Answered(status, out.getvalue(), err.getvalue())
