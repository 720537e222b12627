"""Deliberate breaks of what becomes of a message whose provider is removed."""

from __future__ import annotations

import pytest

from deliveryd.delivery.routing import Router
from deliveryd.model import Entry
from simulation.breaks_of_keeping import tries_without_a_request_counted

Patch = pytest.MonkeyPatch


def content_kept_by_what_leaves(patch: Patch) -> None:
    """The provider is cleared, and what was said there stays to be repeated."""
    patch.setattr(Router, "without_removed", lambda _self, entry: entry)


def left_provider_not_spent(patch: Patch) -> None:
    """A provider that may have a message takes it again when it comes back."""
    patch.setattr(Entry, "left", lambda self, _reason: self._unbound())


def try_counted_without_a_request(patch: Patch) -> None:
    """What was said at a provider is tried at the next one, whatever that needs, and each time counts."""
    content_kept_by_what_leaves(patch)
    tries_without_a_request_counted(patch)


def tries_kept_by_what_leaves(patch: Patch) -> None:
    """Those made at one provider count at the next one."""
    for name in ("_unbound", "bound"):
        step = getattr(Entry, name)
        patch.setattr(
            Entry,
            name,
            lambda self, *to, step=step: step(self, *to)._replace(counted_tries=self.counted_tries),
        )
