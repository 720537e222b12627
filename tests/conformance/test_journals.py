"""What every journal must do: one contract, run against each journal there is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from deliveryd.errors import IllegalTransition, OutOfOrder
from deliveryd.journal.base import Account, Counts, Doubtful, Due, Journal, OutboxRow, Recovery
from deliveryd.journal.orders import Action, Decided, Effect, ItemKind, Order
from deliveryd.journal.sqlite import open_journal
from deliveryd.model import (
    Content,
    Entry,
    Malformed,
    Outcome,
    QueuedMessage,
    Receipt,
    Rendered,
    StatusEvent,
    Transition,
    format_instant,
)
from deliveryd.states import State

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000_000_000
SECOND = 1_000_000

Open = Callable[[], AbstractAsyncContextManager[Journal]]


def open_sqlite(folder: Path) -> AbstractAsyncContextManager[Journal]:
    """The embedded journal."""
    return open_journal(folder / "journal.db")


@pytest.fixture(params=[open_sqlite])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same journal, every time anew."""
    return lambda: request.param(tmp_path)


def message(id_: int, **variables: str) -> QueuedMessage:
    return QueuedMessage(id_, id_ * 10, id_ * 100, variables)


def entry_of(id_: int, **progress: Any) -> Entry:
    return Entry(*message(id_), taken_at=NOW)._replace(**progress)


def receipt(provider_id: str = "p1", at: int = NOW + 9, *, delivered: bool = True) -> Receipt:
    return Receipt("sms", provider_id, delivered, "DELIVRD" if delivered else "UNDELIV", at - 1, at)


async def receive(journal: Journal, receipts: Sequence[Receipt]) -> list[str]:
    """Record receipts; the words that their providers are answered with."""
    return [each.result for each in await journal.receive(receipts)]


async def waiting_events(journal: Journal) -> list[tuple[int, str]]:
    """The outbox, as message ids and statuses."""
    return [(row.message_id, row.status) for row in await journal.outbox(0, 100_000)]


async def accept_all(journal: Journal, at: int = NOW) -> list[OutboxRow]:
    """The service accepts all that waits."""
    rows = await journal.outbox(0, 100_000)
    await journal.accept(rows, at)
    return rows


async def state_counts(journal: Journal) -> dict[State, int]:
    return dict((await journal.counts()).states)


async def make_ready(journal: Journal, *ids: int) -> None:
    """Take messages and have their `dequeued` accepted."""
    await journal.take([message(id_) for id_ in ids], [], NOW)
    await accept_all(journal)


async def begin(journal: Journal, *entries: Entry) -> None:
    """Commit the intents of attempts."""
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW) for entry in entries])


def attempt_on(id_: int, lane: str = "sms", number: int = 1, key: int = 1) -> Entry:
    return entry_of(id_, channel=lane, key=key, number=number, digest=b"12345678", begun_at=NOW)


def accepted(entry: Entry, provider_id: str | None) -> Transition:
    """The channel accepted the message."""
    return Transition(
        entry,
        State.SENDING,
        State.SENT,
        NOW + 5,
        outcome=Outcome("accepted", provider_id),
        events=(StatusEvent(entry.id, "sent", NOW + 5),),
    )


async def hand_over(journal: Journal, id_: int, provider_id: str | None = "p1") -> None:
    """Bring a message from the queue to SENT; the service is still to hear of that."""
    await make_ready(journal, id_)
    await begin(journal, attempt_on(id_))
    await journal.change([accepted(attempt_on(id_), provider_id)])


async def send(journal: Journal, id_: int, provider_id: str | None = "p1") -> None:
    """Bring a message from the queue to SENT, with all its events accepted."""
    await hand_over(journal, id_, provider_id)
    await accept_all(journal)


async def refuse_sent(journal: Journal) -> OutboxRow:
    """The service refuses the only event that waits, a `sent`."""
    (sent,) = await journal.outbox(0, 9)
    assert sent.status == "sent"
    await journal.refuse(sent, "400", NOW)
    return sent


async def park(journal: Journal, id_: int, due_at: int, lane: str | None = None) -> None:
    """Bring a message from the queue to WAITING."""
    await make_ready(journal, id_)
    await journal.change([Transition(entry_of(id_, channel=lane), State.READY, State.WAITING, NOW, due_at)])


# intake


async def test_a_new_message_is_taken_and_its_dequeued_event_waits_in_the_outbox(opened: Open) -> None:
    async with opened() as journal:
        assert set(await journal.take([message(1), message(2)], [], NOW)) == {1, 2}
        assert await state_counts(journal) == {State.TAKEN: 2}
        assert await waiting_events(journal) == [(1, "dequeued"), (2, "dequeued")]
        body = json.loads((await journal.outbox(0, 1))[0].body)
        assert body == {"timestamp": "2023-11-14T22:13:20.000000Z", "messageId": 1, "status": "dequeued"}


async def test_what_was_taken_is_there_after_a_restart(opened: Open) -> None:
    """Variables come back as they were written, number texts and all."""
    async with opened() as journal:
        await journal.take([message(1, amount="10.50", **{"tid.0": "ü\u0000😀"})], [], NOW)
        namespace = journal.namespace
    async with opened() as journal:
        assert (await journal.recover(NOW, ["sms"])).taken == [
            Entry(1, 10, 100, {"amount": "10.50", "tid.0": "ü\u0000😀"}, taken_at=NOW)
        ]
        assert journal.namespace == namespace
        assert await waiting_events(journal) == [(1, "dequeued")]


async def test_a_message_that_occurs_twice_in_a_batch_is_taken_once_as_it_came_first(opened: Open) -> None:
    async with opened() as journal:
        assert set(await journal.take([message(1, a="first"), message(1, a="second")], [], NOW)) == {1}
        assert await waiting_events(journal) == [(1, "dequeued")]
        assert (await journal.recover(NOW, [])).taken[0].variables == {"a": "first"}


async def test_a_repeat_is_not_recorded_again_and_its_events_are_not_doubled_while_they_wait(
    opened: Open,
) -> None:
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        assert not await journal.take([message(1)], [], NOW + 1)
        assert await waiting_events(journal) == [(1, "dequeued")]
        assert await state_counts(journal) == {State.TAKEN: 1}


async def test_a_repeat_of_a_sent_message_reports_dequeued_and_the_latest_status_again(opened: Open) -> None:
    """With the timestamps of then: the bodies are the same to the letter."""
    async with opened() as journal:
        await hand_over(journal, 1)
        (sent,) = await accept_all(journal)
        assert not await journal.take([message(1)], [], NOW + 50)
        dequeued, again = await journal.outbox(0, 10)
        assert (dequeued.status, json.loads(dequeued.body)["timestamp"]) == (
            "dequeued",
            "2023-11-14T22:13:20.000000Z",
        )
        assert (again.status, again.body) == ("sent", sent.body)


async def test_a_repeat_reports_the_latest_status_again_that_the_service_accepted(opened: Open) -> None:
    """Not one that it refused: that lies aside, and `dequeued` would be the last that the service hears."""
    async with opened() as journal:
        await send(journal, 1)
        await receive(journal, [receipt()])
        await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
        await journal.take([message(1)], [], NOW)
        assert await waiting_events(journal) == [(1, "dequeued"), (1, "sent")]


async def test_a_repeat_that_was_reported_again_can_be_reported_again_and_again(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 1)
        for _ in range(3):
            await journal.take([message(1)], [], NOW)
            assert [row.status for row in await accept_all(journal)] == ["dequeued", "sent"]
        assert await state_counts(journal) == {}


async def test_a_malformed_element_without_an_id_is_kept_and_reported_to_nobody(opened: Open) -> None:
    async with opened() as journal:
        assert not await journal.take([], [Malformed('"x"', "not an object", None)], NOW)
        assert (await journal.counts()).malformed == 1
        assert await waiting_events(journal) == []


async def test_a_malformed_element_with_an_id_is_one_error_event_however_often_it_comes(opened: Open) -> None:
    bad = Malformed('{"id": 7}', "settingsId: Field required", 7)
    async with opened() as journal:
        assert set(await journal.take([message(1)], [bad], NOW)) == {1}
        rows = await accept_all(journal)
        told = [(row.message_id, row.status) for row in rows]
        assert told == [(1, "dequeued"), (7, "dequeued"), (7, "error")]
        assert json.loads(rows[2].body)["details"] == "malformed message: settingsId: Field required"
        await journal.take([], [bad, bad], NOW)
        assert await waiting_events(journal) == [(7, "dequeued"), (7, "error")]
        assert (await journal.counts()).malformed == 1


async def test_a_malformed_element_takes_nothing_from_a_message_with_its_id(opened: Open) -> None:
    """Neither in the same batch nor later: the message goes on."""
    bad = Malformed('{"id": 1}', "no settings", 1)
    async with opened() as journal:
        assert set(await journal.take([message(1)], [bad], NOW)) == {1}
        await journal.take([], [bad], NOW)
        assert await waiting_events(journal) == [(1, "dequeued")]
        assert await state_counts(journal) == {State.TAKEN: 1}


async def test_unpaired_surrogates_are_carried_like_any_text(opened: Open) -> None:
    """JSON can say `\\ud800`, UTF-8 can't: the message keeps it, and no other message suffers."""
    async with opened() as journal:
        bad = Malformed('"\ud800"', "no object: \udfff", 2)
        await journal.take([message(1, **{"\ud800": "a\udfff"}), message(3)], [bad], NOW)
        assert len(await accept_all(journal)) == 4
        event = StatusEvent(1, "error", NOW, details="missing placeholders: \ud800")
        entry = entry_of(1, spent=(("sms", "\udfff"),))
        await journal.change([Transition(entry, State.READY, State.FAILED, NOW, events=(event,))])
        (row,) = await journal.outbox(0, 10)
        assert row.body.encode()
        assert json.loads(row.body)["details"] == "missing placeholders: \ud800"
        await journal.refuse(row, "said \ud800", NOW)
        assert (await journal.recover(NOW, [])).waiting == 1


async def test_surrogates_in_variables_come_back_as_they_were(opened: Open) -> None:
    async with opened() as journal:
        await journal.take([message(1, **{"\ud800": "a\udfff"})], [], NOW)
        assert (await journal.recover(NOW, [])).taken[0].variables == {"\ud800": "a\udfff"}


@pytest.mark.parametrize("id_", [-(2**63), -1, 0, 2**63 - 1])
async def test_ids_may_be_any_integer_of_64_bits(opened: Open, id_: int) -> None:
    edge = QueuedMessage(id_, 2**63 - 1, -(2**63), {})
    async with opened() as journal:
        assert set(await journal.take([edge], [], NOW)) == {id_}
        assert not await journal.take([edge], [], NOW)
        assert [row.message_id for row in await accept_all(journal)] == [id_]
        await journal.change([Transition(Entry(*edge), State.READY, State.WAITING, NOW, NOW)])
        assert (await journal.due(NOW, {"": 1})).entries == [Entry(*edge, taken_at=NOW)]


# reporting


async def test_a_message_is_ready_once_its_dequeued_is_accepted(opened: Open) -> None:
    async with opened() as journal:
        await journal.take([message(1), message(2)], [], NOW)
        await journal.accept(await journal.outbox(0, 1), NOW)
        assert await state_counts(journal) == {State.TAKEN: 1, State.READY: 1}
        assert await waiting_events(journal) == [(2, "dequeued")]


async def test_a_message_whose_dequeued_is_refused_is_set_aside(opened: Open) -> None:
    """It is no longer open, and its event isn't offered again."""
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        (row,) = await journal.outbox(0, 10)
        await journal.refuse(row, "400", NOW)
        assert await journal.counts() == Counts({}, 0, 1, 0, 0)
    async with opened() as journal:
        recovery = await journal.recover(NOW, [])
        assert recovery == Recovery([], [], 0, [])


async def test_a_message_that_was_set_aside_and_comes_back_to_the_line_is_open_again(opened: Open) -> None:
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
        await journal.change([Transition(entry_of(1), State.SET_ASIDE, State.TAKEN, NOW)])
        assert await state_counts(journal) == {State.TAKEN: 1}
        assert await journal.forget(NOW + 1, 10) == 0


async def refuse_first(journal: Journal, at: int) -> OutboxRow:
    """The service refuses what waits first."""
    (row,) = await journal.outbox(0, 1)
    await journal.refuse(row, "400", at)
    return row


async def test_a_message_that_was_set_aside_is_ready_once_its_repeated_dequeued_is_accepted(
    opened: Open,
) -> None:
    """It is given back to the line, once; its `dequeued` has the same words as before."""
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        refused = await refuse_first(journal, NOW)
        assert await journal.take([message(1)], [], NOW + 1) == set()
        again = await journal.outbox(0, 10)
        assert [row.body for row in again] == [refused.body]
        assert await journal.counts() == Counts({}, 1, 0, 0, 0)
        assert await journal.accept(again, NOW + 2) == [entry_of(1)._replace(taken_at=NOW)]
        assert await state_counts(journal) == {State.READY: 1}
        await journal.take([message(1)], [], NOW + 3)
        assert await journal.accept(await journal.outbox(0, 10), NOW + 4) == []
        assert await state_counts(journal) == {State.READY: 1}
        assert await journal.forget(NOW + 5, 10) == 0


async def test_a_refused_dequeued_is_offered_at_once_and_then_after_pauses_that_double(opened: Open) -> None:
    """In one row however often, and up to an hour apart; between those times a repeat changes nothing."""
    minute = 60_000_000
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        at = NOW
        for times, pause in enumerate([0, 1, 2, 4, 8, 16, 32, 60, 60], 1):
            (row,) = await journal.outbox(0, 10)
            assert await journal.refuse(row, "400", at) == times
            if pause:
                await journal.take([message(1)], [], at + pause * minute - 1)
                assert await journal.outbox(0, 10) == []
            at += pause * minute
            await journal.take([message(1)], [], at)
        assert await waiting_events(journal) == [(1, "dequeued")]
        await refuse_first(journal, at)
        assert await journal.counts() == Counts({}, 0, 1, 0, 0)
        await journal.take([message(1)], [], at - minute)  # the clock was put back
        assert await waiting_events(journal) == [(1, "dequeued")]


async def test_no_event_is_before_its_messages_refused_one_though_the_clock_was_put_back_meanwhile(
    opened: Open,
) -> None:
    """Also where the service accepted no event at all, so that only a refusal tells of the time before."""
    an_hour_back = NOW - 3_600_000_000
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        await refuse_first(journal, NOW)
    async with opened() as journal:
        await journal.take([message(1)], [], an_hour_back)
        (entry,) = await journal.accept(await journal.outbox(0, 10), an_hour_back)
        error = StatusEvent(1, "error", an_hour_back, details="no content")
        await journal.change([Transition(entry, State.READY, State.FAILED, an_hour_back, events=(error,))])
        (row,) = await journal.outbox(0, 10)
        assert json.loads(row.body)["timestamp"] == format_instant(NOW)


async def test_an_operators_drop_outlasts_an_acceptance(opened: Open) -> None:
    """What was given up is reported as dequeued, so that the queue lets go of it, and isn't sent."""
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        await refuse_first(journal, NOW)
        await journal.decide(Order(Action.DROP, ItemKind.MESSAGE, ("1",)), NOW, ["sms"])
        await journal.take([message(1)], [], NOW + 1)
        again = await journal.outbox(0, 10)
        assert [row.status for row in again] == ["dequeued"]
        assert await journal.accept(again, NOW + 2) == []
        assert await state_counts(journal) == {}


@pytest.mark.parametrize("verb", [Action.RETRY, Action.DROP])
async def test_an_operator_can_decide_while_a_refused_dequeued_is_reported_again(
    opened: Open, verb: Action
) -> None:
    async with opened() as journal:
        await journal.take([message(1)], [], NOW)
        await refuse_first(journal, NOW)
        await journal.take([message(1)], [], NOW + 1)
        decided = await journal.decide(Order(verb, ItemKind.MESSAGE, ("1",)), NOW + 2, ["sms"])
        assert decided.done == ("1",)
        await accept_all(journal)
        assert await state_counts(journal) == ({State.READY: 1} if verb is Action.RETRY else {})


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["kept", "forgotten"])
async def test_a_repeated_dequeued_of_a_sent_message_that_is_refused_moves_nothing_and_pauses_too(
    opened: Open, is_forgotten: bool
) -> None:
    """However often the queue hands it out, no more than one refused row is there."""
    async with opened() as journal:
        await send(journal, 1)
        if is_forgotten:
            assert await journal.forget(NOW + 6, 10) == 1
        at = NOW
        for times in range(1, 4):
            at = NOW + times * 3_600_000_000
            await journal.take([message(1)], [], at)
            assert await waiting_events(journal) == [(1, "dequeued"), (1, "sent")]
            await refuse_first(journal, at)
            await accept_all(journal)
            assert (await journal.counts()).events_refused == 1
        await journal.take([message(1)], [], at + 60_000_000)
        assert await waiting_events(journal) == []
        assert await state_counts(journal) == {}


async def test_a_refused_status_ends_nothing(opened: Open) -> None:
    """Only a refused `dequeued` says anything about whether a message may be sent."""
    async with opened() as journal:
        await hand_over(journal, 1)
        await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
        assert await receive(journal, [receipt()]) == ["matched"]


async def test_the_outbox_gives_the_oldest_first_in_portions(opened: Open) -> None:
    async with opened() as journal:
        await journal.take([message(id_) for id_ in (5, 3, 4)], [], NOW)
        await journal.take([message(1)], [], NOW)
        first = await journal.outbox(0, 3)
        assert [row.message_id for row in first] == [5, 3, 4]
        assert [row.message_id for row in await journal.outbox(first[-1].seq, 3)] == [1]
        assert await journal.outbox(0, 0) == []


async def test_events_keep_their_order_over_restarts(opened: Open) -> None:
    """Numbers go on where they were, also when every earlier event was accepted."""
    seqs = []
    for id_ in (9, 8, 7):
        async with opened() as journal:
            await journal.take([message(id_)], [], NOW)
            seqs += [row.seq for row in await accept_all(journal)]
    assert seqs == sorted(set(seqs))


@pytest.mark.parametrize("refused", [False, True], ids=["accepted", "refused"])
async def test_an_event_cannot_be_settled_before_one_that_waits_ahead_of_it(
    opened: Open, refused: bool
) -> None:
    """The one ahead would never be reported: nothing happens, and in the right order everything goes on."""
    async with opened() as journal:
        await journal.take([message(1), message(2), message(3)], [], NOW)
        first, second, third = await journal.outbox(0, 10)
        with pytest.raises(OutOfOrder, match=f"event {third.seq} .* before event {first.seq}"):
            await (journal.refuse(third, "400", NOW) if refused else journal.accept([second, third], NOW))
        assert await waiting_events(journal) == [(1, "dequeued"), (2, "dequeued"), (3, "dequeued")]
        assert await state_counts(journal) == {State.TAKEN: 3}
        await journal.accept([first], NOW)
        await journal.refuse(second, "400", NOW)
        await journal.accept([third], NOW)
        assert await waiting_events(journal) == []
        assert await state_counts(journal) == {State.READY: 2}


async def test_what_was_settled_stays_as_it_is(opened: Open) -> None:
    """Neither a second acceptance nor a late refusal changes anything."""
    async with opened() as journal:
        await journal.take([message(1), message(2)], [], NOW)
        rows = await accept_all(journal)
        await journal.accept(rows, NOW + 1)
        await journal.refuse(rows[0], "400", NOW + 1)
        assert await journal.counts() == Counts({State.READY: 2}, 0, 0, 0, 0)


async def test_a_number_that_no_event_got_holds_nothing_up(opened: Open) -> None:
    """An operation that failed after it had put events in leaves a gap."""
    async with opened() as journal:
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
        await journal.take([message(2)], [], NOW)
        assert [row.status for row in await accept_all(journal)] == ["x", "dequeued"]
        assert await state_counts(journal) == {State.READY: 1, State.SENDING: 1}


# delivery


async def test_a_step_that_the_table_does_not_have_raises_and_changes_nothing(opened: Open) -> None:
    async with opened() as journal:
        await make_ready(journal, 1, 2)
        good = Transition(entry_of(1), State.READY, State.WAITING, NOW, NOW)
        bad = Transition(entry_of(2), State.READY, State.DELIVERED, NOW)
        with pytest.raises(IllegalTransition):
            await journal.change([good, bad])
        assert await state_counts(journal) == {State.READY: 2}


@pytest.mark.parametrize("id_", [2, 99], ids=["elsewhere", "unknown"])
async def test_a_step_of_a_message_that_is_not_where_it_begins_takes_back_all(opened: Open, id_: int) -> None:
    """Steps, attempts and events of the whole call."""
    async with opened() as journal:
        await make_ready(journal, 1)
        await journal.take([message(2)], [], NOW)
        event = StatusEvent(1, "sending", NOW)
        good = Transition(attempt_on(1), State.READY, State.SENDING, NOW, events=(event,))
        with pytest.raises(IllegalTransition, match="1 of 2"):
            await journal.change([good, Transition(attempt_on(id_), State.READY, State.SENDING, NOW)])
        assert await state_counts(journal) == {State.READY: 1, State.TAKEN: 1}
        assert await waiting_events(journal) == [(2, "dequeued")]
        await begin(journal, attempt_on(1))


async def test_an_outcome_is_recorded_together_with_its_event(opened: Open) -> None:
    async with opened() as journal:
        await hand_over(journal, 1, None)
    async with opened() as journal:
        assert (await journal.recover(NOW, ["sms"])).reporting == [1]
        (row,) = await journal.outbox(0, 10)
        assert json.loads(row.body) == {
            "timestamp": "2023-11-14T22:13:20.000005Z",
            "messageId": 1,
            "status": "sent",
        }


async def test_how_far_a_delivery_came_is_kept(opened: Open) -> None:
    said = Content(Rendered("sms", "de", {"text": "Grüße \ud800"}), {"phone": "+49"})
    entry = attempt_on(1, key=2)._replace(tries=2, spent=(("inApp", 'no "app"'),), doubt=True, content=said)
    async with opened() as journal:
        await make_ready(journal, 1)
        await begin(journal, attempt_on(1, key=2))
        outcome = Outcome("in_doubt", None, "cut off")
        await journal.change([Transition(entry, State.SENDING, State.WAITING, NOW, NOW + 7, outcome)])
    async with opened() as journal:
        await journal.recover(NOW, ["sms"])
        assert await journal.due(NOW + 7, {"sms": 1}) == Due([entry], None)


async def test_no_steps_are_no_work(opened: Open) -> None:
    async with opened() as journal:
        await journal.change([])
        await journal.accept([], NOW)
        assert await receive(journal, []) == []


async def test_due_messages_come_in_the_order_of_their_times_and_once(opened: Open) -> None:
    async with opened() as journal:
        for id_, due_at in ((1, NOW + 3), (2, NOW + 1), (3, NOW + 2), (4, NOW + 9)):
            await park(journal, id_, due_at)
        due = await journal.due(NOW + 5, {"": 10})
        assert [entry.id for entry in due.entries] == [2, 3, 1]
        assert due.next_due == NOW + 9
        assert await journal.due(NOW + 5, {"": 10}) == Due([], NOW + 9)
        assert await state_counts(journal) == {State.READY: 3, State.WAITING: 1}


async def test_due_messages_come_from_the_lanes_asked_for_as_far_as_there_is_room(opened: Open) -> None:
    async with opened() as journal:
        for id_, lane in ((1, "sms"), (2, "sms"), (3, "email"), (4, None), (5, None)):
            await park(journal, id_, NOW + id_, lane)
        due = await journal.due(NOW + 10, {"sms": 1, "": 2})
        assert [entry.id for entry in due.entries] == [1, 4, 5]
        assert [entry.channel for entry in due.entries] == ["sms", None, None]
        assert due.next_due is None  # of sms more is due already, and of no lane nothing is left
        assert await journal.due(NOW, {"sms": 1, "email": 1}) == Due([], NOW + 2)
        assert await journal.due(NOW + 10, {}) == Due([], None)


async def test_what_waits_is_due_earlier_where_that_is_asked_for_and_never_later(opened: Open) -> None:
    async with opened() as journal:
        await park(journal, 1, NOW + 50)
        await park(journal, 2, NOW + 50)
        await make_ready(journal, 3)
        await journal.hasten({1: NOW + 5, 2: NOW + 90, 3: NOW, 4: NOW})
        due = await journal.due(NOW + 5, {"": 10})
        assert [entry.id for entry in due.entries] == [1]
        assert due.next_due == NOW + 50
        assert await state_counts(journal) == {State.READY: 2, State.WAITING: 1}


# receipts


async def test_a_receipt_is_matched_and_reported_with_channel_and_time(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 1)
        assert await receive(journal, [receipt(at=NOW + 9)]) == ["matched"]
        (row,) = await journal.outbox(0, 10)
        assert json.loads(row.body) == {
            "timestamp": "2023-11-14T22:13:20.000009Z",
            "messageId": 1,
            "status": "delivered",
            "channel": "sms",
            "reportedAt": "2023-11-14T22:13:20.000008Z",
        }


async def test_a_receipt_that_comes_again_is_told_apart_and_reported_once(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 1)
        assert await receive(journal, [receipt(), receipt(at=NOW + 99)]) == ["matched", "repeated"]
        assert await waiting_events(journal) == [(1, "delivered")]
        assert await receive(journal, [receipt("p9"), receipt("p9")]) == ["unmatched", "repeated"]


async def test_a_receipt_before_the_outcome_is_applied_with_the_outcome(opened: Open) -> None:
    """Sent is reported before delivered, and delivered not at an earlier time than sent."""
    async with opened() as journal:
        await make_ready(journal, 1)
        await begin(journal, attempt_on(1))
        assert await receive(journal, [receipt(at=NOW + 1)]) == ["unmatched"]
        assert (await journal.counts()).receipts_unmatched == 1
        await journal.change([accepted(attempt_on(1), "p1")])
        rows = await journal.outbox(0, 10)
        assert [row.status for row in rows] == ["sent", "delivered"]
        times = [json.loads(row.body)["timestamp"] for row in rows]
        assert times == sorted(times)
        assert (await journal.counts()).receipts_unmatched == 0
        assert await receive(journal, [receipt(at=NOW + 2)]) == ["repeated"]


@pytest.mark.parametrize("other", [receipt()._replace(channel="email"), receipt("p2")])
async def test_a_receipt_of_another_channel_or_id_is_not_matched(opened: Open, other: Receipt) -> None:
    async with opened() as journal:
        await send(journal, 1)
        assert await receive(journal, [other]) == ["unmatched"]
        assert await waiting_events(journal) == []


async def test_a_failure_after_acceptance_is_an_error_that_says_so(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 1)
        assert await receive(journal, [receipt(delivered=False)]) == ["matched"]
        (row,) = await journal.outbox(0, 10)
        assert json.loads(row.body)["status"] == "error"
        assert json.loads(row.body)["details"] == "sms: the provider reported UNDELIV"


@pytest.mark.parametrize(
    ("first", "told"), [(True, ["delivered"]), (False, ["error", "delivered"])], ids=["delivered", "failed"]
)
async def test_what_was_delivered_stays_so_and_what_failed_may_be_delivered_after_all(
    opened: Open, first: bool, told: list[str]
) -> None:
    async with opened() as journal:
        await send(journal, 1)
        both = [receipt(delivered=first), receipt(delivered=not first)]
        assert await receive(journal, both) == ["matched", "matched"]
        assert await waiting_events(journal) == [(1, status) for status in told]


async def test_where_a_provider_uses_an_id_again_its_receipt_is_for_the_latest_message(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 1)
        await receive(journal, [receipt()])
        await accept_all(journal)
        await make_ready(journal, 2)
        await journal.change([Transition(attempt_on(2), State.READY, State.SENDING, NOW + SECOND)])
        await journal.change([accepted(attempt_on(2), "p1")])
        await accept_all(journal)
        assert await receive(journal, [receipt()]) == ["matched"]
        assert await waiting_events(journal) == [(2, "delivered")]


# receipts by reference


async def doubt(journal: Journal, id_: int, after: State = State.IN_DOUBT) -> Entry:
    """Bring a message from the queue to an attempt in doubt that is held, or that waits to be repeated."""
    await make_ready(journal, id_)
    await begin(journal, attempt_on(id_))
    entry = attempt_on(id_)._replace(doubt=True)
    due_at = NOW + SECOND if after is State.WAITING else None
    await journal.change([Transition(entry, State.SENDING, after, NOW, due_at, Outcome("in_doubt"))])
    return entry


def echo(reference: str, provider_id: str = "q1", *, delivered: bool = True) -> Receipt:
    return receipt(provider_id, delivered=delivered)._replace(reference=reference)


@pytest.mark.parametrize(
    ("after", "result"), [(State.IN_DOUBT, "settled"), (State.WAITING, "recalled")], ids=["held", "waiting"]
)
@pytest.mark.parametrize("number", ["", "-1"], ids=["message id", "key"])
async def test_a_reference_settles_an_attempt_in_doubt(
    opened: Open, after: State, result: str, number: str
) -> None:
    async with opened() as journal:
        await doubt(journal, 7, after)
        reference = f"{journal.namespace}-7{number}" if number else "7"
        assert await receive(journal, [echo(reference), echo(reference)]) == [result, "repeated"]
        assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]
        assert await state_counts(journal) == {}
        assert not (await journal.due(NOW + 2 * SECOND, {"sms": 9})).entries
        assert await receive(journal, [echo("8", "q2")]) == ["unmatched"]


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
        "ffffffffffff-7-1",
        "7-1",
        "NS-7-2",
        "NS-7-999999999",
        "NS-8-1",
    ],
)
async def test_a_reference_to_something_else_settles_nothing(opened: Open, reference: str) -> None:
    async with opened() as journal:
        await doubt(journal, 7)
        named = reference.replace("NS", journal.namespace)
        other_channel = echo("7")._replace(channel="email")
        assert await receive(journal, [echo(named), other_channel]) == ["unmatched", "unmatched"]
        assert await state_counts(journal) == {State.IN_DOUBT: 1}


async def test_a_reference_settles_an_attempt_though_the_same_report_came_without_one_before(
    opened: Open,
) -> None:
    """What fitted nothing before goes with it, and is not a matter of its own any more."""
    async with opened() as journal:
        await doubt(journal, 7)
        assert await receive(journal, [receipt("q1"), receipt("q1")]) == ["unmatched", "repeated"]
        assert await receive(journal, [echo("7"), echo("7"), receipt("q1")]) == [
            "settled",
            "repeated",
            "repeated",
        ]
        assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]
        assert await journal.counts() == Counts({}, 2, 0, 0, 0)


async def test_a_failure_by_reference_was_sent_first(opened: Open) -> None:
    async with opened() as journal:
        await doubt(journal, 7)
        assert await receive(journal, [echo("7", delivered=False)]) == ["settled"]
        assert await waiting_events(journal) == [(7, "sent"), (7, "error")]


@pytest.mark.parametrize("after", [State.IN_DOUBT, State.WAITING])
async def test_a_reference_that_comes_during_the_attempt_settles_its_doubt_as_it_arises(
    opened: Open, after: State
) -> None:
    async with opened() as journal:
        await make_ready(journal, 7)
        await begin(journal, attempt_on(7))
        assert await receive(journal, [echo("7")]) == ["unmatched"]
        entry = attempt_on(7)._replace(doubt=True)
        due_at = NOW + SECOND if after is State.WAITING else None
        change = Transition(entry, State.SENDING, after, NOW + 5, due_at, Outcome("in_doubt"))
        assert set((await journal.change([change])).settled) == {7}
        assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]


async def test_what_is_about_to_be_repeated_is_not_sent_when_a_receipt_came_meanwhile(opened: Open) -> None:
    """The journal says so instead of committing the intent."""
    async with opened() as journal:
        await doubt(journal, 7, State.WAITING)
        (entry,) = (await journal.due(NOW + SECOND, {"sms": 1})).entries
        assert await receive(journal, [echo("7")]) == ["unmatched"]
        repeat = Transition(entry.begun("sms", b"12345678", NOW), State.READY, State.SENDING, NOW + SECOND)
        assert set((await journal.change([repeat])).settled) == {7}
        assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]


async def test_without_a_provider_id_a_reference_confirms_what_was_sent(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 7, None)
        assert await receive(journal, [echo("7")]) == ["matched"]
        assert await waiting_events(journal) == [(7, "delivered")]


async def test_a_failure_of_an_earlier_attempt_is_none_of_the_one_that_was_accepted(opened: Open) -> None:
    """A reference to the message doesn't say which attempt it is about; the provider's id does."""
    async with opened() as journal:
        await make_ready(journal, 7)
        await begin(journal, attempt_on(7))
        change = Transition(attempt_on(7), State.SENDING, State.WAITING, NOW, NOW, Outcome("try_again"))
        await journal.change([change])
        await journal.due(NOW, {"sms": 1})
        await begin(journal, attempt_on(7, number=2))
        await journal.change([accepted(attempt_on(7, number=2), "p2")])
        await accept_all(journal)
        assert await receive(journal, [echo("7", "p1", delivered=False)]) == ["matched"]
        assert await waiting_events(journal) == []
        assert await receive(journal, [echo("7", "p2", delivered=False)]) == ["matched"]
        assert await waiting_events(journal) == [(7, "error")]


# receipts by key, in every state


async def tried(journal: Journal, state: State) -> None:
    """A message 7 that was tried on sms, and is in some state under the key of this try."""
    await make_ready(journal, 7)
    await begin(journal, attempt_on(7))
    entry, waits = attempt_on(7), NOW + SECOND
    doubtful = entry._replace(doubt=True)
    match state:
        case State.WAITING:
            step = Transition(entry, State.SENDING, state, NOW + 1, waits, Outcome("try_again"))
        case State.IN_DOUBT:
            step = Transition(doubtful, State.SENDING, state, NOW + 1, outcome=Outcome("in_doubt"))
        case State.FAILED:
            error = StatusEvent(7, "error", NOW + 1, details="sms: outcome unknown after 1 tries")
            step = Transition(
                doubtful, State.SENDING, state, NOW + 1, outcome=Outcome("in_doubt"), events=(error,)
            )
        case _:
            step = accepted(entry, "p1")
    await journal.change([step])
    if state is State.DELIVERED:
        await journal.receive([receipt("p1")])
    await accept_all(journal)


async def bodies(journal: Journal) -> list[tuple[str, str | None, str | None]]:
    """What the service will hear: status, channel, details."""
    found = [json.loads(row.body) for row in await journal.outbox(0, 100)]
    return [(body["status"], body.get("channel"), body.get("details")) for body in found]


REPORTED = "sms: the provider reported UNDELIV"


@pytest.mark.parametrize("reference", ["NS-7-1", "7"], ids=["key", "message id"])
@pytest.mark.parametrize(
    ("state", "delivered", "result", "told"),
    [
        (State.WAITING, True, "recalled", [("sent", None, None), ("delivered", "sms", None)]),
        (State.WAITING, False, "recalled", [("sent", None, None), ("error", None, REPORTED)]),
        (State.IN_DOUBT, True, "settled", [("sent", None, None), ("delivered", "sms", None)]),
        (State.IN_DOUBT, False, "settled", [("sent", None, None), ("error", None, REPORTED)]),
        (State.FAILED, True, "settled", [("sent", None, None), ("delivered", "sms", None)]),
        (State.FAILED, False, "matched", []),
        (State.SENT, True, "matched", [("delivered", "sms", None)]),
        (State.DELIVERED, True, "matched", []),
        (State.DELIVERED, False, "matched", []),
    ],
)
async def test_a_receipt_for_the_present_key_settles_what_it_proves_whatever_the_state(  # noqa: PLR0917
    opened: Open,
    state: State,
    delivered: bool,
    result: str,
    told: list[tuple[str, str | None, str | None]],
    reference: str,
) -> None:
    """Nothing is repeated after it, and however often it comes it is told once."""
    async with opened() as journal:
        await tried(journal, state)
        named = echo(reference.replace("NS", journal.namespace), delivered=delivered)
        (received,) = await journal.receive([named])
        assert (received.result, received.effect and received.effect.events) == (result, len(told))
        assert await bodies(journal) == told
        assert await receive(journal, [named]) == ["repeated"]
        assert await bodies(journal) == told
        assert await state_counts(journal) == {}
        assert not (await journal.due(NOW + 2 * SECOND, {"sms": 9})).entries


@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "failed"])
async def test_a_receipt_while_its_retry_is_in_the_hands_of_the_line_takes_the_place_of_its_next_step(
    opened: Open, delivered: bool
) -> None:
    """Also of an end: a message that expires meanwhile isn't told to have failed for that."""
    async with opened() as journal:
        await tried(journal, State.WAITING)
        (entry,) = (await journal.due(NOW + SECOND, {"sms": 9})).entries
        reference = f"{journal.namespace}-7-1"
        assert await receive(journal, [echo(reference, delivered=delivered)]) == ["unmatched"]
        error = StatusEvent(7, "error", NOW + SECOND, details="expired")
        step = Transition(entry, State.READY, State.FAILED, NOW + SECOND, events=(error,))
        settled, effects = await journal.change([step])
        end = State.DELIVERED if delivered else State.FAILED
        assert (set(settled), list(effects)) == ({7}, [Effect(ended=(State.SENT, end), events=2)])
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
    opened: Open, after: State, delivered: bool, told: list[str]
) -> None:
    async with opened() as journal:
        await make_ready(journal, 7)
        await begin(journal, attempt_on(7))
        assert await receive(journal, [echo(f"{journal.namespace}-7-1", delivered=delivered)]) == [
            "unmatched"
        ]
        entry = attempt_on(7)
        if after is State.READY:
            entry = entry.given_up("refused")
        elif after is not State.WAITING:
            entry = entry._replace(doubt=True)
        due_at = NOW + SECOND if after is State.WAITING else None
        events = (StatusEvent(7, "error", NOW + 5, details="why"),) if after is State.FAILED else ()
        outcome = Outcome("in_doubt" if entry.doubt else "refused", None, "why")
        step = Transition(entry, State.SENDING, after, NOW + 5, due_at, outcome, events)
        settled, effects = await journal.change([step])
        assert [status for _, status in await waiting_events(journal)] == told
        assert set(settled) == ({7} if "sent" in told else set())
        assert sum(effect.events for effect in effects) == (len(told) if settled else 0)


async def gone_on(journal: Journal, state: State) -> None:
    """A message 7 that was tried on sms under its first key, and went on to email, to some state there."""
    await make_ready(journal, 7)
    await begin(journal, attempt_on(7))
    left = attempt_on(7).given_up("provider answered 503")
    await journal.change(
        [Transition(left, State.SENDING, State.READY, NOW + 1, outcome=Outcome("try_again"))]
    )
    entry = left.begun("email", b"87654321", NOW + 2)
    if state is State.READY:
        return
    if state is State.WAITING:  # for the room of the lane
        await journal.change([Transition(left.bound("email"), State.READY, state, NOW + 2, NOW + SECOND)])
        return
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW + 2)])
    if state is State.SENT:
        await journal.change([accepted(entry, "e1")])
    elif state is State.IN_DOUBT:
        doubtful = entry._replace(doubt=True)
        await journal.change(
            [
                Transition(
                    doubtful, State.SENDING, state, NOW + 3, outcome=Outcome("in_doubt", None, "cut off")
                )
            ]
        )
    await accept_all(journal)


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
    opened: Open, state: State, delivered: bool, told: list[tuple[str, str | None, str | None]]
) -> None:
    """It isn't sent on the other channel then, if it wasn't yet; where it was, one delivery is told."""
    async with opened() as journal:
        await gone_on(journal, state)
        before = await state_counts(journal)
        await journal.receive([echo(f"{journal.namespace}-7-1", "s1", delivered=delivered)])
        assert await bodies(journal) == told
        assert await state_counts(journal) == ({} if delivered else before)
        await journal.receive([echo(f"{journal.namespace}-7-2", "e1")._replace(channel="email")])
        assert [status for status, *_ in await bodies(journal)].count("delivered") <= 1


async def test_a_delivery_under_an_older_key_keeps_a_message_from_the_next_channel(opened: Open) -> None:
    """Though it is on its way there already: the intent isn't committed."""
    async with opened() as journal:
        await gone_on(journal, State.READY)
        entry = attempt_on(7).given_up("provider answered 503").begun("email", b"87654321", NOW + 2)
        assert await receive(journal, [echo(f"{journal.namespace}-7-1", "s1")]) == ["unmatched"]
        settled, _ = await journal.change([Transition(entry, State.READY, State.SENDING, NOW + 2)])
        assert set(settled) == {7}
        assert await bodies(journal) == [("sent", None, None), ("delivered", "sms", None)]


async def test_what_was_delivered_on_both_channels_is_told_once_with_the_first(opened: Open) -> None:
    async with opened() as journal:
        await gone_on(journal, State.SENT)
        email = echo(f"{journal.namespace}-7-2", "e1")._replace(channel="email")
        await journal.receive([email, echo(f"{journal.namespace}-7-1", "s1")])
        assert await bodies(journal) == [("delivered", "email", None)]


async def test_a_message_that_begins_anew_by_an_operators_word_has_a_new_key_and_forgets_what_it_said(
    opened: Open,
) -> None:
    """A failure under the old key says nothing of it, a delivery ends it."""
    async with opened() as journal:
        await tried(journal, State.IN_DOUBT)
        assert (await decide(journal, Action.RESEND_ANEW, ItemKind.MESSAGE, 7)).effects == (
            Effect(waiting=1),
        )
        reference = f"{journal.namespace}-7-1"
        assert await receive(journal, [echo(reference, "s1", delivered=False)]) == ["matched"]
        (entry,) = (await journal.due(NOW + SECOND, {"": 9})).entries
        assert entry == entry_of(7, key=2)
        await journal.change([Transition(entry, State.READY, State.WAITING, NOW + 2, NOW + SECOND)])
        assert await receive(journal, [echo(reference, "s2")]) == ["recalled"]
        assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]


# operators' orders


async def decide(journal: Journal, verb: Action, kind: ItemKind, *keys: object) -> Decided:
    return await journal.decide(Order(verb, kind, tuple(map(str, keys))), NOW + 9, ["sms"])


async def test_a_resent_message_is_due_at_once_under_its_key(opened: Open) -> None:
    async with opened() as journal:
        entry = await doubt(journal, 7)
        decided = await decide(journal, Action.RESEND, ItemKind.MESSAGE, 7, 8)
        assert decided == Decided(("7",), {"8": "it isn't held in doubt"}, (Effect(waiting=1),))
        assert (await journal.due(NOW + 9, {"sms": 9})).entries == [entry]


async def test_a_settled_message_has_ended_and_its_event_waits(opened: Open) -> None:
    async with opened() as journal:
        await doubt(journal, 7)
        await doubt(journal, 8)
        sent = await decide(journal, Action.SETTLE_SENT, ItemKind.MESSAGE, 7)
        failed = await decide(journal, Action.SETTLE_FAILED, ItemKind.MESSAGE, 8)
        assert [*sent.effects, *failed.effects] == [
            Effect(ended=(State.SENT,), events=1),
            Effect(ended=(State.FAILED,), events=1),
        ]
        assert await waiting_events(journal) == [(7, "sent"), (8, "error")]
        assert await state_counts(journal) == {}


async def test_what_was_reported_after_a_refused_event_is_reported_again_after_it(opened: Open) -> None:
    """What the service hears last is what happened last."""
    async with opened() as journal:
        await hand_over(journal, 7)
        sent = await refuse_sent(journal)
        await receive(journal, [receipt()])
        await accept_all(journal)
        assert (await decide(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).effects == (Effect(events=2),)
        assert await waiting_events(journal) == [(7, "sent"), (7, "delivered")]
        assert (await journal.counts()).events_refused == 0


async def test_what_was_only_reported_again_since_is_not_what_happened_last(opened: Open) -> None:
    """The queue gives a message again whose `sent` was refused: after its retry, `sent` is heard last."""
    async with opened() as journal:
        await hand_over(journal, 7)
        sent = await refuse_sent(journal)
        await journal.take([message(7)], [], NOW)
        assert [row.status for row in await accept_all(journal)] == ["dequeued"]
        assert (await decide(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).effects == (Effect(events=1),)
        assert await waiting_events(journal) == [(7, "sent")]


async def test_what_waits_of_a_message_is_reported_after_its_event_that_is_retried(opened: Open) -> None:
    """Events of others keep their places."""
    async with opened() as journal:
        await hand_over(journal, 7)
        sent = await refuse_sent(journal)
        await receive(journal, [receipt()])
        await journal.take([message(8)], [], NOW)
        under_way = await journal.outbox(0, 1)  # the service hears of `delivered` just now
        assert (await decide(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).effects == (Effect(events=1),)
        assert await waiting_events(journal) == [(8, "dequeued"), (7, "sent"), (7, "delivered")]
        await journal.accept(under_way, NOW)
        assert await waiting_events(journal) == [(8, "dequeued"), (7, "sent"), (7, "delivered")]
        await accept_all(journal)
        assert await journal.counts() == Counts({State.READY: 1}, 0, 0, 0, 0)


async def test_an_event_that_is_refused_again_can_be_retried_again_by_its_new_number(opened: Open) -> None:
    async with opened() as journal:
        await hand_over(journal, 7)
        for _ in range(3):
            sent = await refuse_sent(journal)
            assert (await journal.counts()).events_refused == 1
            assert (await decide(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).done == (str(sent.seq),)
            assert (await decide(journal, Action.RETRY, ItemKind.EVENT, sent.seq)).done == ()
        await accept_all(journal)
        assert await journal.counts() == Counts({}, 0, 0, 0, 0)


async def test_a_set_aside_message_is_taken_again_with_its_dequeued(opened: Open) -> None:
    async with opened() as journal:
        await journal.take([message(7)], [], NOW)
        (row,) = await journal.outbox(0, 9)
        await journal.refuse(row, "400", NOW)
        in_the_way = await decide(journal, Action.RETRY, ItemKind.EVENT, row.seq)
        assert in_the_way.skipped == {
            str(row.seq): "its message is set aside with it: message:7 is what to retry"
        }
        (effect,) = (await decide(journal, Action.RETRY, ItemKind.MESSAGE, 7)).effects
        assert (effect.taken, effect.events) == (entry_of(7, taken_at=NOW), 1)
        await accept_all(journal)
        assert await state_counts(journal) == {State.READY: 1}


async def test_what_is_dropped_is_not_counted_and_no_longer_kept_from_being_forgotten(opened: Open) -> None:
    async with opened() as journal:
        await journal.take([message(7)], [Malformed("[]", "no object", None)], NOW)
        (row,) = await journal.outbox(0, 9)
        await journal.refuse(row, "400", NOW)
        await receive(journal, [receipt("q7")])
        assert await journal.forget(NOW + 1, 9) == 1  # the malformed element, not the event that is set aside
        await journal.take([], [Malformed("[]", "no object", None)], NOW)
        assert await journal.counts() == Counts({}, 0, 1, 1, 1)
        digest = hashlib.sha256(b"[]").hexdigest()
        for kind, key in (
            (ItemKind.MESSAGE, "7"),
            (ItemKind.MALFORMED, digest[:16]),
            (ItemKind.RECEIPT, "1"),
        ):
            assert (await decide(journal, Action.DROP, kind, key)).done == (key,)
            assert (await decide(journal, Action.DROP, kind, key)).done == ()
        assert await journal.counts() == Counts({}, 0, 0, 0, 0)
        assert await journal.forget(NOW + 1, 9) == 2  # the message, and the malformed element


async def test_a_receipt_is_matched_again_when_its_attempt_is_known(opened: Open) -> None:
    async with opened() as journal:
        await receive(journal, [receipt("p1")])
        assert (await decide(journal, Action.RETRY, ItemKind.RECEIPT, 1)).skipped == {
            "1": "it still fits no attempt"
        }
        await send(journal, 7, "p1")
        assert (await decide(journal, Action.RETRY, ItemKind.RECEIPT, 1)).done == ()


async def test_the_account_is_balanced_whatever_happened(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 1)
        await doubt(journal, 2)
        await park(journal, 3, NOW)
        await journal.take([message(4), message(4), message(1)], [Malformed('{"id":5}', "why", 5)], NOW)
        assert await journal.account() == Account(
            5, {State.TAKEN: 1, State.WAITING: 1, State.IN_DOUBT: 1}, {State.SENT: 1, State.FAILED: 1}, 0
        )
        await accept_all(journal)
        assert await journal.forget(NOW + SECOND, 9) == 3
    async with opened() as journal:
        account = await journal.account()
        assert (account.taken, account.ended, account.forgotten, account.gap) == (5, 0, 2, 0)


# start


async def test_a_journal_without_a_past_has_nothing_to_recover(opened: Open) -> None:
    async with opened() as journal:
        recovery = await journal.recover(NOW, ["sms"])
        assert (list(recovery.taken), recovery.doubtful, recovery.waiting, recovery.reporting) == (
            [],
            [],
            0,
            [],
        )
        assert await journal.counts() == Counts({}, 0, 0, 0, 0)


async def test_what_was_in_the_hands_of_the_line_waits_and_is_due_at_once(opened: Open) -> None:
    async with opened() as journal:
        await make_ready(journal, 1, 2)
        await park(journal, 3, NOW + SECOND)
    async with opened() as journal:
        assert (await journal.recover(NOW, ["sms"])).waiting == 3
        assert [entry.id for entry in (await journal.due(NOW, {"": 10})).entries] == [1, 2]


async def test_an_attempt_with_an_intent_and_no_outcome_is_doubtful_under_its_key(opened: Open) -> None:
    async with opened() as journal:
        await make_ready(journal, 1, 2)
        await begin(journal, attempt_on(1, key=3), attempt_on(2))
        held, why = attempt_on(2)._replace(doubt=True), Outcome("in_doubt", None, "cut off")
        await journal.change([Transition(held, State.SENDING, State.IN_DOUBT, NOW, outcome=why)])
    async with opened() as journal:
        assert (await journal.recover(NOW, ["sms"])).doubtful == [
            Doubtful(attempt_on(1, key=3), State.SENDING),
            Doubtful(attempt_on(2)._replace(doubt=True), State.IN_DOUBT, "cut off"),
        ]


async def test_a_message_of_a_channel_that_is_gone_is_free_to_take_another(opened: Open) -> None:
    """Its tries there don't count for the next channel; should its own be back first, the key is the same."""
    async with opened() as journal:
        await make_ready(journal, 1)
        await begin(journal, attempt_on(1, "pager"))
        entry = attempt_on(1, "pager")._replace(tries=1)
        await journal.change(
            [Transition(entry, State.SENDING, State.WAITING, NOW, NOW, Outcome("try_again"))]
        )
    async with opened() as journal:
        assert (await journal.recover(NOW, ["sms"])).waiting == 1
        (found,) = (await journal.due(NOW, {"": 10})).entries
        assert found == entry._replace(channel=None, via="pager", tries=0)
        assert (found.bound("sms").key, found.bound("pager").key) == (2, 1)


async def test_a_message_in_doubt_of_a_channel_that_is_gone_is_held(opened: Open) -> None:
    """Another channel might send it a second time."""
    async with opened() as journal:
        await make_ready(journal, 1)
        await begin(journal, attempt_on(1, "pager"))
        entry = attempt_on(1, "pager")._replace(doubt=True)
        await journal.change([Transition(entry, State.SENDING, State.WAITING, NOW, NOW, Outcome("in_doubt"))])
    async with opened() as journal:
        recovery = await journal.recover(NOW, ["sms"])
        assert recovery.doubtful == [Doubtful(entry, State.IN_DOUBT)]
        assert recovery.waiting == 0


# sums and forgetting


async def test_counts_are_of_what_is_open(opened: Open) -> None:
    async with opened() as journal:
        await send(journal, 1)
        await park(journal, 2, NOW)
        await journal.take([message(3)], [Malformed("1", "no object", None)], NOW)
        await receive(journal, [receipt("p7")])
        assert await journal.counts() == Counts({State.WAITING: 1, State.TAKEN: 1}, 1, 0, 1, 1)


async def test_a_forgotten_message_is_still_known_when_it_comes_again(opened: Open) -> None:
    """It isn't sent again, and reported with the same words, as often as it comes."""
    async with opened() as journal:
        await hand_over(journal, 1)
        (sent,) = await accept_all(journal)
        assert await journal.forget(NOW + SECOND, 10) == 1
        assert await journal.forget(NOW + SECOND, 10) == 0
        for _ in range(3):
            assert not await journal.take([message(1)], [], NOW + SECOND)
            assert not await journal.take([message(1)], [], NOW + SECOND)
            dequeued, again = await accept_all(journal)
            assert (dequeued.status, again.body) == ("dequeued", sent.body)
        assert await receive(journal, [receipt()]) == ["unmatched"]


async def test_a_forgotten_malformed_element_is_still_one_error(opened: Open) -> None:
    bad = Malformed('{"id": 7}', "no settings", 7)
    async with opened() as journal:
        await journal.take([], [bad], NOW)
        told = await accept_all(journal)
        assert [row.status for row in told] == ["dequeued", "error"]
        assert await journal.forget(NOW + 1, 10) == 2
        assert (await journal.counts()).malformed == 0
        await journal.take([], [bad], NOW)
        assert [row.body for row in await journal.outbox(0, 10)] == [row.body for row in told]


async def test_only_what_ended_long_ago_is_forgotten(opened: Open) -> None:
    """The oldest first, as many as asked for; what ended later or not at all stays."""
    async with opened() as journal:
        for id_ in (1, 2, 3):
            await send(journal, id_, f"p{id_}")
        await park(journal, 4, NOW)
        assert await journal.forget(NOW + 5, 10) == 0
        assert await journal.forget(NOW + 6, 2) == 2
        assert await journal.forget(NOW + 6, 2) == 1
        assert await state_counts(journal) == {State.WAITING: 1}


async def test_a_message_with_an_event_that_waits_or_was_refused_is_not_forgotten(opened: Open) -> None:
    async with opened() as journal:
        await make_ready(journal, 1, 2)
        await begin(journal, attempt_on(1), attempt_on(2))
        await journal.change([accepted(attempt_on(id_), f"p{id_}") for id_ in (1, 2)])
        await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
        assert await journal.forget(NOW + SECOND, 10) == 0
        await accept_all(journal)
        assert await journal.forget(NOW + SECOND, 10) == 1


async def test_receipts_that_nothing_ever_matched_are_forgotten_too(opened: Open) -> None:
    """Whoever can report receipts can't fill the disk for good."""
    async with opened() as journal:
        await receive(journal, [receipt(f"q{number}", NOW + number) for number in range(10)])
        await journal.forget(NOW + 5, 3)
        assert (await journal.counts()).receipts_unmatched == 7
        await journal.forget(NOW + 5, 3)
        assert (await journal.counts()).receipts_unmatched == 5


@pytest.mark.slow
async def test_twenty_thousand_messages_at_once(opened: Open) -> None:
    ids = range(1, 20_001)
    entries = [attempt_on(id_) for id_ in ids]
    async with opened() as journal:
        assert len(await journal.take([message(id_, a="x") for id_ in ids], [], NOW)) == 20_000
        await accept_all(journal)
        await begin(journal, *entries)
        await journal.change([accepted(entry, f"p{entry.id}") for entry in entries])
        rows: Sequence[OutboxRow] = await journal.outbox(0, 500)
        assert [row.message_id for row in rows] == list(range(1, 501))
        assert not await journal.take([message(id_) for id_ in ids], [], NOW)
        await accept_all(journal)
        assert await journal.forget(NOW + SECOND, 15_000) == 15_000
        assert await journal.counts() == Counts({}, 0, 0, 0, 0)
