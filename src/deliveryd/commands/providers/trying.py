"""What commands that try a provider share: the options that name one, and what its answers mean."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Annotated
from urllib.parse import urlsplit

import typer

from deliveryd.channels.base import (
    Accepted,
    Attempted,
    InDoubt,
    Misconfigured,
    Refused,
    Stopped,
    TryAgain,
    Verdict,
)
from deliveryd.channels.http.answers import AnswerReader
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.commands.common.offline import OfflineProvider
from deliveryd.errors import DeliverydError
from deliveryd.http.finder import ConditionOptions
from deliveryd.http.raw_message import parse_answer
from deliveryd.model import SECOND

TriedChannel = Annotated[
    str | None,
    typer.Option("--channel", metavar="NAME", help="A channel, or one of its providers as CHANNEL/PROVIDER."),
]
ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider", metavar="NAME", help="A provider of the channel; needed if there are several."
    ),
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="A preset, instead of a configured channel.")
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key of the preset; can be repeated."),
]
SecretsOption = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME=FILE", help="A secret of the preset; can be repeated."),
]
PresetsDirOption = Annotated[
    Path | None,
    typer.Option("--presets-dir", metavar="FOLDER", help="Folder with presets of your own."),
]


def read_message(file: str) -> bytes:
    """Read a saved HTTP message; `-` is standard input. Raises DeliverydError."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise DeliverydError(f"{file} can't be read: {error.strerror}") from None


_VERDICTS: Mapping[type, tuple[str, str]] = {
    Accepted: ("accepted", "the message is sent"),
    Refused: ("refused", "a message of the queue isn't repeated here"),
    Stopped: ("stopped", "a message of the queue puts its recipient on the list: see deliveryd stopped"),
    TryAgain: ("try_again", "a message of the queue is tried again"),
    InDoubt: ("in_doubt", "the message may have been sent; for one of the queue, on_in_doubt decides"),
    Misconfigured: ("misconfigured", "the configuration must be changed; the attempt doesn't count"),
}
"""The names of verdicts, and what follows from them."""


def verdict_name(verdict: Verdict) -> str:
    """Return the name of a verdict, as case files have it."""
    return _VERDICTS[type(verdict)][0] if type(verdict) in _VERDICTS else type(verdict).__name__


def verdict_on(
    provider: OfflineProvider, raw: bytes, source: str, now: int, url: str | None = None
) -> tuple[Attempted, str]:
    """Return the verdict on a saved answer, and the row of `answers` that decided, or that the status did.

    The answer came from `url`, or else from the provider's address.
    Raises DeliverydError if `source` isn't an answer, or `url` no address.
    """
    try:
        answer = parse_answer(raw)
    except ValueError as error:
        raise DeliverydError(f"{source}: {error}") from None
    options = provider.options
    reader = answer_reader(options, options.url if url is None else url, now)
    return reader.verdict(answer), row_text(options, reader.row(answer))


def answer_reader(options: HttpChannelOptions, url: str, now: int) -> AnswerReader:
    """Return the reader of answers from this address, as of `now`. Raises DeliverydError."""
    at = datetime.fromtimestamp(now / SECOND, UTC)
    return AnswerReader(options.answers, options.provider_id, _host(url), lambda: at)


def row_text(options: HttpChannelOptions, position: int | None) -> str:
    """Return the row of `answers` at this position for people; None: the status alone decided."""
    if position is None:
        return "the status; no row of answers fits"
    row = options.answers[position]
    conditions = "; ".join(_condition_text(each) for each in row.where) or "no conditions"
    statuses = ", ".join(map(str, row.status))
    return f"row {position + 1} of answers ({statuses}; {shorten(conditions, 160, placeholder=' ...')})"


def _condition_text(condition: ConditionOptions) -> str:
    if condition.one_of is not None:
        return f"{condition.at} is {' or '.join(condition.one_of)}"
    return f"{condition.at} {'is absent' if condition.matches is None else f'matches {condition.matches}'}"


def _host(url: str) -> str:
    try:
        host = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    if not host:
        raise DeliverydError(f"{url} is no address such as https://api.example.com/messages")
    return host


def verdict_data(verdict: Attempted) -> Mapping[str, object]:
    """Return a verdict as JSON; `reason` is the provider's own words where a table names them."""
    words = getattr(verdict, "words", None)
    return {
        "verdict": verdict_name(verdict),
        "provider_id": getattr(verdict, "provider_id", None),
        "after": getattr(verdict, "after", None),
        "reason": words or getattr(verdict, "reason", None),
    }


def verdict_lines(verdict: Attempted, decided_by: str | None) -> Iterator[str]:
    """Return a verdict for people, and what decided if that is known."""
    name, consequence = _VERDICTS[type(verdict)]
    yield f"{name.replace('_', ' ')}: {consequence}"
    if (id_ := getattr(verdict, "provider_id", None)) is not None:
        yield f"  provider's id   {id_}"
    if (after := getattr(verdict, "after", None)) is not None:
        yield f"  not before      {after:g} s"
    if (reason := getattr(verdict, "reason", None)) is not None:
        yield f"  reported as     {reason}"
    if (words := getattr(verdict, "words", None)) is not None:
        yield f"  provider's own  {words}"
    if decided_by is not None:
        yield f"  decided by      {decided_by}"
