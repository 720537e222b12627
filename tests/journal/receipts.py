"""Cases of JournalConformance: receipts by the provider's id, and by a reference."""

from __future__ import annotations

import json

import pytest

from deliveryd.journal.base import Counts
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Delivered
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.model import Outcome, ProgressReport, Receipt, Reported, Transition
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    deliver_to_sent,
    echoed_receipt,
    fail_and_begin_anew,
    key_of,
    make_ready,
    receive_all,
    sample_receipt,
    state_counts,
    unnamed_failure,
    waiting_events,
)


async def report_before_repeat(journal: Journal, by: str) -> Receipt:
    """Message 7 was tried, in doubt, and is about to be repeated; a report that it was delivered."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    doubtful, outcome = attempt_on(7)._replace(doubt=True), Outcome("in_doubt", "p7", "cut off")
    await journal.change([Transition(doubtful, State.SENDING, State.WAITING, NOW, NOW + ONE_SECOND, outcome)])
    assert len((await journal.due(NOW + ONE_SECOND, {"sms": 1})).entries) == 1
    return echoed_receipt(key_of(journal), "p7") if by == "key" else sample_receipt("p7")


class ReceiptCases:
    """What a journal must do: receipts by the provider's id, and by a reference."""

    async def test_a_receipt_is_matched_and_reported_with_channel_and_time(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            assert await receive_all(journal, [sample_receipt(at=NOW + 9)]) == ["matched"]
            (row,) = await journal.outbox(0, 10)
            assert json.loads(row.body) == {
                "timestamp": "2023-11-14T22:13:20.000009Z",
                "messageId": 1,
                "status": "delivered",
                "channel": "sms",
                "reportedAt": "2023-11-14T22:13:20.000008Z",
            }

    @pytest.mark.parametrize("among", [0, 9], ids=["alone", "among many"])
    async def test_a_delivery_has_the_time_at_which_it_was_sent_and_a_failure_has_none(
        self, open_journal: OpenJournal, among: int
    ) -> None:
        """Of the accepted try, for how long the delivery took; a repeated report has none either."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1, "p1")
            await deliver_to_sent(journal, 2, "p2")
            others = [sample_receipt(f"u{number}") for number in range(among)]
            first, second = sample_receipt("p1"), sample_receipt("p2", delivered=False)
            found = (await journal.receive([first, second, *others]))[:2]
            timing = [each.effect and each.effect.delivered for each in found]
            assert timing == [Delivered(NOW, first.reported_at), None]
            (again,) = await journal.receive([first])
            assert again.effect is None

    @pytest.mark.parametrize("reference", ["KEY", "7"], ids=["key", "message id"])
    async def test_reports_of_a_message_among_many_are_taken_in_their_order(
        self, open_journal: OpenJournal, reference: str
    ) -> None:
        """A delivery of a repeat, after which the provider refuses the other one, is no `error` first."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7, "p7")
            name = key_of(journal) if reference == "KEY" else reference
            reports = [
                echoed_receipt(name, "p6"),
                sample_receipt("p7", delivered=False),
                *(sample_receipt(f"u{number}") for number in range(9)),
            ]
            assert (await receive_all(journal, reports))[:2] == ["matched", "matched"]
            assert await waiting_events(journal) == [(7, "delivered")]

    @pytest.mark.parametrize("lost", ["p0", "p0\0"], ids=["used again", "with a NUL"])
    async def test_reports_of_two_tries_among_many_are_taken_in_their_order_whatever_the_id_of_the_first(
        self, open_journal: OpenJournal, lost: str
    ) -> None:
        """Of two messages whose lost answers had one id, the one that was tried last is meant."""
        async with open_journal() as journal:
            await make_ready(journal, 7, 8)
            for id_, at in (8, NOW), (7, NOW + 1):
                await journal.change([Transition(attempt_on(id_), State.READY, State.SENDING, at)])
                doubtful, due_at = attempt_on(id_)._replace(doubt=True), NOW + ONE_SECOND
                outcome = Outcome("in_doubt", lost, "cut off")
                await journal.change(
                    [Transition(doubtful, State.SENDING, State.WAITING, NOW + 2, due_at, outcome)]
                )
            await journal.due(NOW + ONE_SECOND, {"sms": 2})
            repeats = [attempt_on(id_, number=2) for id_ in (7, 8)]
            await begin_attempts(journal, *repeats)
            await journal.change([accepted_step(repeat, f"p{repeat.id}") for repeat in repeats])
            await accept_all(journal)
            reports = [
                sample_receipt(lost),
                sample_receipt("p7", delivered=False),
                *(sample_receipt(f"u{number}") for number in range(9)),
            ]
            assert (await receive_all(journal, reports))[:2] == ["matched", "matched"]
            assert await waiting_events(journal) == [(7, "delivered")]

    @pytest.mark.parametrize("providers", [["sms"], ["email"]], ids=["that is there", "that is gone"])
    @pytest.mark.parametrize("by", ["key", "id"])
    async def test_a_report_counts_that_came_before_a_repeat_which_a_crash_prevented(
        self, open_journal: OpenJournal, providers: list[str], by: str
    ) -> None:
        """Also at a provider that is gone: its messages are held, and nothing repeats them."""
        async with open_journal() as journal:
            report = await report_before_repeat(journal, by)
            assert await receive_all(journal, [report]) == ["unmatched"]
            if journal.is_shared:  # it is looked at until no transaction can have missed it
                for _ in range(9):
                    await journal.follow(NOW, providers)
        async with open_journal() as journal:
            await journal.recover(NOW + ONE_SECOND, providers)
            await journal.follow(NOW + ONE_SECOND, providers)
            assert await state_counts(journal) == {}
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]

    @pytest.mark.parametrize("by", ["key", "id"])
    async def test_a_report_that_came_before_a_repeat_makes_it_unnecessary(
        self, open_journal: OpenJournal, by: str
    ) -> None:
        async with open_journal() as journal:
            report = await report_before_repeat(journal, by)
            assert await receive_all(journal, [report]) == ["unmatched"]
            repeat = Transition(attempt_on(7, number=2), State.READY, State.SENDING, NOW + ONE_SECOND)
            assert (await journal.change([repeat])).settled == {7}
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]

    async def test_progress_among_many_reports_is_told_before_the_delivery(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7, "p7")
            reports: list[Reported] = [
                ProgressReport("sms", "p7", "accepted", NOW + 8),
                sample_receipt("p7"),
                *(sample_receipt(f"u{number}") for number in range(9)),
            ]
            assert [each.result for each in await journal.receive(reports)][:2] == ["told", "matched"]
            assert await waiting_events(journal) == [(7, "accepted"), (7, "delivered")]

    async def test_a_receipt_that_comes_again_is_told_apart_and_reported_once(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            assert await receive_all(journal, [sample_receipt(), sample_receipt(at=NOW + 99)]) == [
                "matched",
                "repeated",
            ]
            assert await waiting_events(journal) == [(1, "delivered")]
            assert await receive_all(journal, [sample_receipt("p9"), sample_receipt("p9")]) == [
                "unmatched",
                "repeated",
            ]

    async def test_a_receipt_before_the_outcome_is_applied_with_the_outcome(
        self, open_journal: OpenJournal
    ) -> None:
        """Sent is reported before delivered, and delivered not at an earlier time than sent."""
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await begin_attempts(journal, attempt_on(1))
            assert await receive_all(journal, [sample_receipt(at=NOW + 1)]) == ["unmatched"]
            assert (await journal.counts()).receipts_unmatched == 1
            await journal.change([accepted_step(attempt_on(1), "p1")])
            rows = await journal.outbox(0, 10)
            assert [row.status for row in rows] == ["sent", "delivered"]
            times = [json.loads(row.body)["timestamp"] for row in rows]
            assert times == sorted(times)
            assert (await journal.counts()).receipts_unmatched == 0
            assert await receive_all(journal, [sample_receipt(at=NOW + 2)]) == ["repeated"]

    @pytest.mark.parametrize("other", [sample_receipt()._replace(provider="email"), sample_receipt("p2")])
    async def test_a_receipt_of_another_channel_or_id_is_not_matched(
        self, open_journal: OpenJournal, other: Receipt
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            assert await receive_all(journal, [other]) == ["unmatched"]
            assert await waiting_events(journal) == []

    async def test_a_failure_after_acceptance_is_an_error_that_says_so(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            assert await receive_all(journal, [sample_receipt(delivered=False)]) == ["matched"]
            (row,) = await journal.outbox(0, 10)
            assert json.loads(row.body)["status"] == "error"
            assert json.loads(row.body)["details"] == "sms: the provider reported UNDELIV"

    @pytest.mark.parametrize(
        ("first", "told"),
        [(True, ["delivered"]), (False, ["error", "delivered"])],
        ids=["delivered", "failed"],
    )
    async def test_what_was_delivered_stays_so_and_what_failed_may_be_delivered_after_all(
        self, open_journal: OpenJournal, first: bool, told: list[str]
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            both = [sample_receipt(delivered=first), sample_receipt(delivered=not first)]
            assert await receive_all(journal, both) == ["matched", "matched"]
            assert await waiting_events(journal) == [(1, status) for status in told]

    async def test_a_token_counts_for_one_report_until_its_signature_is_too_old(
        self, open_journal: OpenJournal
    ) -> None:
        token = SignedToken(b"t" * 16, b"a" * 16, NOW + 10)
        other = token._replace(body=b"b" * 16)
        async with open_journal() as journal:
            assert await journal.use_token(token, NOW)
            assert await journal.use_token(token, NOW + 10)
            assert not await journal.use_token(other, NOW + 10)
        async with open_journal() as journal:
            assert not await journal.use_token(other, NOW + 10)
            assert await journal.use_token(other, NOW + 11)

    async def test_where_a_provider_uses_an_id_again_its_receipt_is_for_the_latest_message(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await receive_all(journal, [sample_receipt()])
            await accept_all(journal)
            await make_ready(journal, 2)
            await journal.change([Transition(attempt_on(2), State.READY, State.SENDING, NOW + ONE_SECOND)])
            await journal.change([accepted_step(attempt_on(2), "p1")])
            await accept_all(journal)
            assert await receive_all(journal, [sample_receipt()]) == ["matched"]
            assert await waiting_events(journal) == [(2, "delivered")]

    @pytest.mark.parametrize(
        ("after", "result"),
        [(State.IN_DOUBT, "settled"), (State.WAITING, "recalled")],
        ids=["held", "waiting"],
    )
    @pytest.mark.parametrize("has_key", [False, True], ids=["message id", "key"])
    async def test_a_reference_settles_an_attempt_in_doubt(
        self, open_journal: OpenJournal, after: State, result: str, has_key: bool
    ) -> None:
        async with open_journal() as journal:
            await bring_in_doubt(journal, 7, after)
            reference = key_of(journal) if has_key else "7"
            assert await receive_all(journal, [echoed_receipt(reference), echoed_receipt(reference)]) == [
                result,
                "repeated",
            ]
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]
            assert await state_counts(journal) == {}
            assert not (await journal.due(NOW + 2 * ONE_SECOND, {"sms": 9})).entries
            assert await receive_all(journal, [echoed_receipt("8", "q2")]) == ["unmatched"]

    @pytest.mark.parametrize(
        "reference",
        [
            "8",
            "",
            "x",
            "7.0",
            "007",
            "9" * 30,
            "-7",
            "ffffffffffff-7-abcdef",
            "7-abcdef",
            "NS-7-abcdef",
            "NS-7-1",
            "NS-8-1",
        ],
    )
    async def test_a_reference_to_something_else_settles_nothing(
        self, open_journal: OpenJournal, reference: str
    ) -> None:
        async with open_journal() as journal:
            await bring_in_doubt(journal, 7)
            named = reference.replace("NS", journal.namespace)
            other_channel = echoed_receipt("7")._replace(provider="email")
            assert await receive_all(journal, [echoed_receipt(named), other_channel]) == [
                "unmatched",
                "unmatched",
            ]
            assert await state_counts(journal) == {State.IN_DOUBT: 1}

    async def test_a_reference_settles_an_attempt_though_the_same_report_came_without_one_before(
        self,
        open_journal: OpenJournal,
    ) -> None:
        """What fitted nothing before goes with it, and is not a matter of its own any more."""
        async with open_journal() as journal:
            await bring_in_doubt(journal, 7)
            assert await receive_all(journal, [sample_receipt("q1"), sample_receipt("q1")]) == [
                "unmatched",
                "repeated",
            ]
            assert await receive_all(
                journal, [echoed_receipt("7"), echoed_receipt("7"), sample_receipt("q1")]
            ) == [
                "settled",
                "repeated",
                "repeated",
            ]
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]
            assert await journal.counts() == Counts({}, 2, 0, 0, 0)

    async def test_a_failure_by_reference_was_sent_first(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await bring_in_doubt(journal, 7)
            assert await receive_all(journal, [echoed_receipt("7", delivered=False)]) == ["settled"]
            assert await waiting_events(journal) == [(7, "sent"), (7, "error")]

    @pytest.mark.parametrize("after", [State.IN_DOUBT, State.WAITING])
    async def test_a_reference_that_comes_during_the_attempt_settles_its_doubt_as_it_arises(
        self, open_journal: OpenJournal, after: State
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            assert await receive_all(journal, [echoed_receipt("7")]) == ["unmatched"]
            entry = attempt_on(7)._replace(doubt=True)
            due_at = NOW + ONE_SECOND if after is State.WAITING else None
            change = Transition(entry, State.SENDING, after, NOW + 5, due_at, Outcome("in_doubt"))
            assert set((await journal.change([change])).settled) == {7}
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]

    async def test_what_is_about_to_be_repeated_is_not_sent_when_a_receipt_came_meanwhile(
        self, open_journal: OpenJournal
    ) -> None:
        """The journal says so instead of committing the intent."""
        async with open_journal() as journal:
            await bring_in_doubt(journal, 7, State.WAITING)
            (entry,) = (await journal.due(NOW + ONE_SECOND, {"sms": 1})).entries
            assert await receive_all(journal, [echoed_receipt("7")]) == ["unmatched"]
            repeat = Transition(
                entry.begun("sms", b"12345678", NOW), State.READY, State.SENDING, NOW + ONE_SECOND
            )
            assert set((await journal.change([repeat])).settled) == {7}
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]

    async def test_without_a_provider_id_a_reference_confirms_what_was_sent(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7, None)
            assert await receive_all(journal, [echoed_receipt("7")]) == ["matched"]
            assert await waiting_events(journal) == [(7, "delivered")]

    @pytest.mark.parametrize("reference", ["KEY", "7"], ids=["key", "message id"])
    async def test_a_failure_of_the_only_try_counts_whatever_id_the_report_has(
        self, open_journal: OpenJournal, reference: str
    ) -> None:
        """Some providers give each report an id, and another one in their answer."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7, "p1")
            failed = echoed_receipt(reference.replace("KEY", key_of(journal)), "q1", delivered=False)
            assert await receive_all(journal, [failed, failed]) == ["matched", "repeated"]
            assert await waiting_events(journal) == [(7, "error")]

    @pytest.mark.parametrize("reference", ["KEY", "7"], ids=["key", "message id"])
    async def test_a_failure_after_a_message_began_anew_is_told_where_its_provider_has_no_ids(
        self, open_journal: OpenJournal, reference: str
    ) -> None:
        """It isn't taken for a repeat of the failure before; one that is a repeat changes nothing."""
        async with open_journal() as journal:
            anew = await fail_and_begin_anew(journal, reference)
            again = unnamed_failure(journal, reference, anew, NOW + 30)
            assert await receive_all(journal, [again, again]) == ["matched", "repeated"]
            assert await receive_all(journal, [unnamed_failure(journal, "KEY", 1, NOW + 31)])
            assert await waiting_events(journal) == [(7, "error")]

    async def test_a_failure_of_an_earlier_attempt_is_none_of_the_one_that_was_accepted(
        self, open_journal: OpenJournal
    ) -> None:
        """A reference to the message doesn't say which attempt it is about; the provider's id does."""
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            change = Transition(attempt_on(7), State.SENDING, State.WAITING, NOW, NOW, Outcome("try_again"))
            await journal.change([change])
            await journal.due(NOW, {"sms": 1})
            await begin_attempts(journal, attempt_on(7, number=2))
            await journal.change([accepted_step(attempt_on(7, number=2), "p2")])
            await accept_all(journal)
            assert await receive_all(journal, [echoed_receipt("7", "p1", delivered=False)]) == ["matched"]
            assert await waiting_events(journal) == []
            assert await receive_all(journal, [echoed_receipt("7", "p2", delivered=False)]) == ["matched"]
            assert await waiting_events(journal) == [(7, "error")]
