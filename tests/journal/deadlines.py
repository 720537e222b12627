"""Cases of JournalConformance: messages that weren't confirmed in time, or are reported as failed."""

from __future__ import annotations

import pytest

from deliveryd.journal.journal import Journal
from deliveryd.model import Confirmation, Entry, Outcome, Spent, Transition
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    echoed_receipt,
    fail_and_begin_anew,
    key_of,
    make_ready,
    outbox_bodies,
    receive_all,
    sample_receipt,
    state_counts,
    unnamed_failure,
)

WITHIN = 600 * ONE_SECOND
REASON = Spent("sms", "not confirmed within 10m", ends_channel=True)


async def send_to_confirm(journal: Journal, *ids: int, failed_next: bool = False, by: int = WITHIN) -> None:
    """Bring messages from the queue to SENT; a delivery has to be reported until `by` in listening time."""
    await make_ready(journal, *ids)
    await begin_attempts(journal, *(attempt_on(id_) for id_ in ids))
    confirmation = Confirmation(by, WITHIN, failed_next)
    await journal.change(
        [accepted_step(attempt_on(id_), f"p{id_}")._replace(confirmation=confirmation) for id_ in ids]
    )
    await accept_all(journal)


async def sent_on(journal: Journal, *ids: int) -> list[Entry]:
    """The deadlines of messages pass; the messages as they are due then."""
    await send_to_confirm(journal, *ids)
    passed = await journal.pass_deadlines(WITHIN, NOW + 6, ["sms"], 1000)
    assert passed.passed == {"sms": len(ids)}
    return (await journal.due(NOW + 6, {"": 1000})).entries


class DeadlineCases:
    """What a journal must do: messages that weren't confirmed in time, or are reported as failed."""

    async def test_listening_time_adds_up_and_is_durable(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            assert (await journal.pass_deadlines(5, NOW, ["sms"], 9)).listened == 5
        async with open_journal() as journal:
            assert (await journal.pass_deadlines(0, NOW, ["sms"], 9)).listened == 5
            assert (await journal.pass_deadlines(7, NOW, ["sms"], 9)).listened == 12

    async def test_a_deadline_passes_at_its_instant_and_the_message_goes_on(
        self, open_journal: OpenJournal
    ) -> None:
        """With its variables and a new key, at no provider; the service isn't told."""
        async with open_journal() as journal:
            await send_to_confirm(journal, 1)
            early = await journal.pass_deadlines(WITHIN - 1, NOW + 6, ["sms"], 9)
            assert (early.passed, early.next_by) == ({}, WITHIN)
            late = await journal.pass_deadlines(1, NOW + 6, ["sms"], 9)
            assert (late.passed, late.next_by, late.is_complete) == ({"sms": 1}, None, True)
        async with open_journal() as journal:
            await journal.recover(NOW + 7, ["sms"])
            (entry,) = (await journal.due(NOW + 7, {"": 9})).entries
            assert (entry.provider, entry.stay, entry.spent, entry.sent_by) == (None, 2, (REASON,), "sms")
            assert await outbox_bodies(journal) == []

    async def test_deadlines_pass_in_portions(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await send_to_confirm(journal, 1, 2, 3)
            first = await journal.pass_deadlines(WITHIN, NOW, ["sms"], 2)
            assert (first.passed, first.is_complete) == ({"sms": 2}, False)
            second = await journal.pass_deadlines(0, NOW, ["sms"], 2)
            assert (second.passed, second.is_complete) == ({"sms": 1}, True)

    async def test_a_delivery_in_time_takes_the_deadline_away(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await send_to_confirm(journal, 1)
            assert await receive_all(journal, [sample_receipt()]) == ["matched"]
            assert (await journal.pass_deadlines(WITHIN, NOW, ["sms"], 9)).passed == {}

    async def test_a_late_delivery_ends_a_message_that_waits_for_the_next_channel(
        self, open_journal: OpenJournal
    ) -> None:
        """`sent` isn't reported again, and the accepted try is that of the message once more."""
        async with open_journal() as journal:
            await send_to_confirm(journal, 1)
            await journal.pass_deadlines(WITHIN, NOW + 6, ["sms"], 9)
            assert await receive_all(journal, [sample_receipt()]) == ["recalled"]
            assert await outbox_bodies(journal) == [("delivered", "sms", None)]
            assert (await journal.account()).ends == {State.DELIVERED: 1}

    async def test_a_late_delivery_stops_the_next_intent(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            (entry,) = await sent_on(journal, 1)
            assert await receive_all(journal, [sample_receipt()]) == ["unmatched"]
            begun = entry.begun("email", b"87654321", NOW + 7)
            recorded = await journal.change([Transition(begun, State.READY, State.SENDING, NOW + 7)])
            assert set(recorded.settled) == {1}
            assert await outbox_bodies(journal) == [("delivered", "sms", None)]

    async def test_a_delivery_after_the_next_intent_is_reported_after_its_outcome(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            (entry,) = await sent_on(journal, 1)
            begun = entry.begun("email", b"87654321", NOW + 7)
            await journal.change([Transition(begun, State.READY, State.SENDING, NOW + 7)])
            assert await receive_all(journal, [sample_receipt()]) == ["unmatched"]
            await journal.change([accepted_step(begun, "e1")])
            assert await outbox_bodies(journal) == [("sent", None, None), ("delivered", "sms", None)]

    async def test_a_delivery_after_a_reported_failure_and_the_next_intent_is_reported_after_its_outcome(
        self, open_journal: OpenJournal
    ) -> None:
        """A provider corrects itself, by its own id, while the next channel sends."""
        async with open_journal() as journal:
            await send_to_confirm(journal, 1, failed_next=True)
            await receive_all(journal, [sample_receipt(delivered=False)])
            (entry,) = (await journal.due(NOW + 9, {"": 9})).entries
            begun = entry.begun("email", b"87654321", NOW + 9)
            await journal.change([Transition(begun, State.READY, State.SENDING, NOW + 9)])
            assert await receive_all(journal, [sample_receipt()]) == ["unmatched"]
            await journal.change([accepted_step(begun, "e1")])
            assert await outbox_bodies(journal) == [("sent", None, None), ("delivered", "sms", None)]

    async def test_a_message_that_no_later_channel_takes_is_sent_as_before(
        self, open_journal: OpenJournal
    ) -> None:
        """A delivery counts afterwards; nothing is reported of the way there and back."""
        async with open_journal() as journal:
            (entry,) = await sent_on(journal, 1)
            stays = Outcome("accepted", None, "no other channel")
            await journal.change([Transition(entry, State.READY, State.SENT, NOW + 7, outcome=stays)])
            assert await outbox_bodies(journal) == []
            assert (await journal.account()).ends == {State.SENT: 1}
            assert await receive_all(journal, [sample_receipt()]) == ["matched"]
            assert await outbox_bodies(journal) == [("delivered", "sms", None)]

    async def test_a_failure_that_is_reported_meanwhile_counts_if_no_later_channel_takes_the_message(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            (entry,) = await sent_on(journal, 1)
            assert await receive_all(journal, [sample_receipt(delivered=False)]) == ["matched"]
            stays = Outcome("accepted", None, "no other channel")
            step = Transition(entry, State.READY, State.SENT, NOW + 7, outcome=stays)
            (effect,) = (await journal.change([step])).effects
            assert (effect.ended, effect.events) == ((State.FAILED,), 1)
            assert await outbox_bodies(journal) == [("error", None, "sms: the provider reported UNDELIV")]

    async def test_a_reported_failure_of_an_earlier_try_says_nothing_of_the_accepted_one(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            again = Transition(attempt_on(7), State.SENDING, State.WAITING, NOW, NOW, Outcome("try_again"))
            await journal.change([again])
            await journal.due(NOW, {"sms": 1})
            second = attempt_on(7, number=2)
            await begin_attempts(journal, second)
            confirmation = Confirmation(WITHIN, WITHIN, False)
            await journal.change([accepted_step(second, "p7")._replace(confirmation=confirmation)])
            await accept_all(journal)
            await journal.pass_deadlines(WITHIN, NOW + 6, ["sms"], 9)
            (entry,) = (await journal.due(NOW + 6, {"": 9})).entries
            earlier = echoed_receipt(key_of(journal), "p0", delivered=False)
            assert await receive_all(journal, [earlier]) == ["matched"]
            stays = Outcome("accepted", None, "no other channel")
            await journal.change([Transition(entry, State.READY, State.SENT, NOW + 7, outcome=stays)])
            assert (await journal.account()).ends == {State.SENT: 1}
            assert await outbox_bodies(journal) == []

    @pytest.mark.parametrize("reference", ["KEY", "7"], ids=["key", "message id"])
    @pytest.mark.parametrize(
        ("has_failed_again", "end"), [(False, State.SENT), (True, State.FAILED)], ids=["silence", "failure"]
    )
    async def test_a_failure_before_a_message_began_anew_says_nothing_of_it_where_it_stays_sent(
        self, open_journal: OpenJournal, has_failed_again: bool, end: State, reference: str
    ) -> None:
        """Though the provider has no id of its own by which both could be told apart."""
        async with open_journal() as journal:
            anew = await fail_and_begin_anew(journal, reference, Confirmation(WITHIN, WITHIN, False))
            await journal.pass_deadlines(WITHIN, NOW + 40, ["sms"], 9)
            (entry,) = (await journal.due(NOW + 40, {"": 9})).entries
            if has_failed_again:
                await journal.receive([unnamed_failure(journal, reference, anew, NOW + 41)])
            stays = Outcome("accepted", None, "no other channel")
            await journal.change([Transition(entry, State.READY, State.SENT, NOW + 42, outcome=stays)])
            assert (await journal.account()).ends == {end: 1}
            told = [("error", None, "sms: the provider reported UNDELIV")]
            assert await outbox_bodies(journal) == told * has_failed_again

    async def test_a_reported_failure_leads_to_an_error_or_to_the_next_channel(
        self, open_journal: OpenJournal
    ) -> None:
        """As the acceptance was recorded."""
        async with open_journal() as journal:
            await send_to_confirm(journal, 1)
            await send_to_confirm(journal, 2, failed_next=True)
            failures = [sample_receipt(f"p{id_}", delivered=False) for id_ in (1, 2)]
            assert await receive_all(journal, failures) == ["matched", "matched"]
            assert await outbox_bodies(journal) == [("error", None, "sms: the provider reported UNDELIV")]
            assert await state_counts(journal) == {State.WAITING: 1}
            (entry,) = (await journal.due(NOW + 9, {"": 9})).entries
            assert (entry.id, entry.sent_by) == (2, None)

    async def test_deadlines_of_a_silent_provider_stand_still_and_begin_anew(
        self, open_journal: OpenJournal
    ) -> None:
        """101 are due and nothing was reported. Its first report renews all others, in portions."""
        ids = range(1, 102)
        async with open_journal() as journal:
            await send_to_confirm(journal, *ids)
            silent = await journal.pass_deadlines(WITHIN, NOW + 6, ["sms"], 1000)
            assert (silent.passed, silent.silent) == ({}, frozenset({"sms"}))
        async with open_journal() as journal:
            await receive_all(journal, [sample_receipt(at=NOW + 9)])
            first = await journal.pass_deadlines(1, NOW + 9, ["sms"], 60)
            assert (first.passed, first.silent, first.is_complete) == ({}, frozenset(), False)
            second = await journal.pass_deadlines(1, NOW + 9, ["sms"], 60)
            assert (second.passed, second.next_by) == ({}, 2 * WITHIN + 1)
            last = await journal.pass_deadlines(WITHIN - 1, NOW + 9, ["sms"], 1000)
            assert last.passed == {"sms": 100}

    async def test_reports_by_a_clock_that_was_ahead_hide_no_silence(self, open_journal: OpenJournal) -> None:
        """Once the clock is put back, what is accepted after the last report is unreported again."""
        ids = range(1, 102)
        async with open_journal() as journal:
            await send_to_confirm(journal, 1000)
            await journal.pass_deadlines(0, NOW, ["sms"], 9)
            ahead = NOW + 3600 * ONE_SECOND
            await receive_all(journal, [sample_receipt("p1000", at=ahead)])
            await journal.retime(3600 * ONE_SECOND, lambda: NOW, WITHIN)
            await send_to_confirm(journal, *ids)
            silent = await journal.pass_deadlines(WITHIN, NOW + 6, ["sms"], 1000)
            assert (silent.passed, silent.silent) == ({}, frozenset({"sms"}))

    async def test_what_was_accepted_by_a_clock_that_was_ahead_counts_as_reported_since(
        self, open_journal: OpenJournal
    ) -> None:
        """Else a provider that reports all the time would be silent until the clock is there again."""
        ids = range(1, 102)
        async with open_journal() as journal:
            await send_to_confirm(journal, 1000)
            await journal.pass_deadlines(0, NOW, ["sms"], 9)
            await send_to_confirm(journal, *ids)
            await journal.retime(3600 * ONE_SECOND, lambda: NOW - 3600 * ONE_SECOND, WITHIN)
            await receive_all(journal, [sample_receipt("p1000", at=NOW - 3000 * ONE_SECOND)])
            passed = await journal.pass_deadlines(WITHIN, NOW, ["sms"], 1000)
            assert (passed.passed, passed.silent) == ({"sms": 101}, frozenset())

    async def test_deadlines_of_a_provider_that_was_removed_are_dropped_in_portions(
        self, open_journal: OpenJournal
    ) -> None:
        """Its messages stay sent, whatever time passes, and a failure it reports after all is an error."""
        async with open_journal() as journal:
            await send_to_confirm(journal, 1, 2, 3, failed_next=True)
        async with open_journal() as journal:
            first = await journal.pass_deadlines(0, NOW + 6, ["email"], 2)
            assert (first.dropped, first.is_complete) == ({"sms": 2}, False)
            last = await journal.pass_deadlines(0, NOW + 6, ["email"], 2)
            assert (last.dropped, last.is_complete) == ({"sms": 1}, True)
            later = await journal.pass_deadlines(2 * WITHIN, NOW + 6, ["email", "sms"], 9)
            assert (later.passed, later.dropped, later.next_by) == ({}, {}, None)
            assert (await journal.account()).ends == {State.SENT: 3}
            assert await receive_all(journal, [sample_receipt(delivered=False)]) == ["matched"]
            assert await outbox_bodies(journal) == [("error", None, "sms: the provider reported UNDELIV")]

    async def test_a_failure_after_another_channel_failed_names_both(self, open_journal: OpenJournal) -> None:
        """Also where the earlier one was left since it had reported a failure."""
        async with open_journal() as journal:
            await send_to_confirm(journal, 1, failed_next=True)
            await receive_all(journal, [sample_receipt(delivered=False)])
            (entry,) = (await journal.due(NOW + 9, {"": 9})).entries
            begun = entry.begun("email", b"87654321", NOW + 9)
            await journal.change([Transition(begun, State.READY, State.SENDING, NOW + 9)])
            await journal.change([accepted_step(begun, "e1")])
            failed = sample_receipt("e1", delivered=False)._replace(provider="email")
            assert await receive_all(journal, [failed]) == ["matched"]
            error = "sms: the provider reported UNDELIV; email: the provider reported UNDELIV"
            assert (await outbox_bodies(journal))[-1] == ("error", None, error)

    async def test_a_failure_from_before_the_clock_was_put_back_sends_on_at_once(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await begin_attempts(journal, attempt_on(1))
            failed = sample_receipt(at=NOW + 3600 * ONE_SECOND, delivered=False)
            assert await receive_all(journal, [failed]) == ["unmatched"]
            confirmation = Confirmation(None, None, failed_next=True)
            await journal.change([accepted_step(attempt_on(1), "p1")._replace(confirmation=confirmation)])
            assert len((await journal.due(NOW + ONE_SECOND, {"": 9})).entries) == 1

    async def test_overdue_messages_are_counted_once(self, open_journal: OpenJournal) -> None:
        """By when they were sent; a delivered one isn't among them, and a restart changes nothing."""
        async with open_journal() as journal:
            await send_to_confirm(journal, 1, 2)
            await receive_all(journal, [sample_receipt()])
            assert await journal.count_overdue("sms", None, NOW + 5) == 0
            assert await journal.count_overdue("sms", NOW + 5, NOW + 6) == 1
            assert await journal.count_overdue("email", None, NOW + 6) == 0
        async with open_journal() as journal:
            assert await journal.count_overdue("sms", None, NOW + 6) == 0
