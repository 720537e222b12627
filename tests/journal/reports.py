"""Cases of JournalConformance: progress, reports that can't be read, and stopped recipients."""

from __future__ import annotations

import hashlib

import pytest

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.model import (
    Outcome,
    ProgressReport,
    RecipientReport,
    Reported,
    SharedReceipt,
    StopChange,
    Transition,
    UnreadReport,
)
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    NOW,
    accept_all,
    attempt_on,
    begin_attempts,
    decide_on,
    deliver_to_sent,
    echoed_receipt,
    key_of,
    make_ready,
    sample_receipt,
    waiting_events,
)

_ADA, _BEN = b"a" * 16, b"b" * 16


def progress(provider_id: str = "p1", status: str = "accepted", reference: str | None = None) -> Reported:
    return ProgressReport("sms", provider_id, status, NOW + 5, reference)


async def received(journal: Journal, *reports: Reported) -> list[str]:
    return [each.result for each in await journal.receive(reports)]


def stop(digest: bytes, at: int, *, stopped: bool = True, channel: str = "sms") -> StopChange:
    return StopChange(channel, digest, at, stopped, None, "receipt")


def shared(provider_id: str, reference: str | None = None) -> SharedReceipt:
    return SharedReceipt(*sample_receipt(provider_id)[:-1], reference)


class ReportCases:
    """What a journal must do: progress, reports that can't be read, and stopped recipients."""

    @pytest.mark.parametrize("others", [1, 9])
    async def test_of_a_shared_account_only_what_names_a_message_is_kept(
        self, open_journal: OpenJournal, others: int
    ) -> None:
        """One by one and many at once: by the key, also before the outcome, and by an id that is known."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 6, "p6")
            await deliver_to_sent(journal, 7, "p7")
            await make_ready(journal, 8)
            await begin_attempts(journal, attempt_on(8))
            keys = [key_of(journal).replace("-7-", f"-{id_}-") for id_ in (7, 8)]
            await accept_all(journal)
            names: list[tuple[str, str | None]] = [(f"u{number}", None) for number in range(others)]
            names += [("u1", "theirs"), ("u2", "99"), ("u3", "dead00-7-1"), ("", "theirs")]
            foreign: list[Reported] = [shared(*name) for name in names]
            ours: list[Reported] = [shared("p6"), shared("q7", keys[0]), shared("q8", keys[1])]
            results = await received(journal, *foreign, *ours, *foreign)
            none = ["not_ours"] * len(foreign)
            assert results == [*none, "matched", "matched", "unmatched", *none]
            assert (await journal.counts()).receipts_unmatched == 1
            assert await waiting_events(journal) == [(6, "delivered"), (7, "delivered")]

    async def test_a_report_of_a_recipient_tells_whose_message_it_names(
        self, open_journal: OpenJournal
    ) -> None:
        """Nothing else is done with it."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7)
            await accept_all(journal)
            names = [("p1", None), ("", key_of(journal)), ("p2", None), ("", "theirs")]
            reports = [RecipientReport("sms", id_, "", NOW, reference) for id_, reference in names]
            assert await received(journal, *reports) == ["noted", "noted", "not_ours", "not_ours"]
            assert await waiting_events(journal) == []

    @pytest.mark.parametrize("by", ["id", "key", "message"])
    async def test_progress_is_told_once_for_each_status_while_the_message_is_sent(
        self, open_journal: OpenJournal, by: str
    ) -> None:
        """Whatever the provider calls the message by; also after another start."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7)
            given = {
                "id": ("p1", None),
                "key": ("", key_of(journal)),
                "message": ("", "7"),
            }[by]
            one, two = (progress(given[0], status, given[1]) for status in ("sending", "accepted"))
            assert await received(journal, one, one, two) == ["told", "noted", "told"]
        async with open_journal() as journal:
            await journal.recover(NOW, ["sms"])
            assert await received(journal, two) == ["noted"]
            assert await waiting_events(journal) == [(7, "sending"), (7, "accepted")]

    async def test_progress_of_what_is_not_sent_or_has_arrived_is_only_noted(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            assert await received(journal, progress("unknown")) == ["noted"]
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            assert await received(journal, progress("", reference=key_of(journal))) == ["noted"]
            await deliver_to_sent(journal, 8, "p8")
            assert await received(journal, sample_receipt("p8"), progress("p8")) == ["matched", "noted"]
            assert await waiting_events(journal) == [(8, "delivered")]
            assert (await journal.counts()).receipts_unmatched == 0

    async def test_a_report_that_cannot_be_read_is_kept_once_beside_those_that_count(
        self, open_journal: OpenJournal
    ) -> None:
        """It is named by the start of its digest, and can be dropped and erased, not retried."""
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7)
            bad = UnreadReport("sms", '{"x":1}', "there is no status", NOW)
            assert await received(journal, bad, sample_receipt(), bad) == ["unread", "matched", "unread"]
            assert await waiting_events(journal) == [(7, "delivered")]
            key = hashlib.sha256(b'sms {"x":1}').hexdigest()[:16]
            assert (await decide_on(journal, Action.RETRY, ItemKind.REPORT, key)).done == ()
            assert (await decide_on(journal, Action.DROP, ItemKind.REPORT, key)).done == (key,)
            assert (await decide_on(journal, Action.DROP, ItemKind.REPORT, key)).done == ()
            assert await received(journal, bad) == ["unread"]  # it is there again
            assert (await decide_on(journal, Action.DROP, ItemKind.REPORT, key)).done == (key,)
            assert (await decide_on(journal, Action.ERASE, ItemKind.REPORT, key)).done == (key,)
            assert (await decide_on(journal, Action.ERASE, ItemKind.REPORT, key)).done == ()

    async def test_reports_that_cannot_be_read_are_pruned_with_the_rest(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await received(journal, UnreadReport("sms", "{}", "there is no status", NOW))
            assert await journal.prune(NOW, 9) == 0
            assert await journal.prune(NOW + 1, 9) == 1

    async def test_who_stopped_a_channel_is_stopped_until_lifted_on_that_channel_alone(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            found = await journal.receive([], [stop(_ADA, NOW), stop(_BEN, NOW, channel="email")])
            assert [each.result for each in found] == ["matched", "matched"]
            assert [each.effect is not None for each in found] == [True, True]
        async with open_journal() as journal:
            assert sorted(await journal.stopped()) == [("email", _BEN), ("sms", _ADA)]
            lifted = await journal.receive([], [stop(_ADA, NOW + 1, stopped=False)])
            assert [each.result for each in lifted] == ["matched"]
            assert await journal.stopped() == [("email", _BEN)]

    async def test_the_latest_report_about_a_recipient_counts_in_whatever_order_they_come(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await journal.receive([], [stop(_ADA, NOW + 5, stopped=False)])
            late = await journal.receive([], [stop(_ADA, NOW), stop(_ADA, NOW + 9), stop(_ADA, NOW + 9)])
            assert [each.result for each in late] == ["repeated", "matched", "repeated"]
            assert await journal.stopped() == [("sms", _ADA)]

    async def test_reports_about_recipients_come_last_and_are_durable_with_the_others(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 7)
            both = await journal.receive([echoed_receipt("7", "p1")], [stop(_ADA, NOW)])
            assert [each.result for each in both] == ["matched", "matched"]
            assert await waiting_events(journal) == [(7, "delivered")]
            assert await journal.stopped() == [("sms", _ADA)]

    async def test_a_try_that_shows_that_its_recipient_stopped_the_channel_records_it(
        self, open_journal: OpenJournal
    ) -> None:
        """In one transaction with its outcome."""
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            left = attempt_on(7).off_channel("blocked by the user")
            step = Transition(
                left,
                State.SENDING,
                State.READY,
                NOW + 1,
                outcome=Outcome("stopped"),
                stops=(stop(_ADA, NOW + 1),),
            )
            await journal.change([step])
        async with open_journal() as journal:
            assert await journal.stopped() == [("sms", _ADA)]

    async def test_an_operator_stops_and_lifts_recipients_by_digest(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            name = f"sms digest:{_ADA.hex()}"
            assert (await decide_on(journal, Action.STOP, ItemKind.RECIPIENT, name)).done == (name,)
            assert (await decide_on(journal, Action.STOP, ItemKind.RECIPIENT, name)).done == ()
            assert await journal.stopped() == [("sms", _ADA)]
            assert (await decide_on(journal, Action.LIFT, ItemKind.RECIPIENT, name)).done == (name,)
            assert await journal.stopped() == []
            await accept_all(journal)
