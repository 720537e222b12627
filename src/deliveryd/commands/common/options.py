"""Options that several commands share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import typer

from deliveryd.control.protocol import check_reason
from deliveryd.errors import LanguageUnreadable
from deliveryd.model import INT64, SECOND, WallClock, number_of, parse_instant
from deliveryd.options.suggestion import suggestion
from deliveryd.options.units import parse_duration
from deliveryd.rendering.language import standard_tag

ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The configuration file (TOML).", envvar="DELIVERYD_CONFIG",
        readable=False,  # not checked by typer, which would report it as a usage error
    ),
]  # fmt: skip
AsData = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, without changing anything.")]
Everything = Annotated[bool, typer.Option("--all", help="Select everything that the other options match.")]


def _reason(text: str) -> str | None:
    try:
        return check_reason(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


WhyOption = Annotated[
    str | None,
    typer.Option(
        "--reason",
        parser=_reason,
        metavar="TEXT",
        help="Why, for the record: kept with the decision, so name no personal data.",
    ),
]


class Ordering(NamedTuple):
    """How an order is given: why, or only as a trial; and the form of the output."""

    why: WhyOption = None
    dry_run: DryRun = False
    as_data: AsData = False


def integer(text: str) -> int:
    """Parse an integer of any size. Raises BadParameter."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:80]!a} isn't an integer") from None


def identifier(text: str) -> int:
    """Parse a 64-bit integer ID. Raises BadParameter."""
    value = integer(text)
    if value not in INT64:
        raise typer.BadParameter(f"{value} isn't a 64-bit integer")
    return value


def message_number(text: str) -> int:
    """Parse a message's ID; return the number that the journal keeps it under. Raises BadParameter."""
    return number_of(integer(text))


def language_tag(text: str) -> str:
    """Parse a language tag such as "pt-BR". Raises BadParameter."""
    try:
        return standard_tag(text)
    except LanguageUnreadable as error:
        raise typer.BadParameter(str(error)) from None


def insist_on_known(what: str, name: str, known: Sequence[str], option: str | None = None) -> None:
    """Raise BadParameter, with a suggestion, unless `name` is known; `option`: where it was given."""
    if name not in known:
        text = f"there is no {what} {name!a}{suggestion(name, known)}; there are {', '.join(known)}"
        raise typer.BadParameter(text, param_hint=option)


def insist_on_a_channel(name: str, known: Sequence[str]) -> None:
    """Raise BadParameter, with a suggestion, unless `name` is one of the known channels."""
    insist_on_known("channel", name, known, "--channel")


def checked_url(url: str | None) -> str | None:
    """Return the address of an admin server. Raises BadParameter for anything else."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise typer.BadParameter("expected an address such as http://127.0.0.1:9470, with a port up to 65535")
    return url


def before_now(text: str) -> int:
    """Parse a duration and return the instant that long before now. Raises BadParameter."""
    try:
        return time.time_ns() // 1000 - int(parse_duration(text) * SECOND)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_instant_option(text: str) -> int:
    """Parse an instant, or a duration before now. Raises BadParameter."""
    for read in (parse_instant, before_now):
        with suppress(ValueError, typer.BadParameter):
            return read(text)
    raise typer.BadParameter(
        f"{text[:40]!a} is neither an instant such as 2026-01-31T09:00:00Z nor a duration such as 2h"
    )


def _instant(text: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; give one such as 2026-01-31T09:00:00Z") from None


AtOption = Annotated[
    int | None,
    typer.Option("--at", parser=_instant, metavar="TIME", help="Judge as of this instant, not now."),
]


def instant_of(at: int | None) -> int:
    """Return the instant that was given, or now."""
    return WallClock().now() if at is None else at
