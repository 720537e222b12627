"""`deliveryd render`: what channels would send."""

from __future__ import annotations

from deliveryd.cli.options import ConfigFile
from deliveryd.config import load


def render(config: ConfigFile) -> None:
    """Show what each channel would send."""
    load(config)
