"""Cases of JournalConformance: what is taken, repeated or malformed."""

from __future__ import annotations

import json

import pytest

from deliveryd.model import Entry, Malformed, QueuedMessage, Spent, StatusEvent, Transition
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    NOW,
    accept_all,
    deliver_to_sent,
    hand_over,
    receive_all,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)


class IntakeCases:
    """What a journal must do: what is taken, repeated or malformed."""

    async def test_a_new_message_is_taken_and_its_dequeued_event_waits_in_the_outbox(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            assert set(await journal.take([sample_message(1), sample_message(2)], [], NOW)) == {1, 2}
            assert await state_counts(journal) == {State.TAKEN: 2}
            assert await waiting_events(journal) == [(1, "dequeued"), (2, "dequeued")]
            body = json.loads((await journal.outbox(0, 1))[0].body)
            assert body == {"timestamp": "2023-11-14T22:13:20.000000Z", "messageId": 1, "status": "dequeued"}

    async def test_what_was_taken_is_there_after_a_restart(self, open_journal: OpenJournal) -> None:
        """Variables come back as they were written, number texts and all."""
        async with open_journal() as journal:
            await journal.take([sample_message(1, amount="10.50", **{"tid.0": "ü\u0000😀"})], [], NOW)
            namespace = journal.namespace
        async with open_journal() as journal:
            assert (await journal.recover(NOW, ["sms"])).taken == [
                Entry(1, 10, 100, {"amount": "10.50", "tid.0": "ü\u0000😀"}, taken_at=NOW)
            ]
            assert journal.namespace == namespace
            assert await waiting_events(journal) == [(1, "dequeued")]

    async def test_a_message_that_occurs_twice_in_a_batch_is_taken_once_as_it_came_first(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            assert set(
                await journal.take([sample_message(1, a="first"), sample_message(1, a="second")], [], NOW)
            ) == {1}
            assert await waiting_events(journal) == [(1, "dequeued")]
            assert (await journal.recover(NOW, [])).taken[0].variables == {"a": "first"}

    async def test_a_repeat_is_not_recorded_again_and_its_events_are_not_doubled_while_they_wait(
        self,
        open_journal: OpenJournal,
    ) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW)
            assert not await journal.take([sample_message(1)], [], NOW + 1)
            assert await waiting_events(journal) == [(1, "dequeued")]
            assert await state_counts(journal) == {State.TAKEN: 1}

    async def test_a_repeat_of_a_sent_message_reports_dequeued_and_the_latest_status_again(
        self, open_journal: OpenJournal
    ) -> None:
        """With the timestamps of then: the bodies are the same to the letter."""
        async with open_journal() as journal:
            await hand_over(journal, 1)
            (sent,) = await accept_all(journal)
            assert not await journal.take([sample_message(1)], [], NOW + 50)
            dequeued, again = await journal.outbox(0, 10)
            assert (dequeued.status, json.loads(dequeued.body)["timestamp"]) == (
                "dequeued",
                "2023-11-14T22:13:20.000000Z",
            )
            assert (again.status, again.body) == ("sent", sent.body)

    async def test_a_repeat_reports_the_latest_status_again_that_the_service_accepted(
        self, open_journal: OpenJournal
    ) -> None:
        """Not one that it refused: that is set aside, and `dequeued` would be the last event."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await receive_all(journal, [sample_receipt()])
            await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
            await journal.take([sample_message(1)], [], NOW)
            assert await waiting_events(journal) == [(1, "dequeued"), (1, "sent")]

    async def test_a_repeat_that_was_reported_again_can_be_reported_again_and_again(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            for _ in range(3):
                await journal.take([sample_message(1)], [], NOW)
                assert [row.status for row in await accept_all(journal)] == ["dequeued", "sent"]
            assert await state_counts(journal) == {}

    async def test_a_malformed_element_without_an_id_is_kept_and_reported_to_nobody(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            assert not await journal.take([], [Malformed('"x"', "not an object", None)], NOW)
            assert (await journal.counts()).malformed == 1
            assert await waiting_events(journal) == []

    async def test_a_malformed_element_with_an_id_is_one_error_event_however_often_it_comes(
        self, open_journal: OpenJournal
    ) -> None:
        bad = Malformed('{"id": 7}', "settingsId: Field required", 7)
        async with open_journal() as journal:
            assert set(await journal.take([sample_message(1)], [bad], NOW)) == {1}
            rows = await accept_all(journal)
            told = [(row.message_id, row.status) for row in rows]
            assert told == [(1, "dequeued"), (7, "dequeued"), (7, "error")]
            assert json.loads(rows[2].body)["details"] == "malformed message: settingsId: Field required"
            await journal.take([], [bad, bad], NOW)
            assert await waiting_events(journal) == [(7, "dequeued"), (7, "error")]
            assert (await journal.counts()).malformed == 1

    async def test_a_malformed_element_takes_nothing_from_a_message_with_its_id(
        self, open_journal: OpenJournal
    ) -> None:
        """Neither in the same batch nor later: the message goes on."""
        bad = Malformed('{"id": 1}', "no settings", 1)
        async with open_journal() as journal:
            assert set(await journal.take([sample_message(1)], [bad], NOW)) == {1}
            await journal.take([], [bad], NOW)
            assert await waiting_events(journal) == [(1, "dequeued")]
            assert await state_counts(journal) == {State.TAKEN: 1}

    async def test_unpaired_surrogates_are_carried_like_any_text(self, open_journal: OpenJournal) -> None:
        """JSON can say `\\ud800`, UTF-8 can't: the message keeps it, and no other message suffers."""
        async with open_journal() as journal:
            bad = Malformed('"\ud800"', "no object: \udfff", 2)
            await journal.take([sample_message(1, **{"\ud800": "a\udfff"}), sample_message(3)], [bad], NOW)
            assert len(await accept_all(journal)) == 4
            event = StatusEvent(1, "error", NOW, details="missing placeholders: \ud800")
            entry = sample_entry(1, spent=(Spent("sms", "\udfff"),))
            await journal.change([Transition(entry, State.READY, State.FAILED, NOW, events=(event,))])
            (row,) = await journal.outbox(0, 10)
            assert row.body.encode()
            assert json.loads(row.body)["details"] == "missing placeholders: \ud800"
            await journal.refuse(row, "said \ud800", NOW)
            assert (await journal.recover(NOW, [])).waiting == 1

    async def test_surrogates_in_variables_come_back_as_they_were(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(1, **{"\ud800": "a\udfff"})], [], NOW)
            assert (await journal.recover(NOW, [])).taken[0].variables == {"\ud800": "a\udfff"}

    @pytest.mark.parametrize("id_", [-(2**63), -1, 0, 2**63 - 1])
    async def test_ids_may_be_any_integer_of_64_bits(self, open_journal: OpenJournal, id_: int) -> None:
        edge = QueuedMessage(id_, 2**63 - 1, -(2**63), {})
        async with open_journal() as journal:
            assert set(await journal.take([edge], [], NOW)) == {id_}
            assert not await journal.take([edge], [], NOW)
            assert [row.message_id for row in await accept_all(journal)] == [id_]
            await journal.change([Transition(Entry(*edge), State.READY, State.WAITING, NOW, NOW)])
            assert (await journal.due(NOW, {"": 1})).entries == [Entry(*edge, taken_at=NOW)]
