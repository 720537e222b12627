"""Cases of JournalConformance: what commands read of messages and receipts that may need an operator."""

from __future__ import annotations

import pytest

from deliveryd.journal.attention import DEAD_KINDS, DeadLetter, LeftBehind
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.reader import Reader
from deliveryd.model import (
    Confirmation,
    Malformed,
    Outcome,
    QueuedMessage,
    Transition,
    UnreadReport,
    message_key,
)
from deliveryd.states import State
from journal.protocol import OpenJournal, OpenReader
from journal.samples import (
    NOW,
    ONE_SECOND,
    accepted_step,
    attempt_on,
    begin_attempts,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    make_ready,
    refuse_first,
    refuse_sent,
    sample_message,
    sample_receipt,
)

DEAD_SINCE = NOW + ONE_SECOND


async def hold_twice_tried(journal: Journal, id_: int, provider: str, at: int) -> None:
    """Bring a message from the queue to a second try that is held in doubt."""
    await make_ready(journal, id_)
    first, second = attempt_on(id_, provider), attempt_on(id_, provider, number=2)
    await begin_attempts(journal, first)
    again = first._replace(doubt=True)
    unknown = Outcome("in_doubt", f"id-{id_}", "timed out")
    await journal.change([Transition(again, State.SENDING, State.WAITING, at - 1, at, unknown)])
    await journal.due(at, {provider: 9})
    await begin_attempts(journal, second._replace(doubt=True))
    held = second._replace(doubt=True)
    lost = Outcome("in_doubt", None, "connection lost")
    await journal.change([Transition(held, State.SENDING, State.IN_DOUBT, at, outcome=lost)])


async def fill_with_dead_letters(journal: Journal) -> None:
    """Leave one dead letter of each kind, each set aside a second after the one before."""
    await deliver_to_sent(journal, 1)
    await journal.receive([sample_receipt("p1", DEAD_SINCE)])
    (delivered,) = await journal.outbox(0, 9)
    await journal.refuse(delivered, "400: no such status", DEAD_SINCE)
    await journal.take([sample_message(2)], [], NOW)
    await refuse_first(journal, DEAD_SINCE + ONE_SECOND)
    await journal.take([], [Malformed('{"id":"x"}', "id is no number", None)], DEAD_SINCE + 2 * ONE_SECOND)
    await journal.receive([sample_receipt("nowhere", DEAD_SINCE + 3 * ONE_SECOND)])
    report = UnreadReport("sms/b", '{"no":"status"}', "there is no status", DEAD_SINCE + 4 * ONE_SECOND)
    await journal.receive([report, report])


def dead_letters_of(reader: Reader, *kinds: ItemKind, since: int = 0, reason: str = "") -> list[DeadLetter]:
    return list(reader.dead_letters(kinds or DEAD_KINDS, since, reason))


class AttentionCases:
    """What a journal must do: what commands read of messages that may need an operator."""

    async def test_messages_in_doubt_are_read_with_their_keys_and_latest_tries(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """All of them, those of a channel or a provider, and those that are in doubt for long."""
        async with open_journal() as journal:
            await hold_twice_tried(journal, 3, "sms", NOW + 5)
            await hold_twice_tried(journal, 1, "sms/b", NOW + 7)
            await hold_twice_tried(journal, 2, "email", NOW + 9)
            reader = open_reader()
            of_b, _, of_sms = reader.in_doubt(None, None)
            assert of_b.key == message_key(journal.namespace, 1, "sms/b", 1)
            assert of_b[2:] == ("sms/b", 2, NOW + 7, "connection lost", "id-1")
            assert reader.in_doubt("sms", None) == [of_b, of_sms]
            assert reader.in_doubt("sms/b", None) == [of_b]
            assert reader.in_doubt("sm", None) == []
            assert reader.in_doubt(None, NOW + 7) == [of_b, of_sms]
            assert reader.in_doubt("email", NOW + 8) == []
            await decide_on(journal, Action.SETTLE_SENT, ItemKind.MESSAGE, 1, 2)
            assert reader.in_doubt(None, None) == [of_sms]

    async def test_dead_letters_of_each_kind_are_read_oldest_first(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Also of single kinds, since an instant, and by a part of the reason."""
        async with open_journal() as journal:
            await fill_with_dead_letters(journal)
            reader = open_reader()
            found = dead_letters_of(reader)
            assert [each.kind for each in found] == [
                ItemKind.EVENT,
                ItemKind.MESSAGE,
                ItemKind.MALFORMED,
                ItemKind.RECEIPT,
                ItemKind.REPORT,
            ]
            assert [each.at - DEAD_SINCE for each in found] == [number * ONE_SECOND for number in range(5)]
            assert [each.what for each in found] == [
                "delivered",
                "set aside",
                "came 1 time",
                "sms DELIVRD",
                "sms/b, came 2 times",
            ]
            assert [each.message_id for each in found] == [1, 2, None, None, None]
            assert (found[0].reason, found[1].reason) == ("400: no such status", "400")
            assert dead_letters_of(reader, ItemKind.RECEIPT, ItemKind.EVENT) == [found[0], found[3]]
            assert dead_letters_of(reader, since=DEAD_SINCE + 3 * ONE_SECOND) == found[3:]
            assert dead_letters_of(reader, reason="NO S") == [found[0], found[4]]

    async def test_what_is_dropped_is_no_dead_letter_any_more(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await fill_with_dead_letters(journal)
            reader = open_reader()
            for each in dead_letters_of(reader):
                assert (await decide_on(journal, Action.DROP, each.kind, each.key)).skipped == {}
                assert reader.dead_letter(each.kind, each.key) is None
            assert dead_letters_of(reader) == []

    async def test_one_dead_letter_is_read_with_all_that_is_known_of_it(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await fill_with_dead_letters(journal)
            reader = open_reader()
            event, message, malformed, receipt, report = (
                dict(reader.dead_letter(each.kind, each.key) or {}) for each in dead_letters_of(reader)
            )
            assert str(event.pop("body")).startswith("{")
            assert event == {
                "message_id": 1,
                "status": "delivered",
                "refused_at": DEAD_SINCE,
                "reason": "400: no such status",
            }
            assert (message["message_id"], message["settings_id"], message["customer_id"]) == (2, 20, 200)
            assert (message["taken_at"], message["reason"]) == (NOW, "400")
            assert (malformed["raw"], malformed["times"]) == ('{"id":"x"}', 1)
            assert (receipt["channel"], receipt["provider"], receipt["provider_id"]) == (
                "sms",
                "sms",
                "nowhere",
            )
            assert (report["provider"], report["raw"], report["times"]) == ("sms/b", '{"no":"status"}', 2)

    @pytest.mark.parametrize("id_", [2**63 - 1, -(2**63), 10**18])
    async def test_a_message_that_is_set_aside_is_shown_whatever_its_id(
        self, open_journal: OpenJournal, open_reader: OpenReader, id_: int
    ) -> None:
        """An id beyond 64 bits is kept as a negative number of 19 digits."""
        async with open_journal() as journal:
            await journal.take([QueuedMessage(id_, 10, 100, {})], [], NOW)
            await refuse_first(journal, DEAD_SINCE)
            [dead] = dead_letters_of(open_reader())
            shown = open_reader().dead_letter(dead.kind, dead.key)
            assert shown is not None
            assert shown["message_id"] == id_

    async def test_what_is_no_dead_letter_cannot_be_shown_as_one(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Neither what has no such number, nor what is no number."""
        async with open_journal() as journal:
            await fill_with_dead_letters(journal)
            for kind in DEAD_KINDS:
                for key in ("9", "x", "0000000000000000", str(2**63), "9" * 20):
                    assert open_reader().dead_letter(kind, key) is None

    async def test_an_event_that_was_retried_is_no_dead_letter(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1)
            await begin_attempts(journal, attempt_on(1))
            await journal.change([accepted_step(attempt_on(1), "p1")])
            await refuse_sent(journal)
            [refused] = dead_letters_of(open_reader())
            await decide_on(journal, Action.RETRY, refused.kind, refused.key)
            assert dead_letters_of(open_reader()) == []

    async def test_overdue_messages_are_those_that_were_sent_and_not_confirmed(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Of the given providers, before the instant given for each, oldest first."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 2, "p2")
            await deliver_to_sent(journal, 1, "p1")
            await deliver_to_sent(journal, 3, "p3")
            await journal.receive([sample_receipt("p3")])
            later = NOW + ONE_SECOND
            reader = open_reader()
            found = reader.overdue({"sms": later, "email": later})
            assert sorted(each.message_id for each in found) == [1, 2]
            [first] = [each for each in found if each.message_id == 1]
            assert first == (1, "sms", "p1", NOW + 5)
            assert reader.overdue({"sms": NOW + 5}) == []
            assert reader.overdue({"email": later}) == []
            assert reader.overdue({}) == []

    async def test_what_providers_left_that_are_not_configured_is_counted_by_provider(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """What waits for them, what is in doubt, and what has a receipt deadline."""
        async with open_journal() as journal:
            await bring_to_wait(journal, 1, NOW + ONE_SECOND, "email")
            await bring_to_wait(journal, 2, NOW + ONE_SECOND)
            await hold_twice_tried(journal, 3, "sms/b", NOW + 5)
            await make_ready(journal, 4)
            await begin_attempts(journal, attempt_on(4))
            deadline = Confirmation(ONE_SECOND, ONE_SECOND, failed_next=False)
            await journal.change([accepted_step(attempt_on(4), "p4")._replace(confirmation=deadline)])
            reader = open_reader()
            assert reader.left_behind(["sms"]) == [
                LeftBehind("email", waiting=1),
                LeftBehind("sms/b", in_doubt=1),
            ]
            assert reader.left_behind(["sms/b", "email"]) == [LeftBehind("sms", unconfirmed=1)]
            assert reader.left_behind(["sms", "sms/b", "email"]) == []
