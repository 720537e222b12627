"""What the worker answers to those who look at it: its state once, and events as they happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from deliveryd.control.protocol import StatusRequest, TailRequest
from deliveryd.delivery.tail import Tail, TailFilter
from deliveryd.telemetry.overview import Overview, as_json


class OverviewSource(Protocol):
    """What has the state of the worker, and what happens in it."""

    def overview(self) -> Overview:
        """Return the state of the worker, without texts, names, addresses or secrets. Doesn't block."""

    def tail(self, wanted: TailFilter) -> Tail:
        """Return a reader of what happens to messages, which begins with its `with` block."""


class ViewHandler:
    """Answers from the overview of the worker, and from what happens to messages."""

    def __init__(self, source: OverviewSource) -> None:
        self._source = source

    async def status(self, _request: StatusRequest, _user: str) -> Mapping[str, object]:
        """Return the state of the worker."""
        return {"status": as_json(self._source.overview())}

    async def tail(self, request: TailRequest, _user: str) -> AsyncGenerator[Mapping[str, object], None]:
        """Yield events in portions, the first one empty: from then on none is missed."""
        with self._source.tail(TailFilter(*request)) as tail:
            yield {"events": []}
            while True:
                if events := await tail.next_events():
                    yield {"events": [event.as_data() for event in events]}
