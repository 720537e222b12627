"""Loading the configuration for commands that open the worker's files, or talk to it."""

from __future__ import annotations

from pathlib import Path

from deliveryd.commands.common.output import print_errors
from deliveryd.config import Config, ConfigPart, load, load_part, place_of_worker
from deliveryd.control.protocol import socket_at
from deliveryd.runtime.privileges import work_as_owner


def load_as_owner(path: Path) -> Config:
    """Read the configuration; as root, switch to the owner of the journal, or of the worker's socket.

    Raises ConfigError, DeliverydError.
    """
    config = load(path)
    become_owner(config)
    return config


def load_journal_as_owner(path: Path, *further: str) -> Config:
    """The same for a command that needs only the journal or the worker's socket, and `further` tables.

    Problems in other tables are summed up on standard error, and what they are about is left out. Raises
    ConfigError, DeliverydError.
    """
    return load_journal_part(path, *further).config


def load_journal_part(path: Path, *further: str) -> ConfigPart:
    """The same for a command that shows what other tables say, unless the file has problems.

    No worker works by a file with problems.
    """
    part = load_part(path, ("journal", "control", *further))
    if part.ignored:
        number = "a problem" if len(part.ignored) == 1 else f"{len(part.ignored)} problems"
        print_errors(
            f"deliveryd: the configuration has {number}, which deliveryd check lists and this command"
            f" passes over: {part.ignored[0]}"
        )
    become_owner(part.config)
    return part


def become_owner(config: Config) -> None:
    """As root, switch to the owner of the journal before any of its files is opened.

    Raises DeliverydError.
    """
    work_as_owner(place_of_worker(config))


def socket_for(config: Config) -> Path:
    """Return the socket of this machine's worker."""
    return socket_at(config.journal.place, config.control.socket)
