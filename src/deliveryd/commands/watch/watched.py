"""A running worker as it is watched: which one, what it answers, how it is asked over its control socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, cast, get_args, get_origin, get_type_hints

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner, socket_for
from deliveryd.commands.common.options import checked_url, insist_on_a_channel
from deliveryd.commands.common.shared_journal import known_channels
from deliveryd.control.client import NoWorker, ask, stream
from deliveryd.control.protocol import ANSWER_WITHIN, Portion, StatusRequest, TailRequest, events_of
from deliveryd.errors import DeliverydError
from deliveryd.journal.place import JournalDatabase
from deliveryd.telemetry.overview import Overview


class Watched(Protocol):
    """A worker that runs."""

    def status(self) -> Mapping[str, Any]:
        """Return its state as JSON. Raises DeliverydError."""

    def tail(self, wanted: TailRequest) -> Iterator[Portion]:
        """Yield what happens to messages, until the worker ends. Raises DeliverydError."""


class OverSocket:
    """The worker at a control socket; `is_shared`: others on its journal may run on other machines."""

    def __init__(self, place: Path, *, is_shared: bool = False) -> None:
        self._place = place
        self._is_shared = is_shared

    def status(self) -> Mapping[str, Any]:
        """Return its state as JSON. Raises DeliverydError."""
        with self._missed():
            found = ask(self._place, StatusRequest(), ANSWER_WITHIN).get("status")
        if not isinstance(found, dict):
            raise DeliverydError("the worker's answer can't be read: is it of another version?")
        return found

    def tail(self, wanted: TailRequest) -> Iterator[Portion]:
        """Yield what happens to messages, until the worker ends. Raises DeliverydError."""
        with self._missed():
            for line in stream(self._place, wanted):
                yield events_of(line)

    @contextmanager
    def _missed(self) -> Iterator[None]:
        """Print where other workers may be when there is none here."""
        try:
            yield
        except NoWorker:
            if not self._is_shared:
                raise
            raise NoWorker(
                f"no worker of this machine listens at {self._place}: deliveryd workers shows all of the"
                " journal; name one with DELIVERYD_CONTROL__SOCKET, or with --url"
            ) from None


def read_overview(status: Mapping[str, Any]) -> Overview:
    """Read the state of a worker. Raises DeliverydError if it lacks a part."""
    try:
        overview: Overview = _read(Overview, status)
    except (KeyError, TypeError):
        version = status.get("version")
        text = f"the worker's state can't be read: the worker is of version {version!a}"
        raise DeliverydError(text) from None
    return overview


def _read(hint: Any, value: Any) -> Any:
    """Return a value as its type says: a dataclass, a list of them, or anything else as it is."""
    kind = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)
    if kind is None or value is None:
        return value
    if get_origin(hint) is Sequence:
        return [_read(kind, each) for each in value]
    return cast("Any", kind)(
        **{name: _read(each, value[name]) for name, each in get_type_hints(kind).items()}
    )


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
