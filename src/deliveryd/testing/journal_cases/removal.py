"""Cases of JournalConformance: a provider that is removed while the worker runs."""

from __future__ import annotations

from deliveryd.journal.base import Left, Orphans
from deliveryd.model import Transition
from deliveryd.runtime import waits
from deliveryd.states import State
from deliveryd.testing.journal_cases.protocol import OpenJournal
from deliveryd.testing.journal_cases.samples import (
    NOW,
    ONE_SECOND,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    deliver_to_sent,
    make_ready,
    sample_entry,
    state_counts,
)


class RemovalCases:
    """What a journal must do: a provider that is removed while the worker runs."""

    async def test_what_waits_at_a_removed_provider_is_due_at_any(self, open_journal: OpenJournal) -> None:
        """Whatever it waits for there; what waits elsewhere stays as it is."""
        async with open_journal() as journal:
            await make_ready(journal, 1)
            there = sample_entry(1, provider="sms")
            later = NOW + 60 * ONE_SECOND
            await journal.change(
                [Transition(there, State.READY, State.WAITING, NOW, later, waits_for=waits.alone("sms"))]
            )
            await bring_to_wait(journal, 2, later, "sms")
            await bring_to_wait(journal, 3, later, "email")
            assert await journal.leave(["sms"], NOW, 10) == Left(0, 2)
            assert await journal.leave(["sms"], NOW, 10) == Left(0, 0)
            due = (await journal.due(NOW, {"": 10, "sms": 10, "email": 10})).entries
            assert [(entry.id, entry.provider) for entry in due] == [(1, None), (2, None)]

    async def test_what_is_in_doubt_at_a_removed_provider_is_held(self, open_journal: OpenJournal) -> None:
        """And listed as held there."""
        async with open_journal() as journal:
            entry = await bring_in_doubt(journal, 7, State.WAITING)
            assert await journal.leave(["sms"], NOW, 10) == Left(1, 0)
            assert await state_counts(journal) == {State.IN_DOUBT: 1}
            assert [each.entry.id for each in await journal.held(["sms"], 0, 10)] == [entry.id]
            assert await journal.held(["email"], 0, 10) == await journal.held(["sms"], 7, 10) == []

    async def test_portions_are_no_larger_than_asked_for(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            for id_ in range(1, 6):
                await bring_to_wait(journal, id_, NOW + ONE_SECOND, "sms")
            released = [(await journal.leave(["sms"], NOW, 2)).released for _ in range(4)]
            assert released == [2, 2, 1, 0]

    async def test_the_orphans_of_a_provider_are_counted(self, open_journal: OpenJournal) -> None:
        """In doubt, waiting, and sent since an instant; what is under way isn't among them."""
        async with open_journal() as journal:
            await bring_in_doubt(journal, 1)
            await bring_in_doubt(journal, 2, State.WAITING)
            await bring_to_wait(journal, 3, NOW + ONE_SECOND, "sms")
            await deliver_to_sent(journal, 4)
            await make_ready(journal, 5)
            await begin_attempts(journal, attempt_on(5))
            assert await journal.orphans("sms", 0) == Orphans(2, 1, 1, 0)
            assert await journal.orphans("sms", NOW + 99 * ONE_SECOND) == Orphans(2, 1, 0, 0)
            assert await journal.orphans("email", 0) == Orphans()
