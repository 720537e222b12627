"""Shared parts of `status`, `top` and `tail`: which worker is watched, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner, socket_for
from deliveryd.commands.common.options import checked_url, insist_on_a_channel
from deliveryd.commands.common.shared_journal import known_channels
from deliveryd.commands.watch.watched import OverSocket, Watched
from deliveryd.journal.place import JournalDatabase

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", callback=checked_url,
        help="Ask the worker's admin server at this address, instead of its control socket on this machine.",
    ),
]  # fmt: skip


def watched(config: Path, url: str | None, channel: str | None = None) -> Watched:
    """Return the worker at `url`, or else this machine's one on the configuration's journal.

    Raises ConfigError, and BadParameter for a channel that isn't configured.
    """
    if url is not None:
        from deliveryd.commands.watch.over_http import OverHttp  # noqa: PLC0415  # most ask over the socket

        return OverHttp(url)
    loaded = load_journal_as_owner(config)
    if channel is not None:
        insist_on_a_channel(channel, known_channels(loaded))
    return OverSocket(socket_for(loaded), is_shared=isinstance(loaded.journal.place, JournalDatabase))
