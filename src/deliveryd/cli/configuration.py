"""What a command begins with that opens the worker's files."""

from __future__ import annotations

from pathlib import Path

from deliveryd.config import Config, load
from deliveryd.runtime.privileges import work_as_owner


def load_as_owner(path: Path) -> Config:
    """Read the configuration and, as root, become the journal's owner before anything there is opened.

    Raises ConfigError, DeliverydError.
    """
    config = load(path)
    work_as_owner(config.journal.named)
    return config
