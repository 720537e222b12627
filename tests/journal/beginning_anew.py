"""Cases of JournalConformance: messages that begin anew, and messages that are forgotten."""

from __future__ import annotations

import json

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Decided, Effect, ItemKind, Order
from deliveryd.model import Entry, Malformed, Outcome, Spent, StatusEvent, Transition
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    attempt_on,
    bring_in_doubt,
    decide_on,
    deliver_to_sent,
    echoed_receipt,
    key_of,
    make_ready,
    receive_all,
    sample_entry,
    sample_message,
    sample_receipt,
    state_counts,
    tried,
    waiting_events,
)

_DOUBTFUL = "an attempt of it may have arrived: its customer might get it twice (--accept-duplicates)"
_SENT = "it was sent: if the queue gives it again, its customer gets it twice (--accept-duplicates)"
_UNSETTLED = "the service hasn't accepted all of its events yet; try again when it has"


async def fail(journal: Journal, id_: int = 7) -> Entry:
    """Bring a message from the queue to FAILED, with one attempt; its events are accepted."""
    await make_ready(journal, id_)
    entry = attempt_on(id_)
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW)])
    given_up = entry.given_up("provider answered 404")
    refused = Outcome("refused", None, "provider answered 404")
    await journal.change([Transition(given_up, State.SENDING, State.READY, NOW + 1, outcome=refused)])
    error = StatusEvent(id_, "error", NOW + 2, details="sms: provider answered 404")
    await journal.change([Transition(given_up, State.READY, State.FAILED, NOW + 2, events=(error,))])
    await accept_all(journal, NOW + 3)
    return given_up


async def begin_again(journal: Journal, id_: int = 7, verb: Action = Action.BEGIN_ANEW) -> Decided:
    return await decide_on(journal, verb, ItemKind.MESSAGE, id_)


async def due_entry(journal: Journal) -> Entry:
    """The one message that is due at no provider."""
    (entry,) = (await journal.due(NOW + ONE_SECOND, {"": 9})).entries
    return entry


async def send(journal: Journal, entry: Entry) -> None:
    """Have a message that is ready sent by sms."""
    begun = entry.begun("sms", b"12345678", NOW + 20)
    await journal.change([Transition(begun, State.READY, State.SENDING, NOW + 20)])
    sent = StatusEvent(entry.id, "sent", NOW + 21)
    taken = Outcome("accepted", "p2")
    await journal.change(
        [Transition(begun, State.SENDING, State.SENT, NOW + 21, outcome=taken, events=(sent,))]
    )


class BeginningAnewCases:
    """What a journal must do: messages that begin anew, and messages that are forgotten."""

    async def test_a_failed_message_begins_anew_with_every_provider_and_a_new_key(
        self, open_journal: OpenJournal
    ) -> None:
        """It waits, due at once; no event says so, and its variables are there."""
        async with open_journal() as journal:
            failed = await fail(journal)
            assert failed.spent == (Spent("sms", "provider answered 404"),)
            assert await begin_again(journal) == Decided(("7",), {}, (Effect(waiting=1),))
            assert await waiting_events(journal) == []
            assert await state_counts(journal) == {State.WAITING: 1}
            assert await due_entry(journal) == sample_entry(7, stay=2, generation=2)

    async def test_a_message_that_began_anew_is_sent_and_has_an_error_behind_it(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await fail(journal)
            await begin_again(journal)
            await send(journal, await due_entry(journal))
            assert await waiting_events(journal) == [(7, "sent")]
            await accept_all(journal)
            assert await receive_all(journal, [echoed_receipt(key_of(journal, beginning=2), "p2")]) == [
                "matched"
            ]
            assert (await journal.account()).ends == {State.DELIVERED: 1}

    async def test_a_message_that_failed_without_a_try_has_no_gap_in_its_stays(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 7)
            error = StatusEvent(7, "error", NOW, details="missing placeholders: city")
            await journal.change(
                [Transition(sample_entry(7), State.READY, State.FAILED, NOW, events=(error,))]
            )
            await accept_all(journal)
            await begin_again(journal)
            assert await due_entry(journal) == sample_entry(7, stay=1, generation=2)

    async def test_what_may_have_arrived_begins_anew_only_if_duplicates_are_accepted(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.FAILED)
            assert (await begin_again(journal)).skipped == {"7": _DOUBTFUL}
            assert (await begin_again(journal, verb=Action.BEGIN_ANEW_ANYWAY)).done == ("7",)
            assert await due_entry(journal) == sample_entry(7, stay=2, generation=2)

    async def test_a_late_receipt_of_the_earlier_beginning_is_told_once_and_ends_the_new_one(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.FAILED)
            await begin_again(journal, verb=Action.BEGIN_ANEW_ANYWAY)
            assert await receive_all(journal, [echoed_receipt(key_of(journal))]) == ["recalled"]
            assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]
            assert await state_counts(journal) == {}

    async def test_what_a_provider_reported_as_failed_begins_anew_and_may_still_be_delivered(
        self, open_journal: OpenJournal
    ) -> None:
        """If its variables are kept; else the order says that they are gone."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7)
            await receive_all(journal, [sample_receipt(delivered=False)])
            await accept_all(journal)
            decided = await begin_again(journal)
            if decided.skipped:
                assert "keep_variables" in decided.skipped["7"]
                return
            assert await due_entry(journal) == sample_entry(7, stay=2, generation=2)
            await receive_all(journal, [sample_receipt(at=NOW + 30)])
            assert await waiting_events(journal) == [(7, "delivered")]

    async def test_only_what_failed_and_was_reported_begins_anew(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await deliver_to_sent(journal, 2)
            await bring_in_doubt(journal, 3)
            await journal.take([], [Malformed('{"id":4}', "no settings", 4)], NOW)
            await accept_all(journal)
            await make_ready(journal, 5)
            error = StatusEvent(5, "error", NOW, details="no content")
            await journal.change(
                [Transition(sample_entry(5), State.READY, State.FAILED, NOW, events=(error,))]
            )
            assert (
                await decide_on(journal, Action.BEGIN_ANEW, ItemKind.MESSAGE, 1, 2, 3, 4, 5, 6)
            ).skipped == {
                "1": "it hasn't failed: it is ready",
                "2": "it hasn't failed: it is sent",
                "3": "it hasn't failed: it is in doubt",
                "4": "its queue element was malformed, and would be again",
                "5": _UNSETTLED,
                "6": "it isn't in the journal",
            }

    async def test_a_pruned_message_does_not_begin_anew(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await fail(journal)
            assert await journal.prune(DAYS_LATER, 9) == 1
            assert "variables are gone" in (await begin_again(journal)).skipped["7"]

    async def test_a_forgotten_message_is_taken_as_new_under_a_new_key(
        self, open_journal: OpenJournal
    ) -> None:
        """Also after another start, and as often as it is forgotten."""
        async with open_journal() as journal:
            await fail(journal)
            await begin_again(journal)
            await send(journal, await due_entry(journal))
            await accept_all(journal)
            forgotten = await begin_again(journal, verb=Action.FORGET_ANYWAY)
            assert forgotten == Decided(("7",), {}, (Effect(),))
            assert (await journal.account()).gap == 0
        async with open_journal() as journal:
            assert await journal.take([sample_message(7), sample_message(8)], [], NOW) == {7: 3, 8: 1}
            recovered = await journal.recover(NOW, ["sms"])
            assert [entry.generation for entry in recovered.taken] == [3, 1]
            assert await waiting_events(journal) == [(7, "dequeued"), (8, "dequeued")]
            account = await journal.account()
            assert (account.taken, account.forgotten, account.gap) == (3, 1, 0)

    async def test_what_was_sent_or_may_have_been_is_forgotten_only_if_duplicates_are_accepted(
        self, open_journal: OpenJournal
    ) -> None:
        """Also when it was pruned since, and only its id was kept."""
        async with open_journal() as journal:
            await tried(journal, State.FAILED)
            await deliver_to_sent(journal, 8, "p8")
            refused = {"7": _DOUBTFUL, "8": _SENT}
            assert (await decide_on(journal, Action.FORGET, ItemKind.MESSAGE, 7, 8)).skipped == refused
            assert await journal.prune(DAYS_LATER, 9) == 2
            assert (await decide_on(journal, Action.FORGET, ItemKind.MESSAGE, 7, 8)).skipped == refused
            anyway = await decide_on(journal, Action.FORGET_ANYWAY, ItemKind.MESSAGE, 7, 8)
            assert anyway.done == ("7", "8")
            account = await journal.account()
            assert (account.pruned, account.forgotten, account.gap) == (0, 2, 0)
            assert await journal.take([sample_message(7), sample_message(8)], [], NOW) == {7: 2, 8: 2}

    async def test_what_has_not_ended_or_is_being_reported_is_not_forgotten(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await fail(journal, 2)
            await journal.take([sample_message(2)], [], NOW)  # its events are reported again
            skipped = (await decide_on(journal, Action.FORGET_ANYWAY, ItemKind.MESSAGE, 1, 2, 3)).skipped
            assert skipped == {
                "1": "it hasn't ended: it is ready",
                "2": _UNSETTLED,
                "3": "it isn't in the journal",
            }

    async def test_a_forgotten_malformed_element_may_be_a_message_the_next_time(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await journal.take([], [Malformed('{"id":7}', "no settings", 7)], NOW)
            await accept_all(journal)
            assert (await begin_again(journal, verb=Action.FORGET)).done == ("7",)
            assert (await journal.counts()).malformed == 0
            assert await journal.take([sample_message(7)], [], NOW) == {7: 2}

    async def test_an_order_says_why_in_what_it_keeps(self, open_journal: OpenJournal) -> None:
        """The reason is kept with the decision, and doesn't change what is done."""
        async with open_journal() as journal:
            await fail(journal)
            order = Order(Action.BEGIN_ANEW, ItemKind.MESSAGE, ("7",), "ops", "anna", "the address was wrong")
            assert (await journal.decide(order, NOW + 9, ["sms"])).done == ("7",)

    async def test_the_error_is_what_the_service_is_told_last_while_it_begins_anew(
        self, open_journal: OpenJournal
    ) -> None:
        """The queue hands it out once more: `dequeued` and `error` are reported again, and it goes on."""
        async with open_journal() as journal:
            await fail(journal)
            await begin_again(journal)
            await journal.take([sample_message(7)], [], NOW + 10)
            rows = await journal.outbox(0, 9)
            assert [json.loads(row.body)["status"] for row in rows] == ["dequeued", "error"]
            await accept_all(journal)
            assert (await due_entry(journal)).generation == 2
