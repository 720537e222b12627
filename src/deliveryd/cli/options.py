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
