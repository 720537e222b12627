"""Cases of JournalConformance: what an operator orders."""

from __future__ import annotations

import hashlib

from deliveryd.journal.base import (
    Account,
    Counts,
)
from deliveryd.journal.orders import Action, Decided, Effect, ItemKind
from deliveryd.model import Content, Malformed, Outcome, Rendered
from deliveryd.states import State
from deliveryd.transitions import held_in_doubt, intent, not_repeated, retry_later
from journal.protocol import OpenJournal
from journal.samples import (
    DAYS_LATER,
    NOW,
    accept_all,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    hand_over,
    make_ready,
    receive_all,
    refuse_sent,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)


class OrderCases:
    """What a journal must do: what an operator orders."""

    async def test_a_resent_message_is_due_at_once_under_its_key(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            entry = await bring_in_doubt(journal, 7)
            decided = await decide_on(journal, Action.RESEND, ItemKind.MESSAGE, 7, 8)
            assert decided == Decided(("7",), {"8": "it isn't held in doubt"}, (Effect(waiting=1),))
            assert (await journal.due(NOW + 9, {"sms": 9})).entries == [entry]

    async def test_an_ordered_repeat_can_be_told_from_others(self, open_journal: OpenJournal) -> None:
        """With on_in_doubt = "hold" it is made all the same, until the next try in doubt."""
        async with open_journal() as journal:
            entry = await bring_in_doubt(journal, 7)
            assert not await journal.repeat_is_ordered(7, entry.stay)
            await decide_on(journal, Action.RESEND, ItemKind.MESSAGE, 7)
            assert await journal.repeat_is_ordered(7, entry.stay)
            await journal.due(NOW + 9, {"sms": 9})
            again = entry.begun("sms", None, NOW)
            await journal.change([intent(again, NOW, ())])
            assert await journal.repeat_is_ordered(7, entry.stay)
            await journal.change([held_in_doubt(again, NOW, Outcome("in_doubt", None, "cut off"))])
            assert not await journal.repeat_is_ordered(7, entry.stay)

    async def test_what_was_only_put_off_and_is_held_is_resent_without_what_was_kept(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            kept = Content(Rendered("sms", "en", {"text": "hi"}), {})
            put_off = [attempt_on(id_)._replace(content=kept, counted_tries=1) for id_ in (7, 8)]
            await make_ready(journal, 7, 8)
            await begin_attempts(journal, attempt_on(7), attempt_on(8))
            busy = Outcome("try_again", None, "503")
            await journal.change([retry_later(each, NOW, NOW, busy, None) for each in put_off])
            assert (await journal.due(NOW, {"sms": 9})).entries == put_off
            await journal.change([not_repeated(each, State.READY, NOW, "why") for each in put_off])
            assert [(each.entry, each.reason) for each in await journal.held(["sms"], 0, 9)] == [
                (each, "503; why") for each in put_off
            ]
            assert (await decide_on(journal, Action.RESEND, ItemKind.MESSAGE, 7)).done == ("7",)
            resent = put_off[0]._replace(content=None, digest=None)
            assert (await journal.due(NOW + 9, {"sms": 9})).entries == [resent]
            assert (await decide_on(journal, Action.SETTLE_FAILED, ItemKind.MESSAGE, 8)).done == ("8",)
            await accept_all(journal)
            assert (await decide_on(journal, Action.BEGIN_ANEW, ItemKind.MESSAGE, 8)).done == ("8",)

    async def test_a_settled_message_has_ended_and_its_event_waits(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await bring_in_doubt(journal, 7)
            await bring_in_doubt(journal, 8)
            sent = await decide_on(journal, Action.SETTLE_SENT, ItemKind.MESSAGE, 7)
            failed = await decide_on(journal, Action.SETTLE_FAILED, ItemKind.MESSAGE, 8)
            assert [*sent.effects, *failed.effects] == [
                Effect(ended=(State.SENT,), events=1, provider="sms"),
                Effect(ended=(State.FAILED,), events=1, provider="sms"),
            ]
            assert await waiting_events(journal) == [(7, "sent"), (8, "error")]
            assert await state_counts(journal) == {}

    async def test_what_was_reported_after_a_refused_event_is_reported_again_after_it(
        self, open_journal: OpenJournal
    ) -> None:
        """The last event reported is the last that happened."""
        async with open_journal() as journal:
            await hand_over(journal, 7)
            sent = await refuse_sent(journal)
            await receive_all(journal, [sample_receipt()])
            await accept_all(journal)
            assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).effects == (
                Effect(events=2),
            )
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]
            assert (await journal.counts()).events_refused == 0

    async def test_what_was_only_reported_again_since_is_not_what_happened_last(
        self, open_journal: OpenJournal
    ) -> None:
        """The queue gives a message again whose `sent` was refused: after its retry, `sent` is heard last."""
        async with open_journal() as journal:
            await hand_over(journal, 7)
            sent = await refuse_sent(journal)
            await journal.take([sample_message(7)], [], NOW)
            assert [row.status for row in await accept_all(journal)] == ["dequeued"]
            assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).effects == (
                Effect(events=1),
            )
            assert await waiting_events(journal) == [(7, "sent")]

    async def test_refused_events_are_reported_as_they_happened_whichever_is_retried_first(
        self, open_journal: OpenJournal
    ) -> None:
        """Whoever asks for the second event has the first one stay in front of it."""
        async with open_journal() as journal:
            for id_, first in ((7, 0), (8, 1)):
                await hand_over(journal, id_, f"p{id_}")
                await receive_all(journal, [sample_receipt(f"p{id_}")])
                events = await journal.outbox(0, 9)
                for row in events:
                    await journal.refuse(row, "400", NOW)
                for row in (events[first], events[1 - first]):
                    assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, row.seq)).done
                assert await waiting_events(journal) == [(id_, "sent"), (id_, "delivered")]
                await accept_all(journal)

    async def test_what_waits_of_a_message_is_reported_after_its_event_that_is_retried(
        self, open_journal: OpenJournal
    ) -> None:
        """Events of others keep their places."""
        async with open_journal() as journal:
            await hand_over(journal, 7)
            sent = await refuse_sent(journal)
            await receive_all(journal, [sample_receipt()])
            await journal.take([sample_message(8)], [], NOW)
            under_way = await journal.outbox(0, 1)  # `delivered` is being reported
            assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).effects == (
                Effect(events=1),
            )
            assert await waiting_events(journal) == [(8, "dequeued"), (7, "sent"), (7, "delivered")]
            await journal.accept(under_way, NOW)
            assert await waiting_events(journal) == [(8, "dequeued"), (7, "sent"), (7, "delivered")]
            await accept_all(journal)
            assert await journal.counts() == Counts({State.READY: 1}, 0, 0, 0, 0)

    async def test_an_event_that_is_refused_again_can_be_retried_again_by_its_new_number(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await hand_over(journal, 7)
            for _ in range(3):
                sent = await refuse_sent(journal)
                assert (await journal.counts()).events_refused == 1
                assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).done == (
                    str(sent.seq),
                )
                assert (await decide_on(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).done == ()
            await accept_all(journal)
            assert await journal.counts() == Counts({}, 0, 0, 0, 0)

    async def test_a_set_aside_message_is_taken_again_with_its_dequeued(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(7)], [], NOW)
            (row,) = await journal.outbox(0, 9)
            await journal.refuse(row, "400", NOW)
            in_the_way = await decide_on(journal, Action.RETRY, ItemKind.EVENT, row.seq)
            assert in_the_way.skipped == {
                str(row.seq): "its message is set aside with it: message:7 is what to retry"
            }
            (effect,) = (await decide_on(journal, Action.RETRY, ItemKind.MESSAGE, 7)).effects
            assert (effect.taken, effect.events) == (sample_entry(7, taken_at=NOW), 1)
            await accept_all(journal)
            assert await state_counts(journal) == {State.READY: 1}

    async def test_what_is_dropped_is_not_counted_and_no_longer_kept_from_being_forgotten(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(7)], [Malformed("[]", "no object", None)], NOW)
            (row,) = await journal.outbox(0, 9)
            await journal.refuse(row, "400", NOW)
            await receive_all(journal, [sample_receipt("q7")])
            assert (
                await journal.prune(NOW + 1, 9) == 1
            )  # the malformed element, not the event that is set aside
            await journal.take([], [Malformed("[]", "no object", None)], NOW)
            assert await journal.counts() == Counts({}, 0, 1, 1, 1)
            digest = hashlib.sha256(b"[]").hexdigest()
            for kind, key in (
                (ItemKind.MESSAGE, "7"),
                (ItemKind.MALFORMED, digest[:16]),
                (ItemKind.RECEIPT, "1"),
            ):
                assert (await decide_on(journal, Action.DROP, kind, key)).done == (key,)
                assert (await decide_on(journal, Action.DROP, kind, key)).done == ()
            assert await journal.counts() == Counts({}, 0, 0, 0, 0)
            # the message, the malformed element, the receipt, and the decisions about these two
            assert await journal.prune(DAYS_LATER, 9) == 5

    async def test_a_receipt_is_matched_again_when_its_attempt_is_known(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await receive_all(journal, [sample_receipt("p1")])
            assert (await decide_on(journal, Action.RETRY, ItemKind.RECEIPT, 1)).skipped == {
                "1": "it still fits no attempt"
            }
            await deliver_to_sent(journal, 7, "p1")
            assert (await decide_on(journal, Action.RETRY, ItemKind.RECEIPT, 1)).done == ()

    async def test_the_account_is_balanced_whatever_happened(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await bring_in_doubt(journal, 2)
            await bring_to_wait(journal, 3, NOW)
            await journal.take(
                [sample_message(4), sample_message(4), sample_message(1)],
                [Malformed('{"id":5}', "why", 5)],
                NOW,
            )
            assert await journal.account() == Account(
                5, {State.TAKEN: 1, State.WAITING: 1, State.IN_DOUBT: 1}, {State.SENT: 1, State.FAILED: 1}, 0
            )
            await accept_all(journal)
            assert await journal.prune(DAYS_LATER, 9) == 3
        async with open_journal() as journal:
            account = await journal.account()
            assert (account.taken, account.ended, account.pruned, account.gap) == (5, 0, 2, 0)
