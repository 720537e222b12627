"""Cases of JournalConformance: what budgets and caps count with intents, and what is given back."""

from __future__ import annotations

from deliveryd.journal.base import BudgetUse
from deliveryd.model import BudgetShare, CapShare, Claim, Entry, Outcome, Transition
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import NOW, ONE_SECOND, attempt_on, make_ready, sample_entry, state_counts

HOUR = 3600 * ONE_SECOND
BUSY = Outcome("try_again", None, "busy")


def of_budget(most: int, *, in_parts: bool = False, name: str = "sms") -> BudgetShare:
    return BudgetShare(name, NOW, NOW + HOUR, most, in_parts)


def intent(
    id_: int, *budgets: BudgetShare, parts: int = 1, cap: CapShare | None = None, at: int = NOW
) -> Transition:
    """The intent of a message, which counts for budgets, and for a cap of its customer."""
    caps = () if cap is None else (cap,)
    claim = Claim(sample_entry(id_), parts, budgets, "c" if caps else "", caps, HOUR, at)
    return Transition(attempt_on(id_), State.READY, State.SENDING, NOW, claim=claim)


def not_taken(step: Transition) -> Transition:
    """What follows if the provider doesn't have the message."""
    entry: Entry = step.entry
    return Transition(entry, State.SENDING, State.WAITING, NOW, NOW, BUSY, claim=step.claim)


class CountingCases:
    """What a journal must do: budgets and caps that no intents exceed."""

    async def test_intents_beyond_a_budget_are_not_taken(self, open_journal: OpenJournal) -> None:
        """The first ones are; the counts are there after a restart, and a budget in messages differs."""
        async with open_journal() as journal:
            await make_ready(journal, *range(1, 6))
            share = of_budget(5, in_parts=True)
            found = await journal.change([intent(id_, share, parts=2) for id_ in range(1, 5)])
            assert set(found.counted.refused) == {3, 4}
            assert await state_counts(journal) == {State.SENDING: 2, State.READY: 3}
            again = await journal.change([intent(5, share)])
            assert not again.counted.refused
        async with open_journal() as journal:
            (use,) = await journal.budget_uses(NOW)
            assert use[:5] == ("sms", NOW, NOW + HOUR, 3, 5)
            assert not await journal.budget_uses(NOW + HOUR)

    async def test_one_of_two_budgets_is_enough_to_refuse(self, open_journal: OpenJournal) -> None:
        """The other one doesn't count it either."""
        async with open_journal() as journal:
            await make_ready(journal, 1, 2)
            both = of_budget(9), of_budget(1, name="all")
            found = await journal.change([intent(id_, *both) for id_ in (1, 2)])
            assert set(found.counted.refused) == {2}
            assert {use.budget: use.messages for use in await journal.budget_uses(NOW)} == {
                "sms": 1,
                "all": 1,
            }

    async def test_what_was_not_taken_is_given_back_once(self, open_journal: OpenJournal) -> None:
        """With its outcome; what was accepted isn't."""
        async with open_journal() as journal:
            await make_ready(journal, 1, 2)
            first, second = intent(1, of_budget(1)), intent(2, of_budget(1))
            await journal.change([first])
            assert set((await journal.change([second])).counted.refused) == {2}
            (use,) = (await journal.change([not_taken(first)])).counted.uses
            assert isinstance(use, BudgetUse)
            assert (use.messages, use.parts) == (0, 0)
            assert not (await journal.change([second])).counted.refused

    async def test_a_customer_gets_no_more_than_the_cap(self, open_journal: OpenJournal) -> None:
        """Until the oldest is old enough; what was not taken doesn't count."""
        async with open_journal() as journal:
            await make_ready(journal, *range(1, 6))
            cap = CapShare("settings", frozenset(), 2, HOUR // 2)
            steps = [intent(id_, cap=cap, at=NOW + id_) for id_ in range(1, 4)]
            found = await journal.change(steps)
            assert set(found.counted.refused) == {3}
            assert found.counted.full == {("c", "settings"): NOW + 1 + HOUR // 2}
            await journal.change([not_taken(steps[0])])
            assert not (await journal.change([steps[2]])).counted.refused
        async with open_journal() as journal:
            late = intent(4, cap=cap, at=NOW + 2 + HOUR // 2 - 1)
            await journal.recover(NOW, ["sms"])
            assert set((await journal.change([late])).counted.refused) == {4}

    async def test_a_cap_counts_only_its_settings(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1, 2, 3)
            cap = CapShare("settings", frozenset({20, 30}), 1, HOUR // 2)  # those of messages 2 and 3
            assert not (await journal.change([intent(id_, cap=cap) for id_ in (1, 2)])).counted.refused
            assert set((await journal.change([intent(3, cap=cap)])).counted.refused) == {3}
