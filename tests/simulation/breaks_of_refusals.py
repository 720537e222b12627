"""Deliberate breaks of the search for refused events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from anyio.abc import TaskGroup

from deliveryd.delivery.posting import Posting
from deliveryd.delivery.refusal_search import RefusalSearch
from deliveryd.journal.base import OutboxRow

Patch = pytest.MonkeyPatch


def part_set_aside_for_one_event(patch: Patch) -> None:
    """A part of a refused batch that is refused as well is set aside as a whole."""

    async def careless(self: RefusalSearch, _posts: TaskGroup, rows: Sequence[OutboxRow]) -> None:
        refused = await self._ask(rows)
        if refused is None:
            await self._posting.accept_early(rows)
        self._unsettled.answer(rows, refused)
        await self._settle()

    patch.setattr(RefusalSearch, "_post", careless)


def early_messages_never_settled(patch: Patch) -> None:
    """What was accepted before the events ahead of it is never taken out of the outbox."""

    async def forget(_self: Posting, rows: Sequence[OutboxRow]) -> None:
        return

    patch.setattr(Posting, "settle", forget)


def events_of_a_message_posted_side_by_side(patch: Patch) -> None:
    """A refused batch is split without regard to messages."""

    def by_event(self: RefusalSearch, posts: TaskGroup, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            posts.start_soon(self._post_in_turn, posts, [[row]])

    patch.setattr(RefusalSearch, "_split", by_event)
