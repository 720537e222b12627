"""A running worker as it is watched: what it answers, and how it is asked over its control socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from deliveryd.control.client import NoWorker, ask, stream
from deliveryd.control.protocol import StatusRequest, TailRequest
from deliveryd.errors import DeliverydError
from deliveryd.telemetry.overview import (
    Disk,
    EventsView,
    Failure,
    Oldest,
    Overview,
    Paused,
    ProviderView,
    Rates,
    Reload,
    SendDelay,
)

ANSWER_WITHIN = 5.0
"""Seconds that a worker has to report its state."""

T = TypeVar("T")
Portion = list[Mapping[str, Any]]
"""Some events of a tail, in the order in which they happened; the first portion is empty."""


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


def events_of(line: object) -> Portion:
    """Return the events of a portion as it was sent. Raises DeliverydError."""
    match line:
        case {"events": list(events)} if all(isinstance(event, dict) for event in events):
            return events
    raise DeliverydError("the worker's events can't be read: is it of another version?")


_PARTS: Mapping[str, type] = {
    "rates_10s": Rates,
    "rates_60s": Rates,
    "delay": SendDelay,
    "events": EventsView,
    "oldest": Oldest,
    "disk": Disk,
    "last_reload": Reload,
    "last_failure": Failure,
}
_LISTS: Mapping[str, type] = {"providers": ProviderView, "paused": Paused}


def read_overview(status: Mapping[str, Any]) -> Overview:
    """Read the state of a worker. Raises DeliverydError if it lacks a part."""
    try:
        return _read(Overview, status)
    except (KeyError, TypeError, AttributeError):
        version = status.get("version")
        text = f"the worker's state can't be read: the worker is of version {version!a}"
        raise DeliverydError(text) from None


def _read(kind: type[T], data: Mapping[str, Any]) -> T:
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]  # all are dataclasses
        value = data[field.name]
        if value is not None and field.name in _PARTS:
            value = _read(_PARTS[field.name], value)
        elif field.name in _LISTS:
            value = [_read(_LISTS[field.name], each) for each in value]
        values[field.name] = value
    return kind(**values)
