"""Cases of JournalConformance: what commands read, beside a journal that is open."""

from __future__ import annotations

import json

import pytest

from deliveryd.journal.attention import DEAD_KINDS
from deliveryd.journal.base import OutboxRow
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.reader import DecisionSelection, Reader, read_found
from deliveryd.journal.selection import Selection
from deliveryd.model import Malformed, Outcome, StatusEvent, Transition, number_of
from deliveryd.states import State
from journal.protocol import OpenJournal, OpenReader
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    make_ready,
    sample_message,
    sample_receipt,
    tried,
)


async def fail_on(journal: Journal, id_: int, provider: str, at: int, details: str) -> None:
    """Bring a message from the queue to FAILED, with one attempt at a provider; its events are accepted."""
    await make_ready(journal, id_)
    entry = attempt_on(id_, provider)
    await begin_attempts(journal, entry)
    left = entry.given_up(details)
    outcome = Outcome("refused", None, details)
    await journal.change([Transition(left, State.SENDING, State.READY, at, outcome=outcome)])
    error = StatusEvent(id_, "error", at, details=f"{provider}: {details}")
    await journal.change([Transition(left, State.READY, State.FAILED, at, events=(error,))])
    await accept_all(journal, at)


def _told(row: OutboxRow) -> int:
    """The id that an event tells the service."""
    return int(json.loads(row.body)["messageId"])


def ids_of(reader: Reader, **wanted: object) -> list[int]:
    return [found.id for found in read_found(reader, Selection(**wanted))]  # type: ignore[arg-type]


class ReadingCases:
    """What a journal must do: what commands read, beside a journal that is open."""

    @pytest.mark.parametrize("id_", [2**63, -(2**63) - 1, 10**99])
    async def test_an_id_beyond_64_bits_is_one_error_event_too(
        self, open_journal: OpenJournal, open_reader: OpenReader, id_: int
    ) -> None:
        """Its events name it as the service wrote it, however often it comes, and so does its life."""
        bad = Malformed(f'{{"id": {id_}}}', "id: expected a 64-bit integer", id_)
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [bad, bad], NOW)
            rows = await accept_all(journal)
            assert [(_told(row), row.status) for row in rows] == [
                (1, "dequeued"), (id_, "dequeued"), (id_, "error"),
            ]  # fmt: skip
            [life] = open_reader().lives([number_of(id_)])
            assert (life.told_as, life.malformed[0].times) == (id_, 2)
            found = list(read_found(open_reader(), Selection(states=(State.FAILED,))))
            assert [(each.id, each.told_as) for each in found] == [(number_of(id_), id_)]
            [dead] = open_reader().dead_letters(DEAD_KINDS, 0, "")
            shown = open_reader().dead_letter(dead.kind, dead.key)
            assert shown is not None
            assert [dead.message_id, shown["message_id"]] == [id_, id_]
            await journal.take([], [bad], NOW - ONE_SECOND)
            assert [row.body for row in await accept_all(journal)] == [row.body for row in rows[1:]]

    @pytest.mark.parametrize("id_", [2**63, -(2**63) - 1, 10**99])
    async def test_an_id_beyond_64_bits_is_told_as_it_is_after_pruning_and_erasing(
        self, open_journal: OpenJournal, open_reader: OpenReader, id_: int
    ) -> None:
        """What is left of it has the id as the service wrote it."""
        bad = Malformed(f'{{"id": {id_}}}', "id: expected a 64-bit integer", id_)
        async with open_journal() as journal:
            await journal.take([], [bad], NOW)
            rows = await accept_all(journal)
            assert await journal.prune(DAYS_LATER, 10) == 2
            await journal.take([], [bad], NOW + 1)
            assert [row.body for row in await accept_all(journal)] == [row.body for row in rows]
            await decide_on(journal, Action.ERASE, ItemKind.MESSAGE, number_of(id_))
            [life] = open_reader().lives([number_of(id_)])
            assert life.told_as == id_
            await journal.take([], [bad], NOW + 2)
            assert [(_told(row), row.status) for row in await journal.outbox(0, 9)] == [
                (id_, "dequeued"), (id_, "error"),
            ]  # fmt: skip

    async def test_messages_are_found_by_each_thing_that_is_known_of_them(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Settings, customer, state, channel, provider, reason, time, ids and a range of ids."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await fail_on(journal, 2, "sms", NOW + ONE_SECOND, "provider answered 404")
            await fail_on(journal, 3, "sms/second", NOW + 2 * ONE_SECOND, "unknown Recipient")
            await bring_to_wait(journal, 4, NOW + ONE_SECOND, "email")
            reader = open_reader()
            assert ids_of(reader) == [1, 2, 3, 4]
            assert ids_of(reader, settings=20) == [2]
            assert ids_of(reader, customer=300) == [3]
            assert ids_of(reader, states=(State.SENT, State.FAILED)) == [1, 2, 3]
            assert ids_of(reader, states=(State.WAITING,)) == [4]
            assert ids_of(reader, channel="sms") == [1, 2, 3]
            assert ids_of(reader, channel="sm") == []
            assert ids_of(reader, provider="sms") == [1, 2]
            assert ids_of(reader, provider="sms/second") == [3]
            assert ids_of(reader, reason="RECIPIENT") == [3]
            assert ids_of(reader, since=NOW + ONE_SECOND) == [2, 3]
            assert ids_of(reader, states=(State.FAILED,), until=NOW + ONE_SECOND) == [2]
            assert ids_of(reader, ids=(3, 9, 1)) == [1, 3]
            assert ids_of(reader, first=2, last=3) == [2, 3]
            assert ids_of(reader, first=5) == []

    @pytest.mark.parametrize("count", [1, 5], ids=["one", "many"])
    async def test_a_delivered_message_ended_when_it_was_sent_and_a_failed_one_when_it_failed(
        self, open_journal: OpenJournal, open_reader: OpenReader, count: int
    ) -> None:
        """Whether its report came alone or with others."""
        async with open_journal() as journal:
            for id_ in range(1, 2 * count + 1):
                await deliver_to_sent(journal, id_, f"p{id_}")
            (sent,) = {each.ended_at for each in read_found(open_reader(), Selection())}
            later = NOW + ONE_SECOND
            await journal.receive([sample_receipt(f"p{id_}", later) for id_ in range(1, count + 1)])
            await journal.receive(
                [sample_receipt(f"p{count + i}", later, delivered=False) for i in range(1, count + 1)]
            )
            found = list(read_found(open_reader(), Selection()))
            assert [each.state for each in found] == [State.DELIVERED] * count + [State.FAILED] * count
            assert [each.ended_at for each in found] == [sent] * count + [later] * count
            (again,) = await journal.receive([sample_receipt(f"p{2 * count}", later + 1)])
            assert again.result == "matched"
            assert list(read_found(open_reader(), Selection()))[-1].ended_at == later + 1

    async def test_a_provider_may_be_named_where_a_channel_is(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """As in other commands: those that are bound to it are found like those that failed there."""
        async with open_journal() as journal:
            await bring_to_wait(journal, 1, NOW + ONE_SECOND, "sms/second")
            await fail_on(journal, 2, "sms/second", NOW, "provider answered 404")
            await bring_to_wait(journal, 3, NOW + ONE_SECOND, "sms")
            assert ids_of(open_reader(), channel="sms/second") == [1, 2]

    async def test_what_is_found_says_why_it_failed_and_whether_it_may_have_arrived(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.FAILED)
            await fail_on(journal, 8, "sms", NOW + 5, "no such number")
            doubtful, refused = read_found(open_reader(), Selection())
            assert (doubtful.id, doubtful.may_have_arrived, doubtful.generation) == (7, True, 1)
            assert (refused.reason, refused.may_have_arrived) == ("sms: no such number", False)
            assert (refused.providers, refused.settings_id, refused.customer_id) == (("sms",), 80, 800)
            assert (refused.taken_at, refused.ended_at) == (NOW, NOW + 5)

    async def test_a_malformed_element_is_found_as_a_failure_without_settings(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await journal.take([], [Malformed('{"id":5}', "no settings", 5)], NOW)
            [found] = read_found(open_reader(), Selection(states=(State.FAILED,)))
            assert (found.id, found.settings_id, found.reason) == (5, None, "malformed message: no settings")

    async def test_each_call_examines_no_more_than_it_is_asked_to(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """By ids and by ends; what lies behind is found from where the page ended."""
        async with open_journal() as journal:
            for id_ in range(1, 8):
                await fail_on(journal, id_, "sms", NOW + id_ % 3, "no")
            reader = open_reader()
            for states in ((), (State.FAILED,)):
                selection, seen, after = Selection(states=states, settings=40), [], None
                pages = 0
                while pages == 0 or after is not None:
                    page = reader.find(selection, after, 2)
                    assert page.examined <= 2
                    seen += [found.id for found in page.found]
                    after, pages = page.after, pages + 1
                assert seen == [4]
                assert pages >= 4

    async def test_an_order_is_refused_for_what_a_preview_says_and_for_nothing_else(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """For each verb that has a preview, over messages in every standing."""
        async with open_journal() as journal:
            await tried(journal, State.FAILED)
            await deliver_to_sent(journal, 1)
            await fail_on(journal, 2, "sms", NOW, "no")
            await bring_in_doubt(journal, 3)
            await make_ready(journal, 4)
            ids = (1, 2, 3, 4, 7, 9)
            keys = tuple(map(str, ids))
            for verb in (
                Action.BEGIN_ANEW,
                Action.FORGET,
                Action.BEGIN_ANEW_ANYWAY,
                Action.FORGET_ANYWAY,
            ):
                told = open_reader().obstacles(verb, ids)
                decided = await journal.decide(Order(verb, ItemKind.MESSAGE, keys), NOW + 1, ["sms"])
                assert {int(key): why for key, why in decided.skipped.items()} == dict(told)

    async def test_decisions_are_read_with_who_made_them_and_why(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Also those about a message that is forgotten."""
        async with open_journal() as journal:
            await fail_on(journal, 7, "sms", NOW, "no")
            await bring_in_doubt(journal, 8)
            orders = (
                Order(Action.SETTLE_SENT, ItemKind.MESSAGE, ("8",), "ann", None, None),
                Order(Action.FORGET, ItemKind.MESSAGE, ("7",), "root", "ann", "asked to"),
            )
            for at, order in enumerate(orders, NOW + 1):
                assert (await journal.decide(order, at, ["sms"])).skipped == {}
            reader = open_reader()
            settled, forgotten = reader.decisions(DecisionSelection(), 0, 9)
            assert (settled.verb, settled.message_id, settled.user) == (Action.SETTLE_SENT, 8, "ann")
            assert (forgotten.message_id, forgotten.key, forgotten.caller) == (None, "7", "ann")
            assert (forgotten.at, forgotten.reason) == (NOW + 2, "asked to")
            assert reader.decisions(DecisionSelection(), settled.seq, 9) == [forgotten]
            for wanted in (
                DecisionSelection(message=7),
                DecisionSelection(verb=Action.FORGET),
                DecisionSelection(user="root"),
                DecisionSelection(since=NOW + 2),
            ):
                assert reader.decisions(wanted, 0, 9) == [forgotten]
            assert len(reader.decisions(DecisionSelection(user="ann"), 0, 9)) == 2
            assert reader.decisions(DecisionSelection(until=NOW), 0, 9) == []

    async def test_the_lives_of_several_messages_are_read_at_once(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await fail_on(journal, 2, "sms", NOW, "no")
            failed, sent, unknown = open_reader().lives([2, 1, 9])
            assert [event.status for event in failed.events] == ["dequeued", "error"]
            assert [attempt.verdict for attempt in sent.attempts] == ["accepted"]
            assert not unknown.is_known
