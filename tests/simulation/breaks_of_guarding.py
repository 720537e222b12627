"""Deliberate breaks of what happens to settings whose texts suddenly have more parts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from deliveryd.delivery.cost_guard import CostGuard
from deliveryd.journal.journal import Journal
from deliveryd.journal.sql import orders

Patch = pytest.MonkeyPatch


def longer_texts_are_sent(patch: Patch) -> None:
    """They are counted, and nothing follows."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(CostGuard, "_pause", nothing)


def parts_forgotten_at_a_restart(patch: Patch) -> None:
    """A worker knows only what it sent itself."""

    async def nothing(_self: Journal) -> Mapping[int, str]:
        return {}

    patch.setattr(Journal, "kept_parts", nothing)


def old_level_stays_the_normal(patch: Patch) -> None:
    """What an operator resumes is paused again."""
    patch.setattr(orders, "forget_parts", lambda *_: None)
    patch.setattr(CostGuard, "_forget_paused", lambda _: None)
    pause = CostGuard._pause

    async def and_know(self: CostGuard, settings_id: int, channel: str, parts: object) -> None:
        known = dict(self._known[settings_id])
        await pause(self, settings_id, channel, parts)  # type: ignore[arg-type]
        self._known[settings_id] = known

    patch.setattr(CostGuard, "_pause", and_know)
