"""`deliveryd check`: is the configuration right, and can everything it names be used."""

from __future__ import annotations

import typer

from deliveryd.cli.options import ConfigFile
from deliveryd.config import load


def check(config: ConfigFile) -> None:
    """Check the configuration and everything that it names."""
    load(config)
    typer.echo("ok   configuration")
