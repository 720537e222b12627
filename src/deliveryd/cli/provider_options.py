"""Options that name a provider to try things with: one of a configuration, or a preset alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from deliveryd.errors import DeliverydError
from deliveryd.model import parse_instant

TriedChannel = Annotated[
    str | None, typer.Option("--channel", metavar="NAME", help="A channel of the configuration.")
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
ClockOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Instant at which it came; left out: now."),
]
PublicOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Public address that the provider called; left out: the configured one."
    ),
]


def read_message(file: str) -> bytes:
    """Read a saved HTTP message; `-` is standard input. Raises DeliverydError."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise DeliverydError(f"{file} can't be read: {error.strerror}") from None


def instant_of(at: str) -> int:
    """Parse an instant. Raises BadParameter."""
    try:
        return parse_instant(at)
    except ValueError:
        raise typer.BadParameter(
            f"{at!a} isn't an instant such as 2026-11-21T18:40:00Z", param_hint="--at"
        ) from None
