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
AsData = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only say what would be.")]
Everything = Annotated[bool, typer.Option("--all", help="Everything that the other options leave.")]


def identifier(text: str) -> int:
    """An id as the service gives them, an integer of 64 bits; raises BadParameter for any other text."""
    try:
        value = int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!a} is no integer") from None
    if not -(2**63) <= value < 2**63:
        raise typer.BadParameter(f"{value} is no integer of 64 bits")
    return value
