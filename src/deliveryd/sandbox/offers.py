"""The remote service's queue: messages taken and not confirmed are delivered again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class Element:
    """One element of the queue's array as raw text, with its id where it has an integer one."""

    text: str
    id: int | None
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Taken:
    element: Element
    at: float


def element(value: dict[str, Any] | str) -> Element:
    """Return an element for a text or an object; text that isn't a JSON object is kept verbatim."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    fields = parsed if isinstance(parsed, dict) else {}
    return Element(text, _identifier(fields.get("id")), fields)


def _identifier(value: object) -> int | None:
    """Return a value as an integer, also if written as `6.0`, where that is exact."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value if type(value) is int else None


class Offers:
    """Messages waiting, and messages taken that nobody has confirmed yet.

    A message without an integer id can never be confirmed, so it is offered once only.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: deque[Element] = deque()
        self._taken: dict[int, _Taken] = {}

    def add(self, offered: Iterable[Element]) -> None:
        """Append these to the queue."""
        self._waiting.extend(offered)

    def take(self, count: int, redeliver_after: float) -> list[Element]:
        """Return the next `count` elements; those taken over `redeliver_after` seconds ago come first."""
        now = self._clock()
        self._return_overdue(now - redeliver_after)
        batch = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        for offered in batch:
            if offered.id is not None:
                self._taken.pop(offered.id, None)
                self._taken[offered.id] = _Taken(offered, now)
        return batch

    def confirm(self, message_id: int) -> None:
        """Confirm a message, so that it isn't delivered again."""
        self._taken.pop(message_id, None)

    @property
    def waiting(self) -> int:
        """Return the number of waiting messages, without overdue ones."""
        return len(self._waiting)

    @property
    def unconfirmed(self) -> int:
        """Return the number of messages taken and not confirmed."""
        return len(self._taken)

    def _return_overdue(self, before: float) -> None:
        overdue = []
        for message_id, taken in self._taken.items():
            if taken.at > before:
                break
            overdue.append(message_id)
        self._waiting.extendleft(self._taken.pop(message_id).element for message_id in reversed(overdue))
