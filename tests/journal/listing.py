"""Cases of JournalConformance: what commands read of operators' orders, of ids, and of what messages had."""

from __future__ import annotations

from collections import Counter

import pytest

from deliveryd import transitions
from deliveryd.errors import JournalError
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.pauses import KnownIds
from deliveryd.journal.reader import NamesSeen
from deliveryd.journal.sql.stopped import digest_of_address
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import Malformed, StopChange, UnreadReport
from deliveryd.states import State
from journal.protocol import OpenJournal, OpenReader
from journal.samples import (
    DAYS_LATER,
    NOW,
    accept_all,
    bring_in_doubt,
    decide_on,
    deliver_to_sent,
    echoed_receipt,
    key_of,
    make_ready,
    sample_entry,
    sample_message,
    sample_receipt,
    tried,
)

_ADA, _BEN = b"a" * 16, b"b" * 16
_HUNDRED_DAYS = 100 * 86_400 * 1_000_000


class ListingCases:
    """What a journal must do: what commands read of orders, of ids, and of what messages had."""

    async def test_a_journal_that_no_worker_opened_is_absent(self, open_reader: OpenReader) -> None:
        """A command can tell that from a journal that can't be read."""
        reader = open_reader()
        for read in (
            reader.pauses,
            reader.stop_list,
            reader.audit,
            lambda: reader.lives([1]),
            lambda: reader.in_doubt(None, None),
            lambda: reader.personal_data(1),
        ):
            with pytest.raises(JournalAbsent, match="there is no journal") as absent:
                read()
            assert isinstance(absent.value, JournalError)
            assert "\n" not in str(absent.value)

    async def test_pauses_are_read_with_who_gave_them_and_how_many_messages_wait(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            reader = open_reader()
            assert list(reader.pauses()) == []
            order = Order(Action.PAUSE, ItemKind.SETTINGS, ("10",), "ops", "ann", "wrong price", 60.0)
            await journal.decide(order, NOW, ["sms"])
            await journal.decide(Order(Action.PAUSE, ItemKind.INTAKE, ("intake",)), NOW + 1, ["sms"])
            await make_ready(journal, 1, 2)
            entries = [sample_entry(1), sample_entry(2)]
            await journal.change(
                [transitions.parked(each, NOW + 2, None, "paused settings 10") for each in entries]
            )
            settings, intake = reader.pauses()
            assert (settings.pause.name, settings.messages) == ("settings 10", 2)
            assert (settings.pause.since, settings.pause.until) == (NOW, NOW + 60_000_000)
            assert (settings.pause.user, settings.pause.caller) == ("ops", "ann")
            assert settings.pause.reason == "wrong price"
            assert (intake.pause.name, intake.messages) == ("intake", 0)
            [life] = reader.lives([1])
            assert life.message is not None
            assert life.message.pause == settings.pause

    async def test_ids_are_known_once_the_queue_gave_them(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Of messages, and of settings; not those of messages that are forgotten."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await journal.take([sample_message(2)], [], NOW)
            reader = open_reader()
            known = reader.known([1, 2, 3], [10, 20, 30])
            assert known == KnownIds(frozenset({1, 2}), frozenset({10, 20}))
            assert reader.known([], []) == KnownIds(frozenset(), frozenset())
            await decide_on(journal, Action.FORGET_ANYWAY, ItemKind.MESSAGE, 1)
            assert reader.known([1, 2], [10]) == KnownIds(frozenset({2}), frozenset())

    async def test_stopped_recipients_are_read_with_since_when_and_why(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Of all channels or one, oldest first; who was lifted isn't among them."""
        async with open_journal() as journal:
            stops = [
                StopChange("sms", _BEN, NOW + 1, reason="said STOP", source="receipt"),
                StopChange("email", _ADA, NOW, reason=None, source="receipt"),
                StopChange("sms", _ADA, NOW + 2, source="receipt"),
            ]
            await journal.receive([], stops)
            reader = open_reader()
            assert reader.stopped(None) == [
                ("email", _ADA, NOW, None, "receipt"),
                ("sms", _BEN, NOW + 1, "said STOP", "receipt"),
                ("sms", _ADA, NOW + 2, None, "receipt"),
            ]
            assert [each.digest for each in reader.stopped("sms")] == [_BEN, _ADA]
            await journal.receive([], [stops[2]._replace(at=NOW + 3, stopped=False)])
            assert [each.digest for each in reader.stopped("sms")] == [_BEN]
            assert sorted(reader.stop_list().digests) == [("email", _ADA), ("sms", _BEN)]

    async def test_the_key_of_the_stop_list_is_that_of_the_journal(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """What a command computes of an address is what an order put on the list."""
        async with open_journal() as journal:
            await decide_on(journal, Action.STOP, ItemKind.RECIPIENT, "sms +15550100")
            listed = open_reader().stop_list()
            assert listed.digests == [("sms", digest_of_address(listed.key, "sms", "+1 555 0100"))]

    async def test_the_names_of_variables_are_read_by_settings(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Those that all messages had and those that any had, as long as the variables are kept."""
        async with open_journal() as journal:
            messages = [
                sample_message(1, city="Ulm", name="Ann"),
                sample_message(2, city="Bonn")._replace(settings_id=10),
                sample_message(3, code="7"),
            ]
            await journal.take(messages, [], NOW)
            reader = open_reader()
            assert reader.names_seen([10, 99]) == {
                10: NamesSeen(2, frozenset({"city"}), frozenset({"city", "name"}))
            }
            assert reader.names_seen([30, 10])[30] == NamesSeen(1, frozenset({"code"}), frozenset({"code"}))
            await deliver_to_sent(journal, 4)
            assert reader.names_seen([40]) == {}

    async def test_all_that_the_journal_has_of_a_customer_is_found(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Messages, malformed elements in any notation, unmatched receipts, and unreadable reports."""
        async with open_journal() as journal:
            await tried(journal, State.SENT)
            await journal.take([sample_message(8), sample_message(9)._replace(customer_id=700)], [], NOW)
            elements = [
                Malformed('{"id":5,"customerId":700.0}', "no settings", 5),
                Malformed('{"customerId": "7e2"}', "no id", None),
                Malformed('{"customerId": 7001}', "no id", None),
            ]
            await journal.take([], elements, NOW)
            await accept_all(journal)
            await journal.receive([echoed_receipt("9", "q9"), echoed_receipt("8", "q8"), sample_receipt("x")])
            reports = [f'{{"of":"{key_of(journal)}"}}', '{"id":"p1"}', '{"id":"p10","of":"8"}']
            await journal.receive([UnreadReport("sms", raw, "no status", NOW) for raw in reports])
            found = open_reader().personal_data(700)
            assert (sorted(found.messages), len(found.malformed)) == ([5, 7, 9], 2)
            assert (len(found.receipts), len(found.reports)) == (1, 2)
            assert open_reader().personal_data(12345) == ([], [], [], [])

    async def test_what_was_found_of_a_customer_is_gone_when_it_is_erased(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.SENT)
            await journal.take([], [Malformed('{"customerId":700}', "no id", None)], NOW)
            await journal.receive([UnreadReport("sms", '{"id":"p1"}', "no status", NOW)])
            reader = open_reader()
            found = reader.personal_data(700)
            assert reader.obstacles(Action.ERASE, found.messages) == {}
            await decide_on(journal, Action.ERASE, ItemKind.MALFORMED, *found.malformed)
            await decide_on(journal, Action.ERASE, ItemKind.REPORT, *found.reports)
            await decide_on(journal, Action.ERASE, ItemKind.MESSAGE, *found.messages)
            assert reader.personal_data(700) == ([], [], [], [])

    async def test_a_key_that_more_than_one_element_has_erases_none(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """The beginning of a digest is enough, unless another one begins so too."""
        async with open_journal() as journal:
            elements = [Malformed(f'{{"customerId":700,"n":{n}}}', "no id", None) for n in range(17)]
            await journal.take([], elements, NOW)
            found = open_reader().personal_data(700).malformed
            (first, _), *_ = Counter(key[0] for key in found).most_common(1)
            decided = await decide_on(journal, Action.ERASE, ItemKind.MALFORMED, first)
            assert decided.skipped == {first: "more than one has such a key"}
            assert open_reader().personal_data(700).malformed == found

    async def test_erasure_is_refused_for_what_a_preview_says_and_for_nothing_else(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await tried(journal, State.FAILED)
            await bring_in_doubt(journal, 3)
            await make_ready(journal, 4)
            await journal.take([sample_message(5)], [], NOW)
            ids = (3, 4, 5, 7, 9)
            told = open_reader().obstacles(Action.ERASE, ids)
            decided = await decide_on(journal, Action.ERASE, ItemKind.MESSAGE, *ids)
            assert decided.done == ("7",)
            assert {int(key): why for key, why in decided.skipped.items()} == dict(told)

    async def test_what_is_pruned_is_not_read_any_more(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Of its history the last event is left; the customer's data isn't found, and the id isn't known."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 1)
            await deliver_to_sent(journal, 2)
            assert await journal.prune(DAYS_LATER + _HUNDRED_DAYS, 1) >= 1
            reader = open_reader()
            gone, kept = reader.lives([1, 2])
            assert (gone.message, gone.tombstone is not None) == (None, True)
            assert kept.message is not None
            assert reader.known([1, 2], [10, 20]) == KnownIds(frozenset({2}), frozenset({20}))
            assert reader.overdue({"sms": DAYS_LATER})[0].message_id == 2
            assert reader.personal_data(100).messages == []
            assert reader.personal_data(200).messages == [2]
            assert (reader.audit().ids_kept, reader.audit().is_balanced) == (1, True)
