"""Cases of JournalConformance: the outbox, and what the service accepts and refuses."""

from __future__ import annotations

import json

import pytest

from deliveryd.errors import IllegalTransition, OutOfOrder
from deliveryd.journal.base import Counts, Recovery
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import Malformed, StatusEvent, Transition, format_instant
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    DAYS_LATER,
    NOW,
    accept_all,
    attempt_on,
    deliver_to_sent,
    hand_over,
    make_ready,
    receive_all,
    refuse_first,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)


class ReportingCases:
    """What a journal must do: the outbox, and what the service accepts and refuses."""

    async def test_a_message_is_ready_once_its_dequeued_is_accepted(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(1), sample_message(2)], [], NOW)
            await journal.accept(await journal.outbox(0, 1), NOW)
            assert await state_counts(journal) == {State.TAKEN: 1, State.READY: 1}
            assert await waiting_events(journal) == [(2, "dequeued")]

    async def test_a_message_whose_dequeued_is_refused_is_set_aside(self, open_journal: OpenJournal) -> None:
        """It is no longer open, and its event isn't offered again."""
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            (row,) = await journal.outbox(0, 10)
            await journal.refuse(row, "400", NOW)
            assert await journal.counts() == Counts({}, 0, 1, 0, 0)
        async with open_journal() as journal:
            recovery = await journal.recover(NOW, [])
            assert recovery == Recovery([], [], 0, [])

    async def test_a_message_that_was_set_aside_and_comes_back_to_the_line_is_open_again(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
            await journal.change([Transition(sample_entry(1), State.SET_ASIDE, State.TAKEN, NOW)])
            assert await state_counts(journal) == {State.TAKEN: 1}
            assert await journal.prune(NOW + 1, 10) == 0

    async def test_a_message_that_was_set_aside_is_ready_once_its_repeated_dequeued_is_accepted(
        self,
        open_journal: OpenJournal,
    ) -> None:
        """It is given back to the line, once; its `dequeued` has the same words as before."""
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            refused = await refuse_first(journal, NOW)
            assert await journal.take([sample_message(1)], [], NOW + 1) == {}
            again = await journal.outbox(0, 10)
            assert [row.body for row in again] == [refused.body]
            assert await journal.counts() == Counts({}, 1, 0, 0, 0)
            assert await journal.accept(again, NOW + 2) == [sample_entry(1)._replace(taken_at=NOW)]
            assert await state_counts(journal) == {State.READY: 1}
            await journal.take([sample_message(1)], [], NOW + 3)
            assert await journal.accept(await journal.outbox(0, 10), NOW + 4) == []
            assert await state_counts(journal) == {State.READY: 1}
            assert await journal.prune(NOW + 5, 10) == 0

    async def test_a_refused_dequeued_is_offered_at_once_and_then_after_pauses_that_double(
        self, open_journal: OpenJournal
    ) -> None:
        """In one row however often, and up to an hour apart; between those times a repeat changes nothing."""
        minute = 60_000_000
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            at = NOW
            for times, pause in enumerate([0, 1, 2, 4, 8, 16, 32, 60, 60], 1):
                (row,) = await journal.outbox(0, 10)
                assert await journal.refuse(row, "400", at) == times
                if pause:
                    await journal.take([sample_message(1)], [], at + pause * minute - 1)
                    assert await journal.outbox(0, 10) == []
                at += pause * minute
                await journal.take([sample_message(1)], [], at)
            assert await waiting_events(journal) == [(1, "dequeued")]
            await refuse_first(journal, at)
            assert await journal.counts() == Counts({}, 0, 1, 0, 0)
            await journal.take([sample_message(1)], [], at - minute)  # the clock was put back
            assert await waiting_events(journal) == [(1, "dequeued")]

    async def test_no_event_is_before_its_messages_refused_one_though_the_clock_was_put_back_meanwhile(
        self,
        open_journal: OpenJournal,
    ) -> None:
        """Also where the service accepted no event, so that only a refusal has the earlier time."""
        an_hour_back = NOW - 3_600_000_000
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            await refuse_first(journal, NOW)
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], an_hour_back)
            (entry,) = await journal.accept(await journal.outbox(0, 10), an_hour_back)
            error = StatusEvent(1, "error", an_hour_back, details="no content")
            await journal.change(
                [Transition(entry, State.READY, State.FAILED, an_hour_back, events=(error,))]
            )
            (row,) = await journal.outbox(0, 10)
            assert json.loads(row.body)["timestamp"] >= format_instant(NOW)

    async def test_an_operators_drop_outlasts_an_acceptance(self, open_journal: OpenJournal) -> None:
        """What was given up is reported as dequeued, so that the queue lets go of it, and isn't sent."""
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            await refuse_first(journal, NOW)
            await journal.decide(Order(Action.DROP, ItemKind.MESSAGE, ("1",)), NOW, ["sms"])
            await journal.take([sample_message(1)], [], NOW + 1)
            again = await journal.outbox(0, 10)
            assert [row.status for row in again] == ["dequeued"]
            assert await journal.accept(again, NOW + 2) == []
            assert await state_counts(journal) == {}

    @pytest.mark.parametrize("verb", [Action.RETRY, Action.DROP])
    async def test_an_operator_can_decide_while_a_refused_dequeued_is_reported_again(
        self, open_journal: OpenJournal, verb: Action
    ) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            await refuse_first(journal, NOW)
            await journal.take([sample_message(1)], [], NOW + 1)
            decided = await journal.decide(Order(verb, ItemKind.MESSAGE, ("1",)), NOW + 2, ["sms"])
            assert decided.done == ("1",)
            await accept_all(journal)
            assert await state_counts(journal) == ({State.READY: 1} if verb is Action.RETRY else {})

    @pytest.mark.parametrize("is_forgotten", [False, True], ids=["kept", "forgotten"])
    async def test_a_repeated_dequeued_of_a_sent_message_that_is_refused_moves_nothing_and_pauses_too(
        self, open_journal: OpenJournal, is_forgotten: bool
    ) -> None:
        """However often the queue hands it out, no more than one refused row is there."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            if is_forgotten:
                assert await journal.prune(DAYS_LATER, 10) == 1
            at = NOW
            for times in range(1, 4):
                at = NOW + times * 3_600_000_000
                await journal.take([sample_message(1)], [], at)
                assert await waiting_events(journal) == [(1, "dequeued"), (1, "sent")]
                await refuse_first(journal, at)
                await accept_all(journal)
                assert (await journal.counts()).events_refused == 1
            await journal.take([sample_message(1)], [], at + 60_000_000)
            assert await waiting_events(journal) == []
            assert await state_counts(journal) == {}

    async def test_a_refused_status_ends_nothing(self, open_journal: OpenJournal) -> None:
        """Only a refused `dequeued` says anything about whether a message may be sent."""
        async with open_journal() as journal:
            await hand_over(journal, 1)
            await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
            assert await receive_all(journal, [sample_receipt()]) == ["matched"]

    async def test_the_outbox_gives_the_oldest_first_in_portions(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(id_) for id_ in (5, 3, 4)], [], NOW)
            await journal.take([sample_message(1)], [], NOW)
            first = await journal.outbox(0, 3)
            assert [row.message_id for row in first] == [5, 3, 4]
            assert [row.message_id for row in await journal.outbox(first[-1].seq, 3)] == [1]
            assert await journal.outbox(0, 0) == []

    async def test_events_keep_their_order_over_restarts(self, open_journal: OpenJournal) -> None:
        """Numbers go on where they were, also when every earlier event was accepted."""
        seqs = []
        for id_ in (9, 8, 7):
            async with open_journal() as journal:
                await journal.take([sample_message(id_)], [], NOW)
                seqs += [row.seq for row in await accept_all(journal)]
        assert seqs == sorted(set(seqs))

    @pytest.mark.parametrize("refused", [False, True], ids=["accepted", "refused"])
    async def test_an_event_cannot_be_settled_before_one_that_waits_ahead_of_it(
        self, open_journal: OpenJournal, refused: bool
    ) -> None:
        """The one ahead would never be reported: nothing changes; in the right order both are settled."""
        async with open_journal() as journal:
            await journal.take([sample_message(1), sample_message(2), sample_message(3)], [], NOW)
            first, second, third = await journal.outbox(0, 10)
            with pytest.raises(OutOfOrder, match=f"event {third.seq} .* before event {first.seq}"):
                await (journal.refuse(third, "400", NOW) if refused else journal.accept([second, third], NOW))
            assert await waiting_events(journal) == [(1, "dequeued"), (2, "dequeued"), (3, "dequeued")]
            assert await state_counts(journal) == {State.TAKEN: 3}
            await journal.accept([first], NOW)
            with pytest.raises(OutOfOrder, match=f"event {third.seq} .* before event {second.seq}"):
                await journal.accept([first, third], NOW)
            await journal.refuse(second, "400", NOW)
            await journal.accept([third], NOW)
            assert await waiting_events(journal) == []
            assert await state_counts(journal) == {State.READY: 2}

    async def test_a_message_goes_on_before_the_events_ahead_of_its_own_are_answered(
        self, open_journal: OpenJournal
    ) -> None:
        """It is READY; its event stays in the outbox, and changes nothing when it is settled in its turn."""
        async with open_journal() as journal:
            await journal.take([sample_message(1), sample_message(2), sample_message(3)], [], NOW)
            first, second, third = await journal.outbox(0, 10)
            assert await journal.accept_early([second, third], NOW) == []
            assert await state_counts(journal) == {State.TAKEN: 1, State.READY: 2}
            assert len(await waiting_events(journal)) == 3
            await journal.refuse(first, "400", NOW)
            assert await journal.accept([second, third], NOW) == []
            assert await waiting_events(journal) == []
            assert await state_counts(journal) == {State.READY: 2}

    async def test_a_message_that_was_set_aside_goes_on_early_too(self, open_journal: OpenJournal) -> None:
        """The service accepts its `dequeued` after all, while an event ahead of it has no answer yet."""
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
            await journal.take([sample_message(2), sample_message(1)], [], NOW + 1)
            ahead, again = await journal.outbox(0, 10)
            assert (ahead.message_id, again.message_id) == (2, 1)
            (entry,) = await journal.accept_early([again], NOW + 2)
            assert entry.id == 1
            assert await state_counts(journal) == {State.TAKEN: 1, State.READY: 1}
            assert await journal.accept([ahead, again], NOW + 3) == []
            assert await state_counts(journal) == {State.READY: 2}

    async def test_events_that_are_put_last_wait_with_the_later_ones_of_their_message(
        self, open_journal: OpenJournal
    ) -> None:
        """All others can be settled then, and those of the message stay in order."""
        async with open_journal() as journal:
            await journal.take([sample_message(2)], [Malformed("{1}", "no message", 1)], NOW)
            rows = await journal.outbox(0, 10)
            first = next(row for row in rows if row.message_id == 1)
            await journal.put_last([first])
            assert await waiting_events(journal) == [(2, "dequeued"), (1, "dequeued"), (1, "error")]
            other, dequeued, error = await journal.outbox(0, 10)
            await journal.accept([other], NOW)
            await journal.put_last([dequeued])
            assert await waiting_events(journal) == [(1, "dequeued"), (1, "error")]
            assert await journal.accept(await journal.outbox(error.seq, 10), NOW) == []
            assert await waiting_events(journal) == []

    async def test_what_was_settled_stays_as_it_is(self, open_journal: OpenJournal) -> None:
        """Neither a second acceptance nor a late refusal changes anything."""
        async with open_journal() as journal:
            await journal.take([sample_message(1), sample_message(2)], [], NOW)
            rows = await accept_all(journal)
            await journal.accept(rows, NOW + 1)
            await journal.refuse(rows[0], "400", NOW + 1)
            assert await journal.counts() == Counts({State.READY: 2}, 0, 0, 0, 0)

    async def test_a_number_that_no_event_got_holds_nothing_up(self, open_journal: OpenJournal) -> None:
        """An operation that failed after it had put events in leaves a gap."""
        async with open_journal() as journal:
            await make_ready(journal, 1)
            for id_ in (1, 99):
                step = Transition(
                    attempt_on(id_), State.READY, State.SENDING, NOW, events=(StatusEvent(1, "x", NOW),)
                )
                if id_ == 99:
                    with pytest.raises(IllegalTransition):
                        await journal.change([step])
                else:
                    await journal.change([step])
            await journal.take([sample_message(2)], [], NOW)
            assert [row.status for row in await accept_all(journal)] == ["x", "dequeued"]
            assert await state_counts(journal) == {State.READY: 1, State.SENDING: 1}
