"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The configuration file (TOML).", envvar="DELIVERYD_CONFIG"
    ),
]
AsData = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only say what would be.")]
Everything = Annotated[bool, typer.Option("--all", help="Everything that the other options leave.")]
