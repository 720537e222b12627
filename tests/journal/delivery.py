"""Cases of JournalConformance: steps, attempts, outcomes, and what is due."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import pytest

from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import LOWEST_ID, Due, FetchPortion
from deliveryd.journal.journal import Journal
from deliveryd.model import (
    AT_ONCE,
    STEP,
    Content,
    Entry,
    Outcome,
    QueuedMessage,
    Rendered,
    Spent,
    StatusEvent,
    Transition,
)
from deliveryd.runtime import waits
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    NOW,
    accept_all,
    attempt_on,
    begin_attempts,
    bring_to_wait,
    hand_over,
    make_ready,
    receive_all,
    sample_entry,
    sample_message,
    state_counts,
    waiting_events,
)


class DeliveryCases:
    """What a journal must do: steps, attempts, outcomes, and what is due."""

    async def test_a_step_that_the_table_does_not_have_raises_and_changes_nothing(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1, 2)
            good = Transition(sample_entry(1), State.READY, State.WAITING, NOW, NOW)
            bad = Transition(sample_entry(2), State.READY, State.DELIVERED, NOW)
            with pytest.raises(IllegalTransition):
                await journal.change([good, bad])
            assert await state_counts(journal) == {State.READY: 2}

    @pytest.mark.parametrize("id_", [2, 99], ids=["elsewhere", "unknown"])
    async def test_a_step_of_a_message_that_is_not_where_it_begins_takes_back_all(
        self, open_journal: OpenJournal, id_: int
    ) -> None:
        """Steps, attempts and events of the whole call."""
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await journal.take([sample_message(2)], [], NOW)
            event = StatusEvent(1, "sending", NOW)
            good = Transition(attempt_on(1), State.READY, State.SENDING, NOW, events=(event,))
            with pytest.raises(IllegalTransition, match="1 of 2"):
                await journal.change([good, Transition(attempt_on(id_), State.READY, State.SENDING, NOW)])
            assert await state_counts(journal) == {State.READY: 1, State.TAKEN: 1}
            assert await waiting_events(journal) == [(2, "dequeued")]
            await begin_attempts(journal, attempt_on(1))

    async def test_an_outcome_is_recorded_together_with_its_event(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await hand_over(journal, 1, None)
        async with open_journal() as journal:
            assert (await journal.recover(NOW, ["sms"])).reporting == [1]
            (row,) = await journal.outbox(0, 10)
            assert json.loads(row.body) == {
                "timestamp": "2023-11-14T22:13:20.000005Z",
                "messageId": 1,
                "status": "sent",
            }

    async def test_how_far_a_delivery_came_is_kept(self, open_journal: OpenJournal) -> None:
        said = Content(Rendered("sms", "de", {"text": "Grüße \ud800"}), {"phone": "+49"}, NOW + 9)
        entry = attempt_on(1, key=2)._replace(
            counted_tries=2,
            spent=(Spent("inApp", 'no "app"'), Spent("sms/b", "stopped", ends_channel=True)),
            doubt=True,
            content=said,
        )
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await begin_attempts(journal, attempt_on(1, key=2))
            outcome = Outcome("in_doubt", None, "cut off")
            await journal.change([Transition(entry, State.SENDING, State.WAITING, NOW, NOW + 7, outcome)])
        async with open_journal() as journal:
            await journal.recover(NOW, ["sms"])
            assert await journal.due(NOW + 7, {"sms": 1}) == Due([entry], None)

    async def test_no_steps_are_no_work(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await journal.change([])
            await journal.accept([], NOW)
            assert await receive_all(journal, []) == []

    async def test_due_messages_come_in_the_order_of_their_times_and_once(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            for id_, due_at in ((1, NOW + 3), (2, NOW + 1), (3, NOW + 2), (4, NOW + 9)):
                await bring_to_wait(journal, id_, due_at)
            due = await journal.due(NOW + 5, {"": 10})
            assert [entry.id for entry in due.entries] == [2, 3, 1]
            assert due.next_due == NOW + 9
            assert await journal.due(NOW + 5, {"": 10}) == Due([], NOW + 9)
            assert await state_counts(journal) == {State.READY: 3, State.WAITING: 1}

    async def test_due_messages_come_from_the_lanes_asked_for_as_far_as_there_is_room(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            for id_, provider in ((1, "sms"), (2, "sms"), (3, "email"), (4, None), (5, None)):
                await bring_to_wait(journal, id_, NOW + id_, provider)
            due = await journal.due(NOW + 10, {"sms": 1, "": 2})
            assert [entry.id for entry in due.entries] == [1, 4, 5]
            assert [entry.provider for entry in due.entries] == ["sms", None, None]
            assert due.next_due is None  # of sms more is due already, and of no provider nothing is left
            assert await journal.due(NOW, {"sms": 1, "email": 1}) == Due([], NOW + 2)
            assert await journal.due(NOW + 10, {}) == Due([], None)

    async def test_a_step_is_due_as_far_ahead_as_the_journal_is_when_it_is_recorded(
        self, open_journal: OpenJournal
    ) -> None:
        """But for one that is due at once, or when it expires since it is paused."""
        async with open_journal() as journal:
            await make_ready(journal, 1, 2, 3)
            steps = [
                Transition(sample_entry(1), State.READY, State.WAITING, NOW, NOW + 5),
                Transition(sample_entry(2), State.READY, State.WAITING, NOW, AT_ONCE),
                Transition(
                    sample_entry(3), State.READY, State.WAITING, NOW, NOW + 5, waits_for="paused channel sms"
                ),
            ]
            await journal.change(steps, lambda at: STEP if at == NOW else 0)
            due = await journal.due(NOW, {"": 10})
            assert ([entry.id for entry in due.entries], due.next_due) == ([2], NOW + STEP + 5)
            assert [entry.id for entry in (await journal.overdue(NOW + 5, 10)).entries] == [3]

    async def test_a_step_that_is_recorded_before_the_journal_follows_the_clock_is_due_in_its_time(
        self, open_journal: OpenJournal
    ) -> None:
        """A step of the clock back or forward moves it; what is due at once stays so."""
        async with open_journal() as journal:
            for number, back in enumerate((10 * STEP, -10 * STEP), 1):
                await make_ready(journal, number)
                step = Transition(sample_entry(number), State.READY, State.WAITING, NOW, NOW + 5)
                await journal.change([step], {NOW: back}.__getitem__)
                await journal.retime(back, lambda: NOW, 100 * STEP)
                assert (await journal.due(NOW + 4, {"": 10})).next_due == NOW + 5
                assert len((await journal.due(NOW + 5, {"": 10})).entries) == 1
            await make_ready(journal, 3)
            step = Transition(sample_entry(3), State.READY, State.WAITING, NOW, AT_ONCE)
            await journal.change([step])
            await journal.retime(-10 * STEP, lambda: NOW, 100 * STEP)
            assert len((await journal.due(AT_ONCE, {"": 10})).entries) == 1

    async def test_settings_ids_take_turns_at_what_waits_for_room(self, open_journal: OpenJournal) -> None:
        """Each fetch goes on behind the id that had the latest turn; of an id, repeats come first."""
        async with open_journal() as journal:
            await _wait_for_room(journal, {1: 6, 2: 2, 3: 2})
            fetched = []
            after = LOWEST_ID
            for _ in range(3):
                entries = await journal.resume(_ROOM, [FetchPortion(4, after)])
                after = entries[-1].settings_id
                fetched += [entry.settings_id for entry in entries]
            assert fetched == [1, 2, 3, 1, 2, 3, 1, 1, 1, 1]
            assert await state_counts(journal) == {State.READY: 10}

    async def test_repeats_of_a_settings_id_are_fetched_before_its_other_messages(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await _wait_for_room(journal, {1: 3, 2: 3}, repeated=[3, 6])
            entries = await journal.resume(_ROOM, [FetchPortion(5)])
            assert [entry.id for entry in entries] == [3, 6, 1, 4, 2]
            assert [entry.id for entry in await journal.resume([waits.room("sms")], [FetchPortion(5)])] == [5]

    async def test_each_priority_has_its_portion_and_what_others_leave(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await _wait_for_room(journal, {1: 3, 2: 3, 3: 3, 4: 1})
            high, low = frozenset({4}), frozenset({1})
            portions = [
                FetchPortion(3, only=high),
                FetchPortion(1, without=high | low),
                FetchPortion(1, only=low),
            ]
            entries = await journal.resume(_ROOM, portions)
            assert [entry.settings_id for entry in entries] == [4, 2, 3, 2, 1]
            entries = await journal.resume(_ROOM, [FetchPortion(9, only=high), FetchPortion(0, only=low)])
            assert [entry.settings_id for entry in entries] == [1, 1]

    async def test_what_is_due_and_finds_no_room_waits_with_what_waits_for_it(
        self, open_journal: OpenJournal
    ) -> None:
        """A message that was tried is a repeat there; what isn't due yet stays."""
        async with open_journal() as journal:
            await _wait_for_room(journal, {1: 1})
            await bring_to_wait(journal, 12, NOW + 1, "sms")
            await bring_to_wait(journal, 13, NOW + 99, "sms")
            await make_ready(journal, 14)
            tried = attempt_on(14)
            await begin_attempts(journal, tried)
            failed = Outcome("try_again", None, "busy")
            await journal.change(
                [Transition(tried, State.SENDING, State.WAITING, NOW, NOW + 1, outcome=failed)]
            )
            assert await journal.have_wait_for_room("sms", NOW + 1, 100) == 2
            assert (await journal.due(NOW + 1, {"sms": 9})).entries == []
            assert [entry.id for entry in await journal.resume([waits.repeat("sms")], [FetchPortion(9)])] == [
                14
            ]
            assert {entry.id for entry in await journal.resume(_ROOM, [FetchPortion(9)])} == {1, 12}


_ROOM = [waits.repeat("sms"), waits.room("sms")]


async def _wait_for_room(
    journal: Journal, numbers: Mapping[int, int], repeated: Collection[int] = ()
) -> None:
    """Have so many messages of these settings ids wait for room, some of them as repeats."""
    settings_ids = [settings_id for settings_id, number in numbers.items() for _ in range(number)]
    messages = [QueuedMessage(id_, settings_id, 1, {}) for id_, settings_id in enumerate(settings_ids, 1)]
    await journal.take(messages, [], NOW)
    await accept_all(journal)
    await journal.change(
        [
            transitions.deferred(
                Entry(*each, taken_at=NOW)._replace(provider="sms"),
                NOW,
                NOW + 50,
                _ROOM[0 if each.id in repeated else 1],
            )
            for each in messages
        ]
    )
