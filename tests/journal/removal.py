"""Cases of JournalConformance: a provider that is removed while the worker runs."""

from __future__ import annotations

import pytest

from deliveryd import transitions
from deliveryd.journal.base import Left, Orphans
from deliveryd.journal.journal import Journal
from deliveryd.model import Content, Entry, Outcome, Rendered, Transition
from deliveryd.runtime import waits
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
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
            assert await journal.leave(["sms"], [], NOW, 10) == Left(0, 2, 0)
            assert await journal.leave(["sms"], [], NOW, 10) == Left(0, 0, 0)
            due = (await journal.due(NOW, {"": 10, "sms": 10, "email": 10})).entries
            assert [(entry.id, entry.provider) for entry in due] == [(1, None), (2, None)]

    @pytest.mark.parametrize("way", ["removed", "disabled", "restart", "released"])
    @pytest.mark.parametrize("tries", ["none", "in vain", "may have arrived"])
    async def test_a_message_is_released_by_the_step_of_the_transitions(
        self, open_journal: OpenJournal, tries: str, way: str
    ) -> None:
        """Nothing else is written: what the journal has afterwards is what the step says, in every column."""
        async with open_journal() as journal:
            entry = await _at_sms(journal, tries)
            if way == "removed":
                await journal.leave(["sms"], [], NOW + 2, 10)
            elif way == "disabled":
                await journal.leave([], ["sms"], NOW + 2, 10)
            elif way == "restart":
                await journal.recover(NOW + 2, ["email"])
            else:
                assert await journal.release("sms", NOW + 2, 10) == 1
            step = transitions.released(entry, State.WAITING, NOW + 2)
            assert (await journal.due(NOW + 2, {"": 10})).entries == [step.entry]

    async def test_a_message_leaves_only_what_it_was_tried_at_and_may_have_arrived_at(
        self, open_journal: OpenJournal
    ) -> None:
        """It would say something else there under its key; one that wasn't tried there may come back."""
        async with open_journal() as journal:
            for tries, spent in (("none", ()), ("in vain", ()), ("may have arrived", ("sms",))):
                entry = await _at_sms(journal, tries, id_=len(tries))
                left = entry.left("the provider was removed")
                assert tuple(each.provider for each in left.spent) == spent
                assert (left.content, left.digest, left.stay_tries) == (None, None, 0)

    async def test_what_is_in_doubt_at_a_removed_provider_is_held(self, open_journal: OpenJournal) -> None:
        """And listed as held there."""
        async with open_journal() as journal:
            entry = await bring_in_doubt(journal, 7, State.WAITING)
            assert await journal.leave([], ["sms"], NOW, 10) == Left(0, 0, 0)
            assert await journal.leave(["sms"], [], NOW, 10) == Left(1, 0, 0)
            assert await state_counts(journal) == {State.IN_DOUBT: 1}
            assert [each.entry.id for each in await journal.held(["sms"], 0, 10)] == [entry.id]
            assert await journal.held(["email"], 0, 10) == await journal.held(["sms"], 7, 10) == []

    @pytest.mark.parametrize("way", ["removed", "disabled"])
    async def test_what_is_held_without_a_doubt_is_due_at_any_provider(
        self, open_journal: OpenJournal, way: str
    ) -> None:
        """It was only put off, and its kept content didn't fit; what is held in doubt stays held."""
        async with open_journal() as journal:
            entry = await _at_sms(journal, "may have arrived")
            later = NOW + 60 * ONE_SECOND
            assert (await journal.due(later, {"sms": 1})).entries == [entry]
            await journal.change([transitions.not_repeated(entry, State.READY, later, "why")])
            doubtful = await bring_in_doubt(journal, 7)
            removed, disabled = (["sms"], []) if way == "removed" else ([], ["sms"])
            assert await journal.leave(removed, disabled, later, 10) == Left(0, 0, 1)
            assert [each.entry.id for each in await journal.held(["sms"], 0, 10)] == [doubtful.id]
            step = transitions.released(entry, State.IN_DOUBT, later)
            assert (await journal.due(later, {"": 10})).entries == [step.entry]

    async def test_portions_are_no_larger_than_asked_for(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            for id_ in range(1, 6):
                await bring_to_wait(journal, id_, NOW + ONE_SECOND, "sms")
            released = [(await journal.leave(["sms"], [], NOW, 2)).released for _ in range(4)]
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


async def _at_sms(journal: Journal, tries: str, id_: int = 1) -> Entry:
    """A message that waits for the provider sms, after a try of a kind."""
    later = NOW + 60 * ONE_SECOND
    if tries == "none":
        await bring_to_wait(journal, id_, later, "sms")
        return sample_entry(id_, provider="sms")
    await make_ready(journal, id_)
    await begin_attempts(journal, attempt_on(id_))
    content = Content(Rendered("sms", "en", {"text": "hello"}), {}) if tries == "may have arrived" else None
    entry = attempt_on(id_).tried()._replace(content=content)
    outcome = Outcome("try_again", None, "provider answered 503")
    await journal.change([Transition(entry, State.SENDING, State.WAITING, NOW + 1, later, outcome)])
    return entry
