"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from deliveryd.control.protocol import check_reason
from deliveryd.errors import LanguageUnreadable
from deliveryd.model import INT64, number_of
from deliveryd.options.suggestion import suggestion
from deliveryd.rendering.language import standard_tag

ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The configuration file (TOML).", envvar="DELIVERYD_CONFIG"
    ),
]
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
