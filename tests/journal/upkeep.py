"""Cases of JournalConformance: recovery at the start, sums, and pruning."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deliveryd.journal.base import Counts, Doubtful, Open, OutboxRow
from deliveryd.model import Malformed, Outcome, Transition
from deliveryd.runtime import waits
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    deliver_to_sent,
    hand_over,
    make_ready,
    receive_all,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
)


class UpkeepCases:
    """What a journal must do: recovery at the start, sums, and pruning."""

    async def test_a_journal_without_a_past_has_nothing_to_recover(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            recovery = await journal.recover(NOW, ["sms"])
            assert (list(recovery.taken), recovery.doubtful, recovery.waiting, recovery.reporting) == (
                [],
                [],
                0,
                [],
            )
            assert await journal.counts() == Counts({}, 0, 0, 0, 0)

    async def test_what_is_open_is_counted_by_provider_with_the_oldest_of_it(
        self, open_journal: OpenJournal
    ) -> None:
        """Of what waits, of what is held in doubt, and of the events that aren't accepted."""
        async with open_journal() as journal:
            assert await journal.open_work() == Open()
            await bring_in_doubt(journal, 1)
            later = NOW + ONE_SECOND
            await journal.take([sample_message(id_) for id_ in (2, 3, 4, 5)], [], later)
            first = await journal.open_work()
            assert (first.waiting, first.in_doubt) == ({}, {"sms": 1})
            assert (first.oldest_message, first.oldest_event) == (later, later)
            await accept_all(journal)
            for id_, provider, waits_for in (
                (2, "sms", None),
                (3, "email", waits.room("email")),
                (4, None, waits.settings(40)),
                (5, None, waits.end_of_pause("settings", "50")),
            ):
                entry = sample_entry(id_, provider=provider)
                step = Transition(entry, State.READY, State.WAITING, later, later, waits_for=waits_for)
                await journal.change([step])
            found = await journal.open_work()
            assert dict(found.waiting) == {"sms": 1, "email": 1, "": 1}
            assert dict(found.causes) == {"retries": 1, "providers": 1, "settings": 1}
            assert (found.oldest_message, found.oldest_event) == (later, None)

    async def test_what_was_in_the_hands_of_the_line_waits_and_is_due_at_once(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1, 2)
            await bring_to_wait(journal, 3, NOW + ONE_SECOND)
        async with open_journal() as journal:
            assert (await journal.recover(NOW, ["sms"])).waiting == 3
            assert [entry.id for entry in (await journal.due(NOW, {"": 10})).entries] == [1, 2]

    async def test_an_attempt_with_an_intent_and_no_outcome_is_doubtful_under_its_key(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1, 2)
            await begin_attempts(journal, attempt_on(1, key=3), attempt_on(2))
            held, why = attempt_on(2)._replace(doubt=True), Outcome("in_doubt", None, "cut off")
            await journal.change([Transition(held, State.SENDING, State.IN_DOUBT, NOW, outcome=why)])
        async with open_journal() as journal:
            assert (await journal.recover(NOW, ["sms"])).doubtful == [
                Doubtful(attempt_on(1, key=3), State.SENDING),
                Doubtful(attempt_on(2)._replace(doubt=True), State.IN_DOUBT, "cut off"),
            ]

    async def test_a_message_of_a_channel_that_is_gone_is_free_to_take_another(
        self, open_journal: OpenJournal
    ) -> None:
        """Its tries there count no more; if its channel is back first, it goes on there under its key."""
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await begin_attempts(journal, attempt_on(1, "pager"))
            entry = attempt_on(1, "pager")._replace(counted_tries=1)
            await journal.change(
                [Transition(entry, State.SENDING, State.WAITING, NOW, NOW, Outcome("try_again"))]
            )
        async with open_journal() as journal:
            assert (await journal.recover(NOW, ["sms"])).waiting == 1
            (found,) = (await journal.due(NOW, {"": 10})).entries
            assert found == entry.released()
            assert (found.bound("sms").stay, found.bound("pager").stay, found.spent) == (2, 1, ())

    async def test_a_message_in_doubt_of_a_channel_that_is_gone_is_held(
        self, open_journal: OpenJournal
    ) -> None:
        """Another channel might send it a second time."""
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await begin_attempts(journal, attempt_on(1, "pager"))
            entry = attempt_on(1, "pager")._replace(doubt=True)
            await journal.change(
                [Transition(entry, State.SENDING, State.WAITING, NOW, NOW, Outcome("in_doubt"))]
            )
        async with open_journal() as journal:
            recovery = await journal.recover(NOW, ["sms"])
            assert recovery.doubtful == [Doubtful(entry, State.IN_DOUBT)]
            assert recovery.waiting == 0

    async def test_counts_are_of_what_is_open(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await bring_to_wait(journal, 2, NOW)
            await journal.take([sample_message(3)], [Malformed("1", "no object", None)], NOW)
            await receive_all(journal, [sample_receipt("p7")])
            assert await journal.counts() == Counts({State.WAITING: 1, State.TAKEN: 1}, 1, 0, 1, 1)

    async def test_a_forgotten_message_is_still_known_when_it_comes_again(
        self, open_journal: OpenJournal
    ) -> None:
        """It isn't sent again, and reported with the same words, as often as it comes."""
        async with open_journal() as journal:
            await hand_over(journal, 1)
            (sent,) = await accept_all(journal)
            assert await journal.prune(DAYS_LATER, 10) == 1
            assert await journal.prune(DAYS_LATER, 10) == 0
            for _ in range(3):
                assert not await journal.take([sample_message(1)], [], NOW + ONE_SECOND)
                assert not await journal.take([sample_message(1)], [], NOW + ONE_SECOND)
                dequeued, again = await accept_all(journal)
                assert (dequeued.status, again.body) == ("dequeued", sent.body)
            assert await receive_all(journal, [sample_receipt()]) == ["unmatched"]

    async def test_a_forgotten_malformed_element_is_still_one_error(self, open_journal: OpenJournal) -> None:
        bad = Malformed('{"id": 7}', "no settings", 7)
        async with open_journal() as journal:
            await journal.take([], [bad], NOW)
            told = await accept_all(journal)
            assert [row.status for row in told] == ["dequeued", "error"]
            assert await journal.prune(DAYS_LATER, 10) == 2
            assert (await journal.counts()).malformed == 0
            await journal.take([], [bad], NOW)
            assert [row.body for row in await journal.outbox(0, 10)] == [row.body for row in told]

    async def test_only_what_ended_long_ago_is_forgotten(self, open_journal: OpenJournal) -> None:
        """The oldest first, as many as asked for; what ended later or not at all stays."""
        async with open_journal() as journal:
            for id_ in (1, 2, 3):
                await deliver_to_sent(journal, id_, f"p{id_}")
            await bring_to_wait(journal, 4, NOW)
            assert await journal.prune(NOW + 5, 10) == 0
            assert await journal.prune(DAYS_LATER, 2) == 2
            assert await journal.prune(DAYS_LATER, 2) == 1
            assert await state_counts(journal) == {State.WAITING: 1}

    async def test_a_message_with_an_event_that_waits_or_was_refused_is_not_forgotten(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1, 2)
            await begin_attempts(journal, attempt_on(1), attempt_on(2))
            await journal.change([accepted_step(attempt_on(id_), f"p{id_}") for id_ in (1, 2)])
            await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
            assert await journal.prune(DAYS_LATER, 10) == 0
            await accept_all(journal)
            assert await journal.prune(DAYS_LATER, 10) == 1

    async def test_receipts_that_nothing_ever_matched_are_forgotten_too(
        self, open_journal: OpenJournal
    ) -> None:
        """Whoever can report receipts can't fill the disk for good."""
        async with open_journal() as journal:
            await receive_all(journal, [sample_receipt(f"q{number}", NOW + number) for number in range(10)])
            await journal.prune(NOW + 5, 3)
            assert (await journal.counts()).receipts_unmatched == 7
            await journal.prune(NOW + 5, 3)
            assert (await journal.counts()).receipts_unmatched == 5

    @pytest.mark.slow
    async def test_twenty_thousand_messages_at_once(self, open_journal: OpenJournal) -> None:
        ids = range(1, 20_001)
        entries = [attempt_on(id_) for id_ in ids]
        async with open_journal() as journal:
            assert len(await journal.take([sample_message(id_, a="x") for id_ in ids], [], NOW)) == 20_000
            await accept_all(journal)
            await begin_attempts(journal, *entries)
            await journal.change([accepted_step(entry, f"p{entry.id}") for entry in entries])
            rows: Sequence[OutboxRow] = await journal.outbox(0, 500)
            assert [row.message_id for row in rows] == list(range(1, 501))
            assert not await journal.take([sample_message(id_) for id_ in ids], [], NOW)
            await accept_all(journal)
            assert await journal.prune(DAYS_LATER, 15_000) == 15_000
            assert await journal.counts() == Counts({}, 0, 0, 0, 0)
