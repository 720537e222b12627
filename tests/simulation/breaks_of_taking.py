"""Deliberate breaks of what is taken ahead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.recorder import Recorder
from deliveryd.model import Entry
from deliveryd.runtime import waits

Patch = pytest.MonkeyPatch


def more_is_taken_whatever_is_accepted(patch: Patch) -> None:
    """What the service hasn't accepted is in nobody's way."""
    patch.setattr(Recorder, "ahead", property(lambda _self: 0))


def what_was_taken_ahead_is_left_ready(patch: Patch) -> None:
    """It is in no loop's hands until the next start."""

    async def forget(self: Recorder, ahead: Sequence[Entry]) -> None:
        self._ahead.difference_update(entry.id for entry in ahead)

    patch.setattr(Recorder, "_have_wait_for_places", forget)


def nobody_looks_for_what_waits_for_a_place(patch: Patch) -> None:
    """Until it has waited for the longest time."""
    is_short = Backlog.is_short_of_room
    patch.setattr(
        Backlog,
        "is_short_of_room",
        lambda self, provider: provider != waits.ANY and is_short(self, provider),
    )
