"""Standard output as a UTF-8 stream whose reader may close it, or whose disk may be full."""

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
    """Yield standard output for writing.

    If the reader closes the pipe (`| head`), the command exits quietly with status 0. Raises DeliverydError
    for any other failure to write.
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
        raise DeliverydError(f"can't write the output: {error.strerror}") from None


def _give_up(out: TextIO) -> None:
    """Discard the rest of the buffer, so that the interpreter reports no error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
