"""The queue and the events of the service in memory, for stand-ins that bring a wire of their own."""

from __future__ import annotations

import json
from collections import deque
from typing import Any


class ServiceMemory:
    """What the service holds: elements to hand out once, as raw JSON, and the events it accepted."""

    def __init__(self) -> None:
        self.queue: deque[str] = deque()
        self.events: list[dict[str, Any]] = []

    def enqueue(self, *elements: object) -> None:
        """Put elements into the queue, texts as they are."""
        self.queue += [element if isinstance(element, str) else json.dumps(element) for element in elements]

    def take(self, count: int) -> str:
        """Hand out the next elements, `count` at most, as a JSON array."""
        return f"[{','.join(self.queue.popleft() for _ in range(min(count, len(self.queue))))}]"

    def post(self, body: bytes) -> list[dict[str, Any]]:
        """Accept a batch of events, and return it."""
        events: list[dict[str, Any]] = json.loads(body.decode())  # strictly UTF-8
        self.events += events
        return events

    def events_of(self, message_id: int, status: str | None = None) -> list[dict[str, Any]]:
        """The events of a message, or those with one status."""
        return [
            event
            for event in list(self.events)  # another thread may add to it
            if event["messageId"] == message_id and status in (None, event["status"])
        ]

    def statuses(self, message_id: int) -> list[str]:
        """The statuses that were reported of a message."""
        return [event["status"] for event in self.events_of(message_id)]
