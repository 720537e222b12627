"""Cases of JournalConformance: the audit of a journal, whatever was recorded in it."""

from __future__ import annotations

from deliveryd.journal.orders import Action, ItemKind
from deliveryd.model import Malformed
from deliveryd.states import State
from journal.protocol import OpenJournal, OpenReader
from journal.reading import fail_on
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    accept_all,
    bring_in_doubt,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    make_ready,
    refuse_first,
    sample_message,
    tried,
)


class AuditCases:
    """What a journal must do: an audit that finds it balanced."""

    async def test_an_audit_counts_messages_by_state_and_finds_nothing_broken(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Over messages in every state, and what waits for the service or was refused by it."""
        async with open_journal() as journal:
            await tried(journal, State.DELIVERED)
            await deliver_to_sent(journal, 1)
            await fail_on(journal, 2, "sms", NOW + 5, "no such number")
            await bring_in_doubt(journal, 3)
            await bring_to_wait(journal, 4, NOW + ONE_SECOND)
            await make_ready(journal, 5)
            await journal.take([sample_message(6)], [], NOW)
            await refuse_first(journal, NOW)
            await journal.take([sample_message(8)], [Malformed('{"id":9}', "no settings", 9)], NOW)
            found = open_reader().audit()
            assert found.states == {
                State.TAKEN: 1,
                State.READY: 1,
                State.WAITING: 1,
                State.IN_DOUBT: 1,
                State.SENT: 1,
                State.DELIVERED: 1,
                State.FAILED: 2,
                State.SET_ASIDE: 1,
            }
            assert (found.account.taken, found.gap, found.ids_kept) == (9, 0, 0)
            assert (found.events_waiting, found.events_refused) == (3, 1)
            assert found.lost == (0, None)
            assert found.findings == ()
            assert found.is_balanced
            assert found.checks > 30

    async def test_a_journal_is_balanced_while_messages_go_on_early(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Their `dequeued` still waits behind one that has no answer, where a worker may be killed."""
        async with open_journal() as journal:
            await journal.take([sample_message(1), sample_message(2)], [], NOW)
            ahead, accepted = await journal.outbox(0, 10)
            await journal.accept_early([accepted], NOW)
            found = open_reader().audit()
            assert (found.is_balanced, found.findings) == (True, ())
            await journal.refuse(ahead, "400", NOW)
            assert open_reader().audit().findings == ()
            await journal.accept([accepted], NOW)
            assert open_reader().audit().findings == ()

    async def test_what_was_accepted_early_may_be_settled_in_any_portions(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """As after a kill: it is posted again, in other batches, and each stays accepted."""
        async with open_journal() as journal:
            await journal.take([sample_message(id_) for id_ in range(1, 10)], [], NOW)
            rows = await journal.outbox(0, 10)
            await journal.accept_early([*rows[1:5], *rows[6:8]], NOW)
            await journal.accept_early([rows[3], rows[4], rows[7]], NOW + 1)
            assert open_reader().audit().findings == ()
            for portion in (rows[:3], rows[3:5], rows[5:7], rows[7:]):
                await journal.accept(portion, NOW + 2)
                assert open_reader().audit().findings == ()

    async def test_what_was_accepted_early_is_not_refused_when_it_is_posted_again(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """After a kill a service may answer the repeat with 409: it stays accepted."""
        async with open_journal() as journal:
            await journal.take([sample_message(1), sample_message(2)], [], NOW)
            ahead, accepted = await journal.outbox(0, 10)
            await journal.accept_early([accepted], NOW)
            await journal.accept([ahead], NOW)
            assert await journal.refuse(accepted, "409", NOW) == 0
            found = open_reader().audit()
            assert (found.events_waiting, found.events_refused, found.findings) == (0, 0, ())

    async def test_an_audit_counts_what_was_erased_forgotten_and_pruned(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            for id_ in (1, 2, 3, 4):
                await deliver_to_sent(journal, id_)
            await decide_on(journal, Action.ERASE, ItemKind.MESSAGE, 1)
            await decide_on(journal, Action.FORGET_ANYWAY, ItemKind.MESSAGE, 2)
            assert await journal.prune(DAYS_LATER, 1) >= 1
            found = open_reader().audit()
            assert (found.account.taken, found.ids_kept, found.account.forgotten) == (4, 2, 1)
            assert found.states == {State.SENT: 1}
            assert (found.is_balanced, found.findings) == (True, ())

    async def test_an_audit_counts_batches_that_may_be_lost(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            await journal.take([sample_message(1)], [], NOW, lost=2)
            await journal.take([sample_message(2)], [], NOW + 5, lost=1)
            await accept_all(journal)
            assert open_reader().audit().lost == (3, NOW + 5)
