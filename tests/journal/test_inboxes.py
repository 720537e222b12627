"""What reaches a message by another worker than the one that has it: receipts, orders, repeats of its id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import anyio
import anyio.lowlevel
import pytest

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Decided, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql import inbox
from deliveryd.journal.postgresql import journal as shared_journal
from deliveryd.journal.postgresql.inbox import ROWS_AT_ONCE
from deliveryd.journal.postgresql.journal import ANSWERS_KEPT, FORWARDED, SWEPT_EVERY, SWEPT_FOR
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.model import (
    Malformed,
    Outcome,
    ProgressReport,
    QueuedMessage,
    Receipt,
    RecipientReport,
    SharedReceipt,
    StatusEvent,
    StopChange,
    Transition,
)
from deliveryd.states import State
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    decide_on,
    deliver_to_sent,
    echoed_receipt,
    gone_on,
    hand_over,
    key_of,
    make_ready,
    outbox_bodies,
    receive_all,
    refuse_first,
    refuse_sent,
    sample_message,
    sample_receipt,
    state_counts,
    waiting_events,
)
from support.several_workers import (
    SMS,
    BootClock,
    adopted_by,
    beside,
    empty_database,
    end_worker,
    ordered,
    query,
    sound,
    standing_before_the_commit,
    told,
    two_workers,
    worker,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WAITING_ROWS = "SELECT count(*) FROM main.inbox"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def source() -> JournalDatabase:
    return empty_database()


# receipts


async def in_the_line(journal: Journal) -> None:
    """Message 7 is handed to its provider, whose answer is still to come."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))


def named(journal: Journal, by: str, *, delivered: bool = True) -> Receipt:
    """A receipt for message 7 that names it by the provider's id, by our key, or by the message's id."""
    references = {"provider id": None, "key": key_of(journal), "message id": "7"}
    id_ = "p1" if by == "provider id" else "other"
    return sample_receipt(id_, delivered=delivered)._replace(reference=references[by])


NAMES = ["provider id", "key", "message id"]


@pytest.mark.parametrize("by", NAMES)
async def test_a_receipt_at_the_other_worker_after_the_outcome_is_told_by_the_one_that_has_the_message(
    source: JournalDatabase, by: str
) -> None:
    async with two_workers(source) as (one, other):
        await hand_over(one, 7)
        assert await receive_all(other, [named(other, by)]) == [FORWARDED]
        (effect,) = (await one.follow(NOW, SMS)).effects
        assert (effect.ended, effect.events) == ((State.DELIVERED,), 1)
        assert await waiting_events(one) == [(7, "sent"), (7, "delivered")]
        assert await waiting_events(other) == []
        assert await told(source, 7) == ["dequeued", "sent", "delivered"]
        assert query(source, WAITING_ROWS) == [(0,)]
        await sound(source)


@pytest.mark.parametrize("by", NAMES)
async def test_a_receipt_at_the_other_worker_before_the_outcome_is_applied_with_it(
    source: JournalDatabase, by: str
) -> None:
    """Whether the worker that has the message looks before it records the outcome or not."""
    for follows in (False, True):
        place = source if follows else empty_database()
        async with two_workers(place) as (one, other):
            await in_the_line(one)
            result = await receive_all(other, [named(other, by)])
            assert result == ["unmatched" if by == "provider id" else FORWARDED]
            if follows:
                assert not (await one.follow(NOW, SMS)).effects
            await one.change([accepted_step(attempt_on(7), "p1")])
            await one.follow(NOW, SMS)
            assert await waiting_events(one) == [(7, "sent"), (7, "delivered")]
            assert (await one.counts()).receipts_unmatched == 0
            await sound(place)


@pytest.mark.parametrize("looks_first", ["holder", "other"])
async def test_an_outcome_and_its_receipt_that_missed_each_other_are_matched_by_a_second_look(
    source: JournalDatabase, looks_first: str
) -> None:
    """Both transactions are open at the same time, so neither can see what the other writes."""
    async with two_workers(source) as (one, other):
        await in_the_line(one)
        with standing_before_the_commit(one, source) as stands:

            async def receive() -> list[str]:
                await stands.reached()
                found = await receive_all(other, [sample_receipt("p1")])
                stands.go_on()
                return found

            _, result = await beside(lambda: one.change([accepted_step(attempt_on(7), "p1")]), receive)
        assert result == ["unmatched"]
        journals = (one, other, one) if looks_first == "holder" else (other, one)
        effects = [effect for each in journals for effect in (await each.follow(NOW, SMS)).effects]
        assert [effect.ended for effect in effects] == [(State.DELIVERED,)]
        assert await waiting_events(one) == [(7, "sent"), (7, "delivered")]
        await sound(source)


async def test_a_receipt_and_its_outcome_that_missed_each_other_the_other_way_round_are_matched(
    source: JournalDatabase,
) -> None:
    """The receipt is committed last, after the outcome's second look."""
    async with two_workers(source) as (one, other):
        await in_the_line(one)
        with standing_before_the_commit(other, source) as stands:

            async def record() -> None:
                await stands.reached()
                await one.change([accepted_step(attempt_on(7), "p1")])
                assert not (await one.follow(NOW, SMS)).effects
                stands.go_on()

            result, _ = await beside(lambda: receive_all(other, [sample_receipt("p1")]), record)
        assert result == ["unmatched"]
        effects = [effect for each in (other, one) for effect in (await each.follow(NOW, SMS)).effects]
        assert [effect.ended for effect in effects] == [(State.DELIVERED,)]
        assert await waiting_events(one) == [(7, "sent"), (7, "delivered")]


async def test_a_receipt_whose_outcome_was_its_workers_last_commit_is_matched_by_a_look_seconds_later(
    source: JournalDatabase,
) -> None:
    """Nothing is open in that worker's log, and the one that got the receipt had looked once more before."""
    clock = BootClock()
    async with worker(source, clock=clock) as other:
        async with worker(source) as ended:
            await in_the_line(ended)
            with standing_before_the_commit(ended, source) as stands:

                async def receive() -> None:
                    await stands.reached()
                    await receive_all(other, [sample_receipt("p1")])
                    for _ in range(2):
                        assert not (await other.follow(NOW, SMS)).effects
                    stands.go_on()

                await beside(lambda: ended.change([accepted_step(attempt_on(7), "p1")]), receive)
            await accept_all(ended)
        for _ in range(2):
            assert not (await other.follow(NOW, SMS)).effects
        clock.now += SWEPT_EVERY
        effects = [effect for _ in range(2) for effect in (await other.follow(NOW, SMS)).effects]
        assert [effect.ended for effect in effects] == [(State.DELIVERED,)]
        assert await told(source, 7) == ["dequeued", "sent", "delivered"]


async def test_reports_that_another_worker_kept_are_applied_in_the_order_in_which_they_came(
    source: JournalDatabase,
) -> None:
    """A failure on the second channel names the id of its delivery, which came after the first channel's."""
    async with worker(source) as one, worker(source) as other:
        await gone_on(other, State.IN_DOUBT)
        failed = echoed_receipt(key_of(other, "email"), "e1", delivered=False)._replace(provider="email")
        sms, email = echoed_receipt(key_of(other), "s1"), sample_receipt("e1")._replace(provider="email")
        assert await receive_all(one, [failed, sms, email]) == ["unmatched"] * 3
        await other.follow(NOW, [*SMS, "email"])
        delivered = [each for each in await outbox_bodies(other) if each[0] == "delivered"]
        assert delivered == [("delivered", "sms", None)]
        assert (await other.counts()).receipts_unmatched == 0
        await sound(source)


@pytest.mark.parametrize("first", ["failed", "delivered"])
async def test_of_a_failure_and_a_delivery_at_two_workers_the_delivery_stays(
    source: JournalDatabase, first: str
) -> None:
    async with two_workers(source) as (one, other):
        await deliver_to_sent(one, 7)
        delivered, failed = sample_receipt("p1"), sample_receipt("p1", delivered=False)
        await receive_all(other, [failed if first == "failed" else delivered])
        await receive_all(one, [delivered if first == "failed" else failed])
        await one.follow(NOW, SMS)
        assert (await one.account()).ends == {State.DELIVERED: 1}
        await sound(source)


async def test_a_receipt_that_comes_twice_at_the_other_worker_is_told_once(source: JournalDatabase) -> None:
    async with two_workers(source) as (one, other):
        await deliver_to_sent(one, 7)
        for _ in range(2):
            assert await receive_all(other, [sample_receipt("p1")]) == [FORWARDED]
            await one.follow(NOW, SMS)
        assert await waiting_events(one) == [(7, "delivered")]


async def test_progress_and_recipients_reported_at_the_other_worker_are_told_as_at_the_own(
    source: JournalDatabase,
) -> None:
    """What only asks whether the message is one of ours needs nothing of its worker."""
    async with two_workers(source) as (one, other):
        await hand_over(one, 7)
        progress = ProgressReport("sms", "p1", "enroute", NOW + 7)
        reports = [progress, RecipientReport("sms", "p1", "enroute", NOW + 7)]
        stop = StopChange("sms", b"1" * 16, NOW, True, "STOP", "receipt", heard_at=NOW)
        results = [each.result for each in await other.receive(reports, [stop])]
        assert results == [FORWARDED, "noted", "matched"]
        found = await one.follow(NOW, SMS)
        assert [effect.events for effect in found.effects] == [1]
        assert await waiting_events(one) == [(7, "sent"), (7, "enroute")]
        assert await one.stopped() == [("sms", b"1" * 16)]


async def test_progress_and_recipients_are_told_also_by_a_worker_that_doesnt_know_the_other_one_yet(
    source: JournalDatabase,
) -> None:
    """Else the word of a recipient to stop would be taken for one to somebody else, and dropped."""
    async with worker(source) as one, worker(source) as other:
        await deliver_to_sent(other, 7)
        for report, result in (
            (RecipientReport("sms", "p1", "", NOW + 7), "noted"),
            (ProgressReport("sms", "p1", "enroute", NOW + 7), FORWARDED),
        ):
            assert [each.result for each in await one.receive([report])] == [result]
        await other.follow(NOW, SMS)
        assert await waiting_events(other) == [(7, "enroute")]


@pytest.mark.parametrize("name", ["p\0", "p\ud800", "p" * 2000], ids=["NUL", "surrogate", "long"])
async def test_whatever_a_provider_calls_a_message_its_receipt_finds_it_at_the_other_worker(
    source: JournalDatabase, name: str
) -> None:
    """The table holds neither NULs nor half of a character, and of a long name only a digest."""
    async with two_workers(source) as (one, other):
        await other.follow(NOW, SMS)
        await hand_over(one, 7, name)
        assert await receive_all(other, [SharedReceipt(*sample_receipt(name))]) == [FORWARDED]
        assert await receive_all(other, [sample_receipt(f"other {name}")]) == ["unmatched"]
        for journal in (one, other):
            await journal.follow(NOW, SMS)
        assert await waiting_events(one) == [(7, "sent"), (7, "delivered")]


async def test_of_a_shared_account_the_other_workers_messages_are_ours_and_anybodys_arent(
    source: JournalDatabase,
) -> None:
    """Also at a worker that doesn't know yet that the other one began."""
    async with worker(source) as one, worker(source) as other:
        await deliver_to_sent(other, 7)
        ours, others = (SharedReceipt(*sample_receipt(provider_id)) for provider_id in ("p1", "somebody's"))
        assert await receive_all(one, [ours, others]) == [FORWARDED, "not_ours"]
        await other.follow(NOW, SMS)
        assert await waiting_events(other) == [(7, "delivered")]


async def test_many_receipts_about_messages_of_several_workers_are_answered_in_their_order(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        for id_ in range(1, 11):
            await deliver_to_sent(one if id_ % 2 else other, id_, f"p{id_}")
        receipts = [sample_receipt(f"p{id_}") for id_ in range(1, 13)]
        results = await receive_all(other, receipts)
        assert results == [FORWARDED, "matched"] * 5 + ["unmatched"] * 2
        await one.follow(NOW, SMS)
        assert [id_ for id_, _ in await waiting_events(one)] == [1, 3, 5, 7, 9]
        assert (await one.account()).ends == {State.DELIVERED: 10}
        assert (await one.counts()).receipts_unmatched == 2
        await sound(source)


async def test_a_receipt_that_proves_a_message_sent_keeps_it_from_being_sent_again(
    source: JournalDatabase,
) -> None:
    """It waits to be repeated, and the receipt comes to the other worker."""
    async with two_workers(source) as (one, other):
        await bring_in_doubt(one, 7, State.WAITING)
        assert await receive_all(other, [named(other, "key")]) == [FORWARDED]
        (effect,) = (await one.follow(NOW, SMS)).effects
        assert (effect.waiting, effect.ended) == (-1, (State.SENT, State.DELIVERED))
        assert not (await one.due(NOW + 9 * ONE_SECOND, {"sms": 9})).entries
        await sound(source)


async def test_a_receipt_for_a_message_of_an_ended_worker_is_told_by_the_one_that_takes_its_log(
    source: JournalDatabase,
) -> None:
    """Also where nothing else is open in it."""
    async with worker(source) as other:
        async with worker(source) as ended:
            await deliver_to_sent(ended, 7)
        await other.follow(NOW, SMS)
        assert await receive_all(other, [sample_receipt("p1")]) == [FORWARDED]
        found = (await other.follow(NOW, SMS)).adopted
        assert found is not None
        assert [effect.ended for effect in found.effects] == [(State.DELIVERED,)]
        assert await waiting_events(other) == [(7, "delivered")]
        await accept_all(other)
        await other.follow(NOW, SMS)
        assert query(source, "SELECT count(*) FROM main.log WHERE holder IS NULL") == [(1,)]
        await sound(source)


async def test_a_reports_inbox_goes_on_with_its_log_when_that_is_taken_over(source: JournalDatabase) -> None:
    async with worker(source) as one, worker(source) as other:
        await hand_over(one, 7)
        assert await receive_all(other, [sample_receipt("p1")]) == [FORWARDED]
        end_worker(source)
        found = await other.follow(NOW, SMS)
        assert found.adopted is not None
        assert (found.adopted.reporting, [each.ended for each in found.adopted.effects]) == (
            [7],
            [(State.DELIVERED,)],
        )
        await other.take([sample_message(8)], [], NOW)
        rows = await other.outbox(0, 9)
        assert [(row.message_id, row.status) for row in rows] == [
            (7, "sent"), (7, "delivered"), (8, "dequeued"),
        ]  # fmt: skip
        await other.accept(rows, NOW)
        assert await waiting_events(other) == []
        await sound(source)


@pytest.mark.parametrize(("rows", "reports"), [(ROWS_AT_ONCE + 1, 1), (12, 250)])
async def test_of_many_reports_a_look_reads_some_and_says_that_there_may_be_more(
    source: JournalDatabase, rows: int, reports: int
) -> None:
    async with two_workers(source) as (one, other):
        await deliver_to_sent(one, 7)
        for row in range(rows):
            told = [ProgressReport("sms", "p1", f"at {row}.{each}", NOW) for each in range(reports)]
            await other.receive(told)
        looks = [await one.follow(NOW, SMS), await one.follow(NOW, SMS)]
        assert [each.has_more for each in looks] == [True, False]
        assert query(source, WAITING_ROWS) == [(0,)]
        assert len(await waiting_events(one)) == rows * reports


# orders


async def refused_dequeued(journal: Journal) -> int:
    """Message 7 is set aside."""
    await journal.take([sample_message(7)], [], NOW)
    await refuse_first(journal, NOW)
    return 7


async def refused_event(journal: Journal) -> int:
    """The service refuses the `sent` of message 7; returns the event's number."""
    await hand_over(journal, 7)
    return (await refuse_sent(journal)).seq


async def in_doubt(journal: Journal) -> int:
    """Message 7 is held in doubt."""
    await bring_in_doubt(journal, 7)
    return 7


async def failed(journal: Journal) -> int:
    """Message 7 was refused by its provider, and the service knows."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    error = StatusEvent(7, "error", NOW + 1, details="refused")
    step = Transition(attempt_on(7), State.SENDING, State.FAILED, NOW + 1, None, Outcome("refused"), (error,))
    await journal.change([step])
    await accept_all(journal)
    return 7


Way = Callable[[Journal], Awaitable[int]]


class OrderCase(NamedTuple):
    """What is ordered about a message, and what it leads to: states of open messages, events to report."""

    way: Way
    verb: Action
    kind: ItemKind
    states: dict[State, int]
    events: list[str]


ORDERS = [
    OrderCase(refused_dequeued, Action.RETRY, ItemKind.MESSAGE, {State.TAKEN: 1}, ["dequeued"]),
    OrderCase(refused_dequeued, Action.DROP, ItemKind.MESSAGE, {}, []),
    OrderCase(refused_event, Action.RETRY, ItemKind.EVENT, {}, ["sent"]),
    OrderCase(refused_event, Action.DROP, ItemKind.EVENT, {}, []),
    OrderCase(in_doubt, Action.RESEND, ItemKind.MESSAGE, {State.WAITING: 1}, []),
    OrderCase(in_doubt, Action.RESEND_ANEW, ItemKind.MESSAGE, {State.WAITING: 1}, []),
    OrderCase(in_doubt, Action.SETTLE_SENT, ItemKind.MESSAGE, {}, ["sent"]),
    OrderCase(in_doubt, Action.SETTLE_FAILED, ItemKind.MESSAGE, {}, ["error"]),
    OrderCase(failed, Action.BEGIN_ANEW, ItemKind.MESSAGE, {State.WAITING: 1}, []),
    OrderCase(failed, Action.FORGET, ItemKind.MESSAGE, {}, []),
    OrderCase(failed, Action.ERASE, ItemKind.MESSAGE, {}, []),
]
each_order = pytest.mark.parametrize(
    "case", ORDERS, ids=[f"{each.verb.name} {each.way.__name__}".lower() for each in ORDERS]
)


async def carried_out(source: JournalDatabase, journal: Journal, case: OrderCase) -> None:
    """The order had its effect on the log that this worker has, and nothing is left of it."""
    assert await state_counts(journal) == case.states
    assert [status for _, status in await waiting_events(journal)] == case.events
    assert query(source, WAITING_ROWS) == [(0,)]
    await sound(source)


@each_order
async def test_an_order_is_carried_out_by_the_other_worker_that_has_its_message(
    source: JournalDatabase, case: OrderCase
) -> None:
    async with two_workers(source) as (one, other):
        key = await case.way(one)
        decided, found = await ordered(other, case.verb, case.kind, key, followed_by=[one])
        assert decided.done == (str(key),)
        effects = [effect for each in found for effect in each.effects]
        assert sum(effect.events for effect in effects) == len(case.events)
        await carried_out(source, one, case)


@each_order
async def test_an_order_about_a_message_in_a_log_that_nobody_has_is_carried_out_by_who_takes_it_over(
    source: JournalDatabase, case: OrderCase
) -> None:
    async with worker(source) as other:
        async with worker(source) as ended:
            key = await case.way(ended)
        decided, _ = await ordered(other, case.verb, case.kind, key, followed_by=[other])
        assert decided.done == (str(key),)
        await carried_out(source, other, case)


@each_order
async def test_an_order_is_carried_out_by_a_command_while_no_worker_runs(
    source: JournalDatabase, case: OrderCase
) -> None:
    """In whichever log its message is."""
    async with worker(source), worker(source) as ended:
        key = await case.way(ended)
    async with open_shared_journal(source) as command:
        decided = await decide_on(command, case.verb, case.kind, key)
        assert decided.done == (str(key),)
    async with worker(source) as later:
        await carried_out(source, later, case)


async def test_an_order_says_of_each_message_why_it_wasnt_carried_out(source: JournalDatabase) -> None:
    """Those that several workers have, and one that nobody has."""
    async with two_workers(source) as (one, other):
        await bring_in_doubt(one, 1)
        await make_ready(one, 2)
        await bring_in_doubt(other, 3)
        await make_ready(other, 4)
        decided, _ = await ordered(other, Action.RESEND, ItemKind.MESSAGE, 1, 2, 3, 4, 5, followed_by=[one])
        assert sorted(decided.done) == ["1", "3"]
        held = "it isn't held in doubt"
        assert decided.skipped == {"2": held, "4": held, "5": held}
        assert await state_counts(one) == {State.WAITING: 1, State.READY: 1}
        decisions = query(source, "SELECT key FROM main.decision ORDER BY key")
        assert decisions == [("1",), ("3",)]


async def test_an_order_that_isnt_answered_is_taken_back(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't carried out later, when nobody expects it any more."""
    monkeypatch.setattr(shared_journal, "ANSWERED_WITHIN", 0.2)
    monkeypatch.setattr(shared_journal, "ENDED_WITHIN", -20.0)
    async with two_workers(source) as (one, other):
        await bring_in_doubt(one, 7)
        decided = await decide_on(other, Action.RESEND, ItemKind.MESSAGE, 7)
        assert not decided.done
        assert "doesn't answer" in decided.skipped["7"]
        assert not (await one.follow(NOW, SMS)).effects
        assert await state_counts(one) == {State.IN_DOUBT: 1}
        assert query(source, WAITING_ROWS) == [(0,)]


async def test_what_an_order_does_to_the_own_messages_is_told_at_once_when_it_is_done(
    source: JournalDatabase,
) -> None:
    """However long others need for theirs: the service could accept the event before the line knows of it."""
    async with two_workers(source) as (one, other):
        for journal, id_ in ((one, 1), (other, 2)):
            await journal.take([sample_message(id_)], [], NOW)
            await refuse_first(journal, NOW)
        decided: list[Decided] = []

        async def decide() -> None:
            decided.append(await decide_on(one, Action.RETRY, ItemKind.MESSAGE, 1, 2))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decide)
            while query(source, WAITING_ROWS) == [(0,)]:
                await anyio.lowlevel.checkpoint()
            assert await waiting_events(one) == []
            await other.follow(NOW, SMS)
        assert decided[0].done == ("2", "1")
        assert [effect.taken.id for effect in decided[0].effects if effect.taken is not None] == [1]
        assert await waiting_events(one) == [(1, "dequeued")]


async def test_an_order_that_is_taken_back_when_it_is_about_to_be_carried_out_isnt(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has read it already."""
    monkeypatch.setattr(shared_journal, "ANSWERED_WITHIN", 0.2)
    monkeypatch.setattr(shared_journal, "ENDED_WITHIN", -20.0)
    order_of = inbox.order_of

    def read(body: Sequence[object]) -> inbox.HandedOrder:
        while query(source, WAITING_ROWS) != [(0,)]:
            pass
        return order_of(body)

    monkeypatch.setattr(inbox, "order_of", read)
    async with two_workers(source) as (one, other):
        await bring_in_doubt(one, 7)
        decided: list[Decided] = []

        async def decide() -> None:
            decided.append(await decide_on(other, Action.RESEND, ItemKind.MESSAGE, 7))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decide)
            while query(source, WAITING_ROWS) == [(0,)]:
                await anyio.lowlevel.checkpoint()
            await one.follow(NOW, SMS)
        assert decided[0].skipped.keys() == {"7"}
        assert await state_counts(one) == {State.IN_DOUBT: 1}


async def test_an_answer_isnt_deleted_with_what_is_old_before_it_is_read(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old messages are deleted in portions, one right after the other."""
    monkeypatch.setattr(shared_journal, "ASKED_EVERY", 5.0)
    async with two_workers(source) as (one, other):
        await bring_in_doubt(one, 7)
        decided: list[Decided] = []

        async def decide() -> None:
            decided.append(await decide_on(other, Action.RESEND, ItemKind.MESSAGE, 7))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decide)
            while query(source, WAITING_ROWS) == [(0,)]:
                await anyio.lowlevel.checkpoint()
            await one.follow(NOW, SMS)
            for _ in range(2):
                await one.prune(NOW, 9)
            assert query(source, WAITING_ROWS) == [(1,)]
        assert decided[0].done == ("7",)


async def test_an_answer_that_nobody_reads_is_deleted_in_the_end(source: JournalDatabase) -> None:
    """Whoever gave the order is gone."""
    clock = BootClock()
    async with worker(source, clock=clock) as one, worker(source) as other:
        await bring_in_doubt(one, 7)
        with anyio.move_on_after(0.5):
            await decide_on(other, Action.RESEND, ItemKind.MESSAGE, 7)
        await one.follow(NOW, SMS)
        await one.prune(NOW, 9)
        assert query(source, WAITING_ROWS) == [(1,)]
        clock.now += ANSWERS_KEPT
        await one.prune(NOW, 9)
        assert query(source, WAITING_ROWS) == [(0,)]


@pytest.mark.parametrize("id_", [-(2**63), 2**63 - 1])
async def test_an_order_reaches_a_message_of_the_other_worker_whatever_its_id(
    source: JournalDatabase, id_: int
) -> None:
    async with two_workers(source) as (one, other):
        await bring_in_doubt(one, id_)
        decided, _ = await ordered(other, Action.RESEND_ANEW, ItemKind.MESSAGE, id_, followed_by=[one])
        assert decided.done == (str(id_),)


@pytest.mark.parametrize("key", ["5", "-5", "99999999999999999", "99999999999999999999", "x", "--5", "²"])
@pytest.mark.parametrize("kind", [ItemKind.EVENT, ItemKind.MESSAGE, ItemKind.RECEIPT])
async def test_an_order_about_what_isnt_there_is_answered_at_once(
    source: JournalDatabase, kind: ItemKind, key: str
) -> None:
    """By the worker that got it."""
    async with two_workers(source) as (_, other):
        with anyio.fail_after(5):
            decided = await decide_on(other, Action.DROP, kind, key)
        assert list(decided.skipped) == [key]
        assert "doesn't answer" not in decided.skipped[key]


async def test_an_unmatched_receipt_that_fits_the_other_workers_message_is_retried_there(
    source: JournalDatabase,
) -> None:
    """It came too long ago for another look at it."""
    async with two_workers(source) as (one, other):
        await receive_all(other, [sample_receipt("p1", NOW - 2 * SWEPT_FOR * ONE_SECOND)])
        ((seq,),) = query(source, "SELECT seq FROM main.receipt")
        assert (await decide_on(other, Action.RETRY, ItemKind.RECEIPT, seq)).skipped
        await make_ready(one, 7)
        await begin_attempts(one, attempt_on(7))
        await one.change([accepted_step(attempt_on(7), None)])
        await one._commit(lambda db: db.execute("UPDATE message SET provider_id = 'p1'"))
        decided, _ = await ordered(other, Action.RETRY, ItemKind.RECEIPT, seq, followed_by=[one])
        assert decided.done == (str(seq),)
        assert await waiting_events(one) == [(7, "sent"), (7, "delivered")]


async def test_a_message_that_an_order_lets_go_on_is_the_holders_to_send(source: JournalDatabase) -> None:
    """It gets the message with the order's effect, and whoever gave the order doesn't."""
    async with two_workers(source) as (one, other):
        await refused_dequeued(one)
        decided, found = await ordered(other, Action.RETRY, ItemKind.MESSAGE, 7, followed_by=[one])
        assert decided.done
        assert not decided.effects
        taken = [effect.taken for each in found for effect in each.effects]
        assert [entry.id for entry in taken if entry is not None] == [7]
        await accept_all(one)
        await begin_attempts(one, attempt_on(7))
        await one.change([accepted_step(attempt_on(7), "p1")])
        await sound(source)


# the queue hands an id out once more


@pytest.mark.parametrize("is_pruned", [False, True])
async def test_an_id_that_another_log_has_is_reported_again_by_the_worker_that_has_it(
    source: JournalDatabase, is_pruned: bool
) -> None:
    """Also where only a tombstone is left of it."""
    async with two_workers(source) as (one, other):
        await deliver_to_sent(one, 7)
        if is_pruned:
            assert await one.prune(DAYS_LATER, 9) == 1
        assert not await other.take([sample_message(7)], [], DAYS_LATER)
        assert await waiting_events(other) == []
        await one.follow(DAYS_LATER, SMS)
        assert await waiting_events(one) == [(7, "dequeued"), (7, "sent")]
        assert (await one.account()).taken == 1
        await sound(source)


@pytest.mark.parametrize("is_pruned", [False, True])
async def test_an_id_in_a_log_that_nobody_has_is_reported_again_by_who_takes_it_over(
    source: JournalDatabase, is_pruned: bool
) -> None:
    async with worker(source) as other:
        async with worker(source) as ended:
            await deliver_to_sent(ended, 7)
            if is_pruned:
                assert await ended.prune(DAYS_LATER, 9) == 1
        assert not await other.take([sample_message(7)], [], DAYS_LATER)
        await other.follow(DAYS_LATER, SMS)
        assert await waiting_events(other) == [(7, "dequeued"), (7, "sent")]
        await accept_all(other)
        await sound(source)


async def test_an_id_in_a_log_that_this_worker_took_over_is_reported_again_at_once(
    source: JournalDatabase,
) -> None:
    async with worker(source) as other:
        async with worker(source) as ended:
            await deliver_to_sent(ended, 7)
            await bring_in_doubt(ended, 8)
        await adopted_by(other)
        assert await other.take([sample_message(7), sample_message(9)], [], NOW) == {9: 1}
        assert await waiting_events(other) == [(7, "dequeued"), (7, "sent"), (9, "dequeued")]


async def test_an_id_that_was_forgotten_in_a_log_that_was_taken_over_begins_anew_in_the_own(
    source: JournalDatabase,
) -> None:
    """The worker had the message as one of the other log, which it still has."""
    async with worker(source) as other:
        async with worker(source) as ended:
            await bring_in_doubt(ended, 8)
            await make_ready(ended, 7)
        await adopted_by(other)
        (entry,) = (await other.due(NOW + 9, {"": 9})).entries
        begun = entry.begun("sms", b"12345678", NOW)
        await begin_attempts(other, begun)
        error = StatusEvent(7, "error", NOW + 1, details="refused")
        await other.change(
            [Transition(begun, State.SENDING, State.FAILED, NOW + 1, None, Outcome("refused"), (error,))]
        )
        await accept_all(other)
        assert (await decide_on(other, Action.FORGET, ItemKind.MESSAGE, 7)).done
        assert await other.take([sample_message(7)], [], NOW) == {7: 2}
        await accept_all(other)
        again = attempt_on(7)._replace(generation=2)
        await begin_attempts(other, again)
        await other.change([accepted_step(again, "p2")])
        assert await waiting_events(other) == [(7, "sent")]
        await sound(source)


async def test_a_malformed_element_with_an_id_that_another_log_has_is_no_new_message(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        await deliver_to_sent(one, 7)
        await other.take([], [Malformed('{"id": 7}', "no settings", 7)], NOW)
        assert (await one.account()).taken == 1
        await sound(source)


async def test_ids_that_two_workers_take_at_once_are_one_workers_each(source: JournalDatabase) -> None:
    async with two_workers(source) as (one, other):
        batch: list[QueuedMessage] = [sample_message(id_) for id_ in range(1, 101)]
        new = await beside(lambda: one.take(batch, [], NOW), lambda: other.take(batch[::-1], [], NOW))
        assert sorted([*new[0], *new[1]]) == list(range(1, 101))
        assert (await one.account()).taken == 100
        for journal in (one, other, one):
            await journal.follow(NOW, SMS)
        told = [*await waiting_events(one), *await waiting_events(other)]
        assert sorted(told) == [(id_, "dequeued") for id_ in range(1, 101)]
        await sound(source)


async def test_an_id_that_two_workers_take_at_once_is_reported_again_by_the_one_that_has_it(
    source: JournalDatabase,
) -> None:
    """The second waits for the first, and finds that it came too late."""
    async with two_workers(source) as (one, other):
        with standing_before_the_commit(one, source) as stands:

            async def second() -> object:
                await stands.reached()
                _, new = await beside(
                    stands.go_on_when_waited_for,
                    lambda: other.take([sample_message(7), sample_message(8)], [], NOW),
                )
                return new

            first, late = await beside(lambda: one.take([sample_message(7)], [], NOW), second)
        assert (first, late) == ({7: 1}, {8: 1})
        await accept_all(one)
        await one.follow(NOW, SMS)
        assert await waiting_events(one) == [(7, "dequeued")]
        assert await waiting_events(other) == [(8, "dequeued")]
        await sound(source)


async def test_what_the_other_worker_is_handed_out_just_before_it_is_forgotten_isnt_lost(
    source: JournalDatabase,
) -> None:
    """It is reported again first, and then the order finds that it is."""
    async with two_workers(source) as (one, other):
        await failed(one)
        assert not await other.take([sample_message(7)], [], NOW)
        decided = await decide_on(one, Action.FORGET, ItemKind.MESSAGE, 7)
        assert decided.skipped
        assert [effect.events for effect in decided.effects] == [1]
        assert await waiting_events(one) == [(7, "dequeued"), (7, "error")]


async def test_what_the_other_worker_is_handed_out_after_an_order_to_forget_it_isnt_lost(
    source: JournalDatabase,
) -> None:
    """The worker that has it finds both in its inbox."""
    async with two_workers(source) as (one, other):
        await failed(one)
        decided: list[Decided] = []

        async def forget() -> None:
            decided.append(await decide_on(other, Action.FORGET, ItemKind.MESSAGE, 7))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forget)
            while query(source, WAITING_ROWS) == [(0,)]:
                await anyio.lowlevel.checkpoint()
            assert not await other.take([sample_message(7)], [], NOW)
            await one.follow(NOW, SMS)
        assert decided[0].skipped
        assert await waiting_events(one) == [(7, "dequeued"), (7, "error")]


async def test_what_the_other_worker_is_handed_out_while_it_is_forgotten_isnt_lost(
    source: JournalDatabase,
) -> None:
    """The worker that forgets it has looked into its inbox already."""
    async with two_workers(source) as (one, other):
        await failed(one)
        with standing_before_the_commit(other, source) as stands:

            async def forget() -> Decided:
                await stands.reached()
                _, decided = await beside(
                    stands.go_on_when_waited_for,
                    lambda: decide_on(one, Action.FORGET, ItemKind.MESSAGE, 7),
                )
                assert isinstance(decided, Decided)
                return decided

            new, decided = await beside(lambda: other.take([sample_message(7)], [], NOW), forget)
        assert not new
        assert decided.skipped
        assert await waiting_events(one) == [(7, "dequeued"), (7, "error")]


async def test_an_id_that_is_handed_out_again_is_reported_before_it_may_be_forgotten_however_many_are(
    source: JournalDatabase,
) -> None:
    async with two_workers(source) as (one, other):
        await failed(one)
        await deliver_to_sent(one, 8)
        for id_ in [*[8] * ROWS_AT_ONCE, 7]:
            assert not await other.take([sample_message(id_)], [], NOW)
        assert (await decide_on(one, Action.FORGET, ItemKind.MESSAGE, 7)).skipped
        assert query(source, WAITING_ROWS) == [(0,)]
        assert (7, "dequeued") in await waiting_events(one)
