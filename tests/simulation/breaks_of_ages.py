"""Deliberate breaks of what a journal and a cache belong to, and of how old things are."""

from __future__ import annotations

import pytest

from deliveryd.delivery.passed_time import PassedTime
from deliveryd.model import SECOND
from deliveryd.runtime.disk_cache import DiskCache

Patch = pytest.MonkeyPatch


def journal_of_any_service(patch: Patch) -> None:
    """Whoever comes works with what is there."""
    patch.setattr("deliveryd.journal.sql.own_values.belong_to", lambda _db, _service: None)


def cache_of_any_service(patch: Patch) -> None:
    """Settings are found by their id alone."""
    made = DiskCache.__init__

    def make(self: DiskCache, *args: object, below: str = "", **options: object) -> None:
        made(self, *args, **options)  # type: ignore[arg-type]

    patch.setattr(DiskCache, "__init__", make)


def age_by_the_time_of_day(patch: Patch) -> None:
    """A clock that is days ahead has everything forgotten."""
    patch.setattr(PassedTime, "before", lambda self, seconds: self._clock.now() - int(seconds * SECOND))
