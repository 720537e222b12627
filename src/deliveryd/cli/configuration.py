"""Loading the configuration for commands that open the worker's files."""

from __future__ import annotations

from pathlib import Path

from deliveryd.config import Config, load
from deliveryd.runtime.privileges import work_as_owner


def load_as_owner(path: Path) -> Config:
    """Read the configuration; as root, switch to the journal's owner before opening any of its files.

    Raises ConfigError, DeliverydError.
    """
    config = load(path)
    work_as_owner(config.journal.named)
    return config
