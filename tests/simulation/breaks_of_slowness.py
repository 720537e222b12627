"""Deliberate breaks of what happens to providers whose deliveries take long."""

from __future__ import annotations

import pytest

from deliveryd.delivery import shares
from deliveryd.delivery.choice import Choice

Patch = pytest.MonkeyPatch


def slow_providers_keep_their_share(patch: Patch) -> None:
    """Shares are worked out, and nothing is chosen by them."""
    patch.setattr(Choice, "weigh", lambda *_: None)


def slow_providers_lose_all_at_once(patch: Patch) -> None:
    """Nothing is left to a slow provider, by which it could show that it is well again."""
    patch.setattr(shares, "FLOOR", 0)
    move = shares._Reports.move
    patch.setattr(shares._Reports, "move", lambda self, parts, now: move(self, 10 * parts, now))


def all_are_slow_together(patch: Patch) -> None:
    """The first provider loses its share, though the others take as long."""
    look = shares._Channel.look

    def first_is_slow(self: shares._Channel, now: float) -> None:
        _, *others = self.reports.values()
        for each in others:
            each.slow = 0
        look(self, now)

    patch.setattr(shares._Channel, "look", first_is_slow)
