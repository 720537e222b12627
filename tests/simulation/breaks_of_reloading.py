"""Deliberate breaks of reloads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.routing import Router
from deliveryd.delivery.waiting import Waiting
from deliveryd.journal.sql import recovery
from deliveryd.journal.sql.db import Db
from deliveryd.model import Entry
from deliveryd.worker.handover import Handover

Patch = pytest.MonkeyPatch


def queue_of_a_removed_provider_dropped(patch: Patch) -> None:
    """What was queued there is forgotten."""
    leave = Dispatcher.leave

    def nothing(self: Dispatcher) -> Sequence[Entry]:
        leave(self)
        return ()

    patch.setattr(Dispatcher, "leave", nothing)


def waiting_messages_left_at_a_removed_provider(patch: Patch) -> None:
    """What waits in the journal stays bound to it."""

    async def nothing(_self: Waiting, *_providers: Collection[str]) -> None:
        return

    patch.setattr(Waiting, "leave", nothing)


def doubts_released_from_a_removed_provider(patch: Patch) -> None:
    """What is in doubt there goes to another one."""
    at = recovery._at

    def nothing_in_doubt(
        db: Db, providers: Collection[str], keys: Any, doubt: int, limit: int
    ) -> list[Entry]:
        found = [] if doubt else [each for one in (0, 1) for each in at(db, providers, keys, one, limit)]
        return [entry._replace(doubt=False, content=None) for entry in found]

    patch.setattr(recovery, "_at", nothing_in_doubt)


def routed_as_before_the_reload(patch: Patch) -> None:
    """The router of the start stays."""
    patch.setattr("deliveryd.delivery.preparation.Preparer.adopt", _keep)


def _keep(_self: object, _router: Router) -> None:
    """Go on with the old one."""


def held_doubts_never_repeated(patch: Patch) -> None:
    """A policy that repeats again says nothing of what was held before."""

    async def nothing(_self: Handover, _providers: Collection[str]) -> None:
        return

    patch.setattr(Handover, "_repeat_held", nothing)
