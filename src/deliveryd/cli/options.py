"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

USUAL_CONFIG = Path("/etc/deliveryd/config.toml")

ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The configuration file (TOML).", envvar="DELIVERYD_CONFIG"
    ),
]
AsData = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, without changing anything.")]
Everything = Annotated[bool, typer.Option("--all", help="Select everything that the other options match.")]


def identifier(text: str) -> int:
    """Parse a 64-bit integer ID. Raises BadParameter."""
    try:
        value = int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!a} isn't an integer") from None
    if not -(2**63) <= value < 2**63:
        raise typer.BadParameter(f"{value} isn't a 64-bit integer")
    return value
