"""Deliberate breaks of messages that begin anew, and of those that are forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from deliveryd import transitions
from deliveryd.journal.orders import Action
from deliveryd.journal.sql import operations, orders
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.obstacles import OBSTACLES
from deliveryd.model import Entry, Transition

Patch = pytest.MonkeyPatch


def old_key_of_a_new_beginning(patch: Patch) -> None:
    """A message that begins anew keeps its key."""
    ordered = transitions.ordered_anew

    def under_its_key(entry: Entry, at: int) -> Transition:
        step = ordered(entry, at)
        return step._replace(entry=step.entry._replace(generation=entry.generation))

    patch.setattr(transitions, "ordered_anew", under_its_key)


def doubt_that_nobody_accepted(patch: Patch) -> None:
    """What may have arrived begins anew, or is forgotten, as if duplicates were accepted."""
    anyway = {
        Action.BEGIN_ANEW: OBSTACLES[Action.BEGIN_ANEW_ANYWAY],
        Action.FORGET: OBSTACLES[Action.FORGET_ANYWAY],
    }
    patch.setattr(orders, "OBSTACLES", {**OBSTACLES, **anyway})


def beginnings_lost_with_the_message(patch: Patch) -> None:
    """A forgotten message that the queue gives again has the keys of before."""

    def none(_db: Db, _ids: Collection[int]) -> Mapping[int, int]:
        return {}

    patch.setattr(operations, "generations_of", none)
