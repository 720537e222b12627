"""Deliberate breaks of what goes first."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from deliveryd.delivery.dispatch_queue import DispatchQueue
from deliveryd.delivery.due import DueMessages
from deliveryd.delivery.fetch_turns import FetchTurns
from deliveryd.rules.priorities import NO_RULES

Patch = pytest.MonkeyPatch


def priorities_ignored_in_what_is_fetched(patch: Patch) -> None:
    """Only what is queued goes by priority."""
    portions = FetchTurns.portions
    patch.setattr(FetchTurns, "portions", lambda self, most, _: portions(self, most, NO_RULES))


def priorities_ignored_in_what_is_queued(patch: Patch) -> None:
    """Only what is fetched goes by priority."""
    patch.setattr("deliveryd.rules.priorities.Priorities.rank", lambda *_: 1)


def a_line_that_keeps_its_turn(patch: Patch) -> None:
    """The settings id that was sent goes on as long as it has messages."""
    take = DispatchQueue._take_turns

    def keep(self: DispatchQueue, ring: deque[Any], count: int, *how: Any) -> list[Any]:
        taken = []
        for _ in range(count):
            line = ring[0]
            taken += take(self, ring, 1, *how)
            if len(ring) > 1 and ring[-1] is line:
                ring.rotate(1)
        return taken

    patch.setattr(DispatchQueue, "_take_turns", keep)


def no_share_of_what_is_queued(patch: Patch) -> None:
    """While something of a higher priority is queued, nothing else is sent."""
    patch.setattr(DispatchQueue, "_ring", lambda self: next(ring for ring in self._rings if ring))


def no_share_of_what_is_fetched(patch: Patch) -> None:
    """While something of a higher priority waits, nothing else is fetched."""
    patch.setattr(FetchTurns, "_below_high", lambda *_: 0)
    patch.setattr(FetchTurns, "_below_normal", lambda *_: 0)


def places_left_to_the_backlog_of_a_provider(patch: Patch) -> None:
    """What is bound to no provider is fetched last each time."""
    never = property(lambda _: False, lambda *_: None)
    patch.setattr(DueMessages, "_is_unbound_first", never, raising=False)
