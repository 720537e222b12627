"""A running worker as it is watched over its admin server. Loaded only for `--url`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from deliveryd.control.protocol import ANSWER_WITHIN, Portion, TailRequest, events_of
from deliveryd.errors import DeliverydError

_SILENCE = 20.0
"""Seconds without an event or a comment after which a stream counts as broken."""

_LARGEST_ANSWER = 4 << 20
_DATA = b"data: "


class OverHttp:
    """The worker whose admin server is at an address."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def status(self) -> Mapping[str, Any]:
        """Return its state as JSON. Raises DeliverydError."""
        connection, answer = self._get("/status", ANSWER_WITHIN)
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
                    yield events_of(json.loads(line.removeprefix(_DATA)))
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
