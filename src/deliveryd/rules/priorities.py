"""Which settings ids go before others, and which go after them: what `[[rules]]` say."""

from __future__ import annotations

from typing import NamedTuple

PRIORITY_NAMES = ("high", "normal", "low")
HIGH, NORMAL, LOW = range(3)
"""Their ranks."""


class Priorities(NamedTuple):
    """The settings ids that go before all others, and those that go after them."""

    high: frozenset[int] = frozenset()
    low: frozenset[int] = frozenset()

    def rank(self, settings_id: int) -> int:
        """The rank of an id: its messages go before those of a greater one."""
        if settings_id in self.high:
            return HIGH
        return LOW if settings_id in self.low else NORMAL


NO_RULES = Priorities()
