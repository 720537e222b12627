"""Deliberate breaks of reloads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.routing import Router
from deliveryd.journal import statements
from deliveryd.journal.base import Left
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

    async def nothing(_self: Recorder, _providers: Collection[str]) -> Left:
        return Left(0, 0)

    patch.setattr(Recorder, "leave", nothing)


def doubts_released_from_a_removed_provider(patch: Patch) -> None:
    """What is in doubt there goes to another one."""
    everything = statements.RELEASE_AT_REMOVED.replace("NOT doubt", "1").replace(
        "tries = 0", "tries = 0, doubt = 0, content = NULL"
    )
    patch.setattr(statements, "RELEASE_AT_REMOVED", everything)
    patch.setattr(statements, "HOLD_AT_REMOVED", statements.HOLD_AT_REMOVED.replace("AND doubt", "AND 0"))


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
