"""A running worker as it is watched: over its control socket, or over its admin server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

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

_TIMEOUT = 5.0
_SILENCE = 20.0
"""Seconds without an event or a comment after which a stream counts as broken."""

_LARGEST_ANSWER = 4 << 20
_DATA = b"data: "

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
            found = ask(self._place, StatusRequest(), _TIMEOUT).get("status")
        if not isinstance(found, dict):
            raise DeliverydError("the worker's answer can't be read: is it of another version?")
        return found

    def tail(self, wanted: TailRequest) -> Iterator[Portion]:
        """Yield what happens to messages, until the worker ends. Raises DeliverydError."""
        with self._missed():
            for line in stream(self._place, wanted):
                yield _events_of(line)

    @contextmanager
    def _missed(self) -> Iterator[None]:
        """Say where other workers may be when there is none here."""
        try:
            yield
        except NoWorker:
            if not self._is_shared:
                raise
            raise NoWorker(
                f"no worker of this machine listens at {self._place}: deliveryd workers shows all of the"
                " journal; name one with DELIVERYD_CONTROL__SOCKET, or with --url"
            ) from None


class OverHttp:
    """The worker whose admin server is at an address."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def status(self) -> Mapping[str, Any]:
        """Return its state as JSON. Raises DeliverydError."""
        connection, answer = self._get("/status", _TIMEOUT)
        try:
            found = json.loads(answer.read(_LARGEST_ANSWER))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._no_worker(f"GET /status gave no JSON ({type(error).__name__})") from None
        finally:
            connection.close()
        if not isinstance(found, dict):
            raise self._no_worker("GET /status gave no object")
        return found

    def tail(self, wanted: TailRequest) -> Iterator[Portion]:
        """Yield what happens to messages, until the worker ends. Raises DeliverydError."""
        chosen = {name: value for name, value in wanted._asdict().items() if value not in (None, False)}
        query = urlencode({name: "true" if value is True else value for name, value in chosen.items()})
        connection, answer = self._get(f"/tail?{query}", _SILENCE)
        try:
            yield []
            while line := answer.readline(_LARGEST_ANSWER):
                if line.startswith(_DATA):
                    yield _events_of(json.loads(line.removeprefix(_DATA)))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DeliverydError(f"the connection to {self._url} broke ({type(error).__name__})") from None
        finally:
            connection.close()

    def _get(self, path: str, timeout: float) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Request a path. Raises DeliverydError for anything but 200."""
        parts = urlsplit(self._url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
        try:
            connection.request("GET", parts.path + path)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = error.strerror if isinstance(error, OSError) else None
            text = f"no answer from {self._url}: {reason or str(error) or type(error).__name__}"
            raise DeliverydError(text) from None
        if answer.status == 200:
            return connection, answer
        said = answer.read(200).decode(errors="replace").partition("\n")[0]
        connection.close()
        raise self._no_worker(
            f"GET {path.partition('?')[0]} was answered with {answer.status} {said}".rstrip()
        )

    def _no_worker(self, said: str) -> DeliverydError:
        return DeliverydError(f"{self._url} isn't a worker's admin server: {said}")


def _events_of(line: object) -> Portion:
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
