"""Caps: how many messages a customer gets within a time that moves on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from deliveryd.model import CapShare

_MOST_KEPT = 10_000
"""Settings ids whose caps are kept."""

Over = Literal["wait", "error"]
"""What becomes of a message over a cap."""


class Cap(NamedTuple):
    """A cap, and what becomes of a message over it; `place` is its key in the file."""

    share: CapShare
    over: Over
    place: str = ""

    @property
    def name(self) -> str:
        """What people know it by."""
        return self.share.cap

    @property
    def terms(self) -> object:
        """What decides: equal where nothing differs."""
        return self.share, self.over

    def applies(self, settings_id: int) -> bool:
        """Whether a message with these settings counts."""
        return not self.share.settings or settings_id in self.share.settings


class Caps:
    """All caps; several may count one message."""

    def __init__(self, caps: Sequence[Cap] = ()) -> None:
        self.all = tuple(caps)
        self.longest = max((cap.share.per for cap in self.all), default=0)
        """The microseconds for which it is known what a customer got."""

        self._found: dict[int, Sequence[Cap]] = {}

    @property
    def terms(self) -> object:
        """What decides: equal where nothing differs."""
        return [cap.terms for cap in self.all]

    def of(self, settings_id: int) -> Sequence[Cap]:
        """Those that count messages with these settings."""
        if settings_id not in self._found:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[settings_id] = [cap for cap in self.all if cap.applies(settings_id)]
        return self._found[settings_id]


NO_CAPS = Caps()
"""Nothing is capped."""
