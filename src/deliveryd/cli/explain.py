"""`deliveryd explain`: the life of one message."""

from __future__ import annotations

from deliveryd.cli.options import ConfigFile
from deliveryd.config import load


def explain(config: ConfigFile, message_id: int) -> None:
    """Tell the life of one message."""
    load(config)
