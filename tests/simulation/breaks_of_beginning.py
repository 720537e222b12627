"""Deliberate breaks of messages that begin anew, and of those that are forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from deliveryd import transitions
from deliveryd.journal.sql import obstacles, operations, orders
from deliveryd.journal.sql.db import Db
from deliveryd.model import Entry, Transition

Patch = pytest.MonkeyPatch


def old_key_of_a_new_beginning(patch: Patch) -> None:
    """A message that begins anew keeps its key."""
    ordered = transitions.ordered_anew

    def under_its_key(entry: Entry, at: int) -> Transition:
        step = ordered(entry, at)
        return step._replace(entry=step.entry._replace(beginning=entry.beginning))

    patch.setattr(transitions, "ordered_anew", under_its_key)


def doubt_that_nobody_accepted(patch: Patch) -> None:
    """What may have arrived begins anew, or is forgotten, as if duplicates were accepted."""
    begins, forgets = obstacles.obstacle_to_beginning_anew, obstacles.obstacle_to_forgetting

    def begin_all(db: Db, id_: int, *, accepted: bool) -> str | None:
        del accepted
        return begins(db, id_, accepted=True)

    def forget_all(db: Db, id_: int, *, accepted: bool) -> str | None:
        del accepted
        return forgets(db, id_, accepted=True)

    patch.setattr(orders, "obstacle_to_beginning_anew", begin_all)
    patch.setattr(orders, "obstacle_to_forgetting", forget_all)


def beginnings_lost_with_the_message(patch: Patch) -> None:
    """A forgotten message that the queue gives again has the keys of before."""

    def none(_db: Db, _ids: Collection[int]) -> Mapping[int, int]:
        return {}

    patch.setattr(operations, "beginnings_of", none)
