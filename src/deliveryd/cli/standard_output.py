"""Standard output as a stream of UTF-8 that may be closed by whoever reads it, or be full."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import typer

from deliveryd.errors import DeliverydError


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """What is written goes to standard output.

    When its reader has gone (`| head`), the command ends quietly with status 0: the reader has had enough.
    Raises DeliverydError when it can't be written otherwise.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(encoding="utf-8")
    try:
        yield out
        out.flush()
    except BrokenPipeError:
        _give_up(out)
        raise typer.Exit from None
    except OSError as error:
        _give_up(out)
        raise DeliverydError(f"the output can't be written: {error.strerror}") from None


def _give_up(out: TextIO) -> None:
    """Let what is still in the buffer go nowhere, or the interpreter would complain of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
