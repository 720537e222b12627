"""Deliberate breaks of the search for refused events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from anyio.abc import TaskGroup

from deliveryd.delivery.posting import PostAnswer, Posting
from deliveryd.delivery.reporting import Reporting
from deliveryd.journal.base import OutboxRow

Patch = pytest.MonkeyPatch


def part_set_aside_for_one_event(patch: Patch) -> None:
    """A part of a refused batch that is refused as well is set aside as a whole."""

    async def careless(self: Reporting, _posts: TaskGroup, part: Sequence[OutboxRow]) -> None:
        answer, reason = await self._posting.ask(part)
        if answer is PostAnswer.UNAVAILABLE:
            self._unsettled.take_back(part)
        else:
            await self._answered(part, None if answer is PostAnswer.ACCEPTED else reason)

    patch.setattr(Reporting, "_post_in_turn", careless)


def early_messages_never_settled(patch: Patch) -> None:
    """What was accepted before the events ahead of it is never taken out of the outbox."""

    async def forget(_self: Posting, rows: Sequence[OutboxRow]) -> None:
        return

    patch.setattr(Posting, "settle", forget)


def events_of_a_message_posted_side_by_side(patch: Patch) -> None:
    """A refused batch is split without regard to messages."""

    def by_event(self: Reporting, posts: TaskGroup, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            posts.start_soon(self._post_in_turn, posts, [row])

    patch.setattr(Reporting, "_split", by_event)
