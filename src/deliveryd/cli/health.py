"""`deliveryd health`: does the daemon work."""

from __future__ import annotations

from deliveryd.cli.options import ConfigFile
from deliveryd.config import load


def health(config: ConfigFile) -> None:
    """Ask the daemon whether it works."""
    load(config)
