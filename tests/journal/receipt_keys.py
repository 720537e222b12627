"""Cases of JournalConformance: receipts by key, in every state of a message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Effect, ItemKind
from deliveryd.model import Confirmation, Outcome, ProgressReport, Receipt, StatusEvent, Transition
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    NOW,
    ONE_SECOND,
    REPORTED_UNDELIVERED,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    decide_on,
    echoed_receipt,
    gone_on,
    key_of,
    make_ready,
    outbox_bodies,
    receive_all,
    sample_entry,
    sample_receipt,
    state_counts,
    tried,
    waiting_events,
)


class ReceiptKeyCases:
    """What a journal must do: receipts by key, in every state of a message."""

    @pytest.mark.parametrize("reference", ["KEY", "7"], ids=["key", "message id"])
    @pytest.mark.parametrize(
        ("state", "delivered", "result", "told"),
        [
            (State.WAITING, True, "recalled", [("sent", None, None), ("delivered", "sms", None)]),
            (State.WAITING, False, "recalled", [("sent", None, None), ("error", None, REPORTED_UNDELIVERED)]),
            (State.IN_DOUBT, True, "settled", [("sent", None, None), ("delivered", "sms", None)]),
            (State.IN_DOUBT, False, "settled", [("sent", None, None), ("error", None, REPORTED_UNDELIVERED)]),
            (State.FAILED, True, "settled", [("sent", None, None), ("delivered", "sms", None)]),
            (State.FAILED, False, "matched", []),
            (State.SENT, True, "matched", [("delivered", "sms", None)]),
            (State.DELIVERED, True, "matched", []),
            (State.DELIVERED, False, "matched", []),
        ],
    )
    async def test_a_receipt_for_the_present_key_settles_what_it_proves_whatever_the_state(  # noqa: PLR0917
        self,
        open_journal: OpenJournal,
        state: State,
        delivered: bool,
        result: str,
        told: list[tuple[str, str | None, str | None]],
        reference: str,
    ) -> None:
        """Nothing is repeated after it; `delivered` is reported once, however often the receipt arrives."""
        async with open_journal() as journal:
            await tried(journal, state)
            named = echoed_receipt(reference.replace("KEY", key_of(journal)), delivered=delivered)
            (received,) = await journal.receive([named])
            assert (received.result, received.effect and received.effect.events) == (result, len(told))
            assert await outbox_bodies(journal) == told
            assert await receive_all(journal, [named]) == ["repeated"]
            assert await outbox_bodies(journal) == told
            assert await state_counts(journal) == {}
            assert not (await journal.due(NOW + 2 * ONE_SECOND, {"sms": 9})).entries

    @pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "failed"])
    async def test_a_receipt_while_its_retry_is_in_the_hands_of_the_line_takes_the_place_of_its_next_step(
        self, open_journal: OpenJournal, delivered: bool
    ) -> None:
        """Also of an end: a message that expires meanwhile isn't told to have failed for that."""
        async with open_journal() as journal:
            await tried(journal, State.WAITING)
            (entry,) = (await journal.due(NOW + ONE_SECOND, {"sms": 9})).entries
            reference = key_of(journal)
            assert await receive_all(journal, [echoed_receipt(reference, delivered=delivered)]) == [
                "unmatched"
            ]
            error = StatusEvent(7, "error", NOW + ONE_SECOND, details="expired")
            step = Transition(entry, State.READY, State.FAILED, NOW + ONE_SECOND, events=(error,))
            settled, effects, _ = await journal.change([step])
            end = State.DELIVERED if delivered else State.FAILED
            ended = Effect(ended=(State.SENT, end), events=2, provider="sms")
            assert (set(settled), list(effects)) == ({7}, [ended])
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered" if delivered else "error")]
            assert (await journal.counts()).receipts_unmatched == 0

    @pytest.mark.parametrize(
        ("after", "delivered", "told"),
        [
            (State.WAITING, True, ["sent", "delivered"]),
            (State.WAITING, False, ["sent", "error"]),
            (State.IN_DOUBT, True, ["sent", "delivered"]),
            (State.IN_DOUBT, False, ["sent", "error"]),
            (State.FAILED, True, ["error", "sent", "delivered"]),
            (State.FAILED, False, ["error"]),
            (State.READY, True, ["sent", "delivered"]),
            (State.READY, False, []),  # it goes on to the next channel
        ],
    )
    async def test_a_receipt_that_comes_during_the_attempt_is_applied_after_the_outcome(
        self, open_journal: OpenJournal, after: State, delivered: bool, told: list[str]
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            assert await receive_all(journal, [echoed_receipt(key_of(journal), delivered=delivered)]) == [
                "unmatched"
            ]
            entry = attempt_on(7)
            if after is State.READY:
                entry = entry.given_up("refused")
            elif after is not State.WAITING:
                entry = entry._replace(doubt=True)
            due_at = NOW + ONE_SECOND if after is State.WAITING else None
            events = (StatusEvent(7, "error", NOW + 5, details="why"),) if after is State.FAILED else ()
            outcome = Outcome("in_doubt" if entry.doubt else "refused", None, "why")
            step = Transition(entry, State.SENDING, after, NOW + 5, due_at, outcome, events)
            settled, effects, _ = await journal.change([step])
            assert [status for _, status in await waiting_events(journal)] == told
            assert set(settled) == ({7} if "sent" in told else set())
            assert sum(effect.events for effect in effects) == (len(told) if settled else 0)

    @pytest.mark.parametrize(
        ("state", "delivered", "told"),
        [
            (State.WAITING, True, [("sent", None, None), ("delivered", "sms", None)]),
            (State.WAITING, False, []),
            (State.IN_DOUBT, True, [("sent", None, None), ("delivered", "sms", None)]),
            (State.IN_DOUBT, False, []),
            (State.SENT, True, [("delivered", "sms", None)]),
            (State.SENT, False, []),
        ],
    )
    async def test_a_receipt_for_an_older_key_ends_a_message_by_a_delivery_only(
        self,
        open_journal: OpenJournal,
        state: State,
        delivered: bool,
        told: list[tuple[str, str | None, str | None]],
    ) -> None:
        """It is not sent on the other channel any more; if it was, `delivered` is reported once."""
        async with open_journal() as journal:
            await gone_on(journal, state)
            before = await state_counts(journal)
            await journal.receive([echoed_receipt(key_of(journal), "s1", delivered=delivered)])
            assert await outbox_bodies(journal) == told
            assert await state_counts(journal) == ({} if delivered else before)
            await journal.receive([echoed_receipt(key_of(journal, "email"), "e1")._replace(provider="email")])
            assert [status for status, *_ in await outbox_bodies(journal)].count("delivered") <= 1

    async def test_a_delivery_under_an_older_key_keeps_a_message_from_the_next_channel(
        self, open_journal: OpenJournal
    ) -> None:
        """Though it is on its way there already: the intent isn't committed."""
        async with open_journal() as journal:
            await gone_on(journal, State.READY)
            entry = attempt_on(7).given_up("provider answered 503").begun("email", b"87654321", NOW + 2)
            assert await receive_all(journal, [echoed_receipt(key_of(journal), "s1")]) == ["unmatched"]
            settled, *_ = await journal.change([Transition(entry, State.READY, State.SENDING, NOW + 2)])
            assert set(settled) == {7}
            assert await outbox_bodies(journal) == [("sent", None, None), ("delivered", "sms", None)]

    async def test_what_was_delivered_on_both_channels_is_told_once_with_the_first(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await gone_on(journal, State.SENT)
            email = echoed_receipt(key_of(journal, "email"), "e1")._replace(provider="email")
            await journal.receive([email, echoed_receipt(key_of(journal), "s1")])
            assert await outbox_bodies(journal) == [("delivered", "email", None)]

    async def test_kept_deliveries_on_both_channels_are_told_once_with_the_first(
        self, open_journal: OpenJournal
    ) -> None:
        """Also where a failure that came before both names the id of the second."""
        async with open_journal() as journal:
            await gone_on(journal, State.SENDING)
            failed = echoed_receipt(key_of(journal, "email"), "e1", delivered=False)
            sms, email = echoed_receipt(key_of(journal), "s1"), sample_receipt("e1")
            for each in (failed._replace(provider="email"), sms, email._replace(provider="email")):
                assert await receive_all(journal, [each]) == ["unmatched"]
            await journal.change([accepted_step(attempt_on(7).begun("email", b"87654321", NOW + 2), "e1")])
            delivered = [told for told in await outbox_bodies(journal) if told[0] == "delivered"]
            assert delivered == [("delivered", "sms", None)]
            assert (await journal.counts()).receipts_unmatched == 0

    async def test_a_message_that_begins_anew_by_an_operators_word_has_a_new_key_and_forgets_what_it_said(
        self,
        open_journal: OpenJournal,
    ) -> None:
        """A failure under the old key says nothing of it, a delivery ends it."""
        async with open_journal() as journal:
            await tried(journal, State.IN_DOUBT)
            assert (await decide_on(journal, Action.RESEND_ANEW, ItemKind.MESSAGE, 7)).effects == (
                Effect(waiting=1),
            )
            reference = key_of(journal)
            assert await receive_all(journal, [echoed_receipt(reference, "s1", delivered=False)]) == [
                "matched"
            ]
            (entry,) = (await journal.due(NOW + ONE_SECOND, {"": 9})).entries
            assert entry == sample_entry(7, stay=2, generation=2)
            await journal.change([Transition(entry, State.READY, State.WAITING, NOW + 2, NOW + ONE_SECOND)])
            assert await receive_all(journal, [echoed_receipt(reference, "s2")]) == ["recalled"]
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]

    @pytest.mark.parametrize("names", ["KEY", "7", None], ids=["key", "message id", "provider's id"])
    @pytest.mark.parametrize("order", list(permutations(["failed", "delivered", "outcome"])), ids=" ".join)
    async def test_a_delivery_is_told_beside_a_failure_however_both_come_while_the_answer_is_lost(
        self, open_journal: OpenJournal, order: Sequence[str], names: str | None
    ) -> None:
        """Also one by the provider's id alone, which nobody knows before the failure names it."""
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            key = key_of(journal)
            for each in order:
                if each == "outcome":
                    await journal.change([_lost_answer()])
                elif each == "failed":
                    await journal.receive([echoed_receipt(key, delivered=False)])
                else:
                    await journal.receive(
                        [sample_receipt("q1")._replace(reference=key if names == "KEY" else names)]
                    )
            assert [status for _, status in await waiting_events(journal)][-1] == "delivered"
            assert await state_counts(journal) == {}
            assert (await journal.counts()).receipts_unmatched == 0

    @pytest.mark.parametrize("first", ["failed", "delivered"])
    async def test_a_delivery_by_the_providers_id_is_told_after_an_end_in_doubt_too(
        self, open_journal: OpenJournal, first: str
    ) -> None:
        """The failure changes nothing there, but says which id the message has."""
        async with open_journal() as journal:
            await tried(journal, State.FAILED)
            reports = [echoed_receipt(key_of(journal), delivered=False), sample_receipt("q1")]
            for each in reports if first == "failed" else reversed(reports):
                await journal.receive([each])
            assert [status for _, status in await waiting_events(journal)] == ["sent", "delivered"]
            assert (await journal.counts()).receipts_unmatched == 0

    async def test_a_kept_delivery_is_told_among_many_reports_when_one_of_them_names_its_id(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            await journal.change([_lost_answer()])
            others = [sample_receipt(f"u{number}") for number in range(9)]
            found = await journal.receive(
                [sample_receipt("q1"), echoed_receipt(key_of(journal), delivered=False), *others]
            )
            assert [each.result for each in found][:2] == ["unmatched", "recalled"]
            assert [status for _, status in await waiting_events(journal)][-1] == "delivered"
            assert (await journal.counts()).receipts_unmatched == len(others)

    @pytest.mark.parametrize("order", list(permutations(["named", "delivered"])), ids=" ".join)
    @pytest.mark.parametrize("naming", ["failed", "progress"])
    @pytest.mark.parametrize("number", [1, 2], ids=["only try", "second try"])
    async def test_a_delivery_by_the_providers_id_is_told_where_the_answer_had_none(
        self, open_journal: OpenJournal, number: int, naming: str, order: Sequence[str]
    ) -> None:
        """Another report names the message and the id, before or after it; a later failure is none."""
        async with open_journal() as journal:
            await _accept_without_id(journal, number)
            for each in order:
                await journal.receive([_naming(journal, naming) if each == "named" else sample_receipt("q1")])
            told = [status for _, status in await waiting_events(journal)]
            ends_first = (naming, order[0]) == ("failed", "delivered")
            assert told == (["delivered"] if ends_first else [_TOLD[naming], "delivered"])
            assert (await journal.counts()).receipts_unmatched == 0

    @pytest.mark.parametrize("order", list(permutations(["progress", "delivered"])), ids=" ".join)
    async def test_a_delivery_by_the_providers_id_settles_a_doubt_once_a_progress_names_the_id(
        self, open_journal: OpenJournal, order: Sequence[str]
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.IN_DOUBT)
            for each in order:
                report = _naming(journal, each) if each == "progress" else sample_receipt("q1")
                await journal.receive([report])
            assert [status for _, status in await waiting_events(journal)] == ["sent", "delivered"]
            assert (await journal.counts()).receipts_unmatched == 0

    async def test_a_kept_delivery_is_told_when_a_report_names_its_id_where_the_answer_had_another(
        self, open_journal: OpenJournal
    ) -> None:
        """Without an error, as the report of a failure came later."""
        async with open_journal() as journal:
            await tried(journal, State.SENT)
            assert await receive_all(journal, [sample_receipt("q1")]) == ["unmatched"]
            await journal.receive([_naming(journal, "failed")])
            assert await waiting_events(journal) == [(7, "delivered")]
            assert (await journal.counts()).receipts_unmatched == 0

    async def test_a_kept_delivery_that_comes_again_beside_a_report_that_names_its_id_is_a_repeat(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.IN_DOUBT)
            kept = sample_receipt("q1")
            assert await receive_all(journal, [kept]) == ["unmatched"]
            found = await journal.receive([_naming(journal, "failed"), kept])
            assert [each.result for each in found] == ["settled", "repeated"]
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]

    async def test_a_kept_delivery_of_another_message_stays_kept_when_a_report_names_its_id(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.SENT)
            assert await receive_all(journal, [echoed_receipt("8")]) == ["unmatched"]
            await journal.receive([_naming(journal, "failed")])
            assert await waiting_events(journal) == [(7, "error")]
            assert (await journal.counts()).receipts_unmatched == 1

    @pytest.mark.parametrize("number", [1, 2], ids=["only try", "second try"])
    async def test_a_failure_under_another_id_than_an_earlier_report_counts_where_the_answer_had_none(
        self, open_journal: OpenJournal, number: int
    ) -> None:
        """What a report says first isn't taken for the answer's word."""
        async with open_journal() as journal:
            await _accept_without_id(journal, number)
            for _ in range(2):
                await journal.receive([_naming(journal, "progress")])
            await journal.receive([echoed_receipt(key_of(journal), "q2", delivered=False)])
            assert [status for _, status in await waiting_events(journal)] == ["accepted", "error"]

    async def test_a_failure_that_names_the_id_of_a_kept_delivery_leads_to_no_other_channel(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await _accept_without_id(journal, 1, Confirmation(None, None, True))
            assert await receive_all(journal, [sample_receipt("q1")]) == ["unmatched"]
            failed = echoed_receipt(key_of(journal), delivered=False)
            assert await receive_all(journal, [failed]) == ["matched"]
            assert await waiting_events(journal) == [(7, "delivered")]
            assert (await journal.counts()).receipts_unmatched == 0

    async def test_a_delivery_by_an_id_that_a_failure_named_keeps_a_message_from_the_next_channel(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await _accept_without_id(journal, 1, Confirmation(None, None, True))
            await journal.receive([_naming(journal, "failed")])
            assert await state_counts(journal) == {State.WAITING: 1}
            assert await receive_all(journal, [sample_receipt("q1")]) == ["recalled"]
            assert await waiting_events(journal) == [(7, "delivered")]
            assert await state_counts(journal) == {}


_TOLD = {"failed": "error", "progress": "accepted"}
"""What the service is told, by what the provider reports first."""


async def _accept_without_id(journal: Journal, number: int, confirmation: Confirmation | None = None) -> None:
    """Bring message 7 to SENT by this try under its first key, for which the provider answers with no id."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    if number > 1:
        await journal.change([_lost_answer()])
        await journal.due(NOW + ONE_SECOND, {"sms": 1})
        await begin_attempts(journal, attempt_on(7, number=number))
    step = accepted_step(attempt_on(7, number=number), None)
    await journal.change([step._replace(confirmation=confirmation)])
    await accept_all(journal)


def _naming(journal: Journal, what: str) -> Receipt | ProgressReport:
    """A report that has our key and the provider's id."""
    if what == "progress":
        return ProgressReport("sms", "q1", "accepted", NOW + 3, key_of(journal))
    return echoed_receipt(key_of(journal), delivered=False)


def _lost_answer() -> Transition:
    """The step after the try of message 7 whose answer was lost: it will be repeated."""
    entry = attempt_on(7)._replace(doubt=True)
    return Transition(
        entry, State.SENDING, State.WAITING, NOW + 1, NOW + ONE_SECOND, Outcome("in_doubt", None, "cut off")
    )
