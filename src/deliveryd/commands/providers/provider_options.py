"""Options that name a provider to try things with: one of a configuration, or a preset alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from deliveryd.errors import DeliverydError
from deliveryd.model import WallClock, parse_instant

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


def read_message(file: str) -> bytes:
    """Read a saved HTTP message; `-` is standard input. Raises DeliverydError."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise DeliverydError(f"{file} can't be read: {error.strerror}") from None
