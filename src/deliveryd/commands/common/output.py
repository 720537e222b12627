"""Output of commands. Text from outside is escaped, so that it can't control a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TextIO, TypeVar

import typer

from deliveryd.commands.common.printable import printable
from deliveryd.errors import DeliverydError

_Found = TypeVar("_Found")

_UNESCAPED_BY_JSON = re.compile(
    "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)


def print_lines(*lines: str) -> None:
    """Write lines to standard output, if there are any; line breaks inside them are escaped."""
    if lines:
        typer.echo("\n".join(map(printable, lines)))


def print_errors(*lines: str) -> None:
    """Write lines to standard error."""
    typer.echo("\n".join(map(printable, lines)), err=True)


def print_json(value: object) -> None:
    """Write a value as JSON to standard output."""
    typer.echo(json_text(value, indent=2))


def print_found(
    found: Sequence[_Found],
    as_data: bool,
    to_data: Callable[[_Found], object],
    to_lines: Callable[[Sequence[_Found]], Iterable[str]],
) -> None:
    """Write what was found as JSON, or else as lines."""
    if as_data:
        print_json([to_data(each) for each in found])
    else:
        print_lines(*to_lines(found))


def json_text(value: object, indent: int | None = None) -> str:
    """Encode JSON with everything escaped that could control a terminal; the value stays the same.

    A Decimal is a number as it is written.
    """
    numbers: list[str] = []
    mark = os.urandom(16).hex()

    def number(each: object) -> str:
        if not isinstance(each, Decimal):
            raise TypeError(f"{type(each).__name__} isn't JSON")
        numbers.append(str(each))
        return mark

    text = json.dumps(value, ensure_ascii=False, indent=indent, default=number)
    if numbers:
        written = iter(numbers)
        text = re.sub(f'"{mark}"', lambda _: next(written), text)
    return _UNESCAPED_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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
