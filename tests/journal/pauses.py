"""Cases of JournalConformance: what operators pause, and the messages that wait for its end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deliveryd import transitions
from deliveryd.journal.base import Due
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Decided, Effect, ItemKind, Order
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.model import NEVER, Entry
from deliveryd.states import State
from journal.protocol import OpenJournal
from journal.samples import (
    DAYS_LATER,
    NOW,
    ONE_SECOND,
    attempt_on,
    begin_attempts,
    bring_in_doubt,
    bring_to_wait,
    deliver_to_sent,
    make_ready,
    sample_entry,
    sample_receipt,
    state_counts,
)

SETTINGS = "paused settings 17"


async def give(
    journal: Journal, verb: Action, kind: ItemKind, *keys: object, lasts: float | None = None
) -> Decided:
    """Pause or resume, a second after NOW."""
    order = Order(verb, kind, tuple(map(str, keys)), "ops", "ann", "bad", lasts)
    return await journal.decide(order, NOW + ONE_SECOND, ["sms", "sms/b", "email"])


async def hold(journal: Journal, *entries: Entry, expires_at: int | None = None) -> None:
    """Bring messages from the queue to wait for the end of a pause."""
    await make_ready(journal, *(entry.id for entry in entries))
    await journal.change([transitions.parked(entry, NOW, expires_at, SETTINGS) for entry in entries])


def names(pauses: Sequence[Pause] | None) -> list[str]:
    """What is paused."""
    return [pause.name for pause in pauses or ()]


class PauseCases:
    """What a journal must do: what operators pause."""

    async def test_a_pause_is_kept_with_its_end_and_who_gave_it_and_why(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            decided = await give(journal, Action.PAUSE, ItemKind.SETTINGS, 17, lasts=7200.0)
            pause = Pause(
                PauseKind.SETTINGS, "17", NOW + ONE_SECOND, NOW + 7201 * ONE_SECOND, "ops", "ann", "bad"
            )
            assert (decided.done, decided.skipped, decided.pauses) == (("17",), {}, (pause,))
        async with open_journal() as journal:
            assert list((await journal.recover(NOW, ["sms"])).pauses) == [pause]

    async def test_a_pause_of_settings_forgets_how_many_parts_their_messages_had(
        self, open_journal: OpenJournal
    ) -> None:
        """What is known of others stays, and what is kept again is kept."""
        async with open_journal() as journal:
            await journal.keep_parts({17: "a", 18: "b", -1: "c"})
            await journal.keep_parts({18: "d"})
            assert await journal.kept_parts() == {17: "a", 18: "d", -1: "c"}
            await give(journal, Action.PAUSE, ItemKind.MESSAGE, 18)
            await give(journal, Action.PAUSE, ItemKind.SETTINGS, 17)
        async with open_journal() as journal:
            assert await journal.kept_parts() == {18: "d", -1: "c"}

    async def test_each_kind_is_paused_and_resumed_by_itself(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            kinds = {
                ItemKind.INTAKE: "intake",
                ItemKind.CHANNEL: "sms",
                ItemKind.PROVIDER: "sms",
                ItemKind.SETTINGS: "7",
                ItemKind.MESSAGE: "7",
            }
            for count, (kind, key) in enumerate(kinds.items(), 1):
                decided = await give(journal, Action.PAUSE, kind, key)
                assert (decided.done, len(decided.pauses or ())) == ((key,), count)
            for left, (kind, key) in enumerate(reversed(kinds.items()), 1):
                decided = await give(journal, Action.RESUME, kind, key)
                assert (decided.done, len(decided.pauses or ())) == ((key,), len(kinds) - left)
                again = await give(journal, Action.RESUME, kind, key)
                assert again.skipped == {key: "it isn't paused"}

    async def test_what_is_paused_again_has_the_new_end_and_was_paused_since_the_first_time(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await give(journal, Action.PAUSE, ItemKind.CHANNEL, "sms", lasts=60.0)
            order = Order(Action.PAUSE, ItemKind.CHANNEL, ("sms",), "eve")
            (pause,) = (await journal.decide(order, NOW + 9 * ONE_SECOND, ["sms"])).pauses or ()
            assert pause == Pause(PauseKind.CHANNEL, "sms", NOW + ONE_SECOND, None, "eve")

    @pytest.mark.parametrize(
        ("kind", "key", "why"),
        [
            (ItemKind.CHANNEL, "smss", "no such channel is configured"),
            (ItemKind.PROVIDER, "sms/c", "no such provider is configured"),
            (ItemKind.SETTINGS, "x", "its id is no integer of 64 bits"),
            (ItemKind.MESSAGE, "07", "its id is no integer of 64 bits"),
            (ItemKind.MESSAGE, str(2**63), "its id is no integer of 64 bits"),
            (ItemKind.MESSAGE, "3", "it has ended: it is sent"),
            (ItemKind.INTAKE, "sms", "there is one intake only"),
        ],
    )
    async def test_what_cannot_be_paused_is_left_out_and_says_why(
        self, open_journal: OpenJournal, kind: ItemKind, key: str, why: str
    ) -> None:
        async with open_journal() as journal:
            await deliver_to_sent(journal, 3)
            decided = await give(journal, Action.PAUSE, kind, key)
            assert (decided.done, decided.skipped, decided.pauses) == ((), {key: why}, ())

    async def test_a_pause_ends_at_its_time_and_the_others_stay(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await give(journal, Action.PAUSE, ItemKind.SETTINGS, 1, lasts=10.0)
            await give(journal, Action.PAUSE, ItemKind.SETTINGS, 2, lasts=20.0)
            await give(journal, Action.PAUSE, ItemKind.SETTINGS, 3)
            assert len(await journal.end_pauses(NOW + 11 * ONE_SECOND - 1)) == 3
            assert names(await journal.end_pauses(NOW + 11 * ONE_SECOND)) == ["settings 2", "settings 3"]
            assert names(await journal.end_pauses(NEVER)) == ["settings 3"]

    @pytest.mark.parametrize("back", [0, 86_400 * ONE_SECOND, 5 * ONE_SECOND])
    async def test_a_pause_lasts_no_longer_than_ordered_after_the_clock_was_put_back(
        self, open_journal: OpenJournal, back: int
    ) -> None:
        """Also if nobody noticed by how much."""
        async with open_journal() as journal:
            await give(journal, Action.PAUSE, ItemKind.SETTINGS, 1, lasts=10.0)
            now = NOW + 4 * ONE_SECOND - back
            (pause,) = await journal.retime_pauses(back, lambda: now)
            assert pause.until == now + 7 * ONE_SECOND
            (pause,) = await journal.retime_pauses(0, lambda: now - 3600 * ONE_SECOND)
            assert (pause.since, pause.until) == (now - 3600 * ONE_SECOND, now - 3590 * ONE_SECOND)

    async def test_what_is_paused_is_counted_apart_and_is_not_due(self, open_journal: OpenJournal) -> None:
        """Neither by the clock nor by a recovery, and the clock moves it neither."""
        async with open_journal() as journal:
            await hold(journal, sample_entry(1), sample_entry(2, provider="sms"))
            await bring_to_wait(journal, 3, NOW)
            counts = await journal.counts()
            assert (counts.states, counts.paused) == ({State.WAITING: 3}, {SETTINGS: 2})
            await journal.retime(0, lambda: NOW, 0)
            assert (await journal.largest_cause())[1] == 1
        async with open_journal() as journal:
            left = await journal.recover(NOW, ["sms"])
            assert (left.waiting, left.paused) == (1, {SETTINGS: 2})
            assert await journal.overdue(NEVER - 1, 9) == Due([], NEVER)
            due = await journal.due(NEVER - 1, {"sms": 9, "": 9})
            assert [entry.id for entry in due.entries] == [3]
            assert await journal.release("sms", NOW, 9) == 0

    async def test_what_is_paused_is_overdue_when_it_expired(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await hold(journal, sample_entry(1), sample_entry(2), expires_at=NOW + 5)
            await hold(journal, sample_entry(3))
            assert await journal.overdue(NOW + 5, 9) == Due([], NOW + 6)
            due = await journal.overdue(NOW + 6, 1)
            assert ([entry.id for entry in due.entries], due.paused, due.next_due) == ([1], 1, NOW + 6)
            assert (await journal.counts()).paused == {SETTINGS: 2}

    async def test_what_was_paused_goes_on_in_portions(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            entries = [sample_entry(id_) for id_ in range(1, 6)]
            await hold(journal, *entries)
            assert await journal.wake([SETTINGS], lambda: NOW + 7, 3) == 3
            assert (await journal.counts()).paused == {SETTINGS: 2}
            assert await journal.wake([SETTINGS], lambda: NOW + 7, 3) == 2
            assert (await journal.due(NOW + 7, {"": 9})).entries == entries

    async def test_what_waits_for_a_provider_waits_for_the_end_of_a_pause_instead(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            await make_ready(journal, 1, 2, 3)
            steps = [
                transitions.deferred(sample_entry(id_, provider="sms"), NOW, NOW + 50, waits_for)
                for id_, waits_for in ((1, "room sms"), (2, "provider sms"), (3, "room email"))
            ]
            await journal.change(steps)
            assert await journal.park(SETTINGS, ["room sms", "provider sms"], 1) == 1
            assert await journal.park(SETTINGS, ["room sms", "provider sms"], 9) == 1
            assert (await journal.counts()).paused == {SETTINGS: 2}
            assert (await journal.overdue(NOW + 50, 9)).paused == 2

    async def test_a_receipt_ends_a_message_that_is_paused(self, open_journal: OpenJournal) -> None:
        """It is no message less that waits, but one less that is paused."""
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            entry = attempt_on(7)._replace(doubt=True)
            await journal.change([transitions.repeated(entry, State.SENDING, NOW, NOW, None)])
            await journal.due(NOW, {"sms": 1})
            await journal.change([transitions.parked(entry, NOW, None, SETTINGS)])
            receipt = sample_receipt("p1")._replace(reference="7")
            (matched,) = await journal.receive([receipt])
            assert matched.result == "recalled"
            ended = (State.SENT, State.DELIVERED)
            assert matched.effect == Effect(ended=ended, events=2, paused=-1, provider="sms")
            assert (await journal.counts()).paused == {}

    async def test_what_is_paused_in_doubt_is_held_when_its_provider_was_removed(
        self, open_journal: OpenJournal
    ) -> None:
        async with open_journal() as journal:
            entry = await bring_in_doubt(journal, 1, State.WAITING)
            await journal.due(NOW + ONE_SECOND, {"sms": 1})
            await journal.change([transitions.parked(entry, NOW, None, SETTINGS)])
        async with open_journal() as journal:
            left = await journal.recover(NOW, ["email"])
            assert (left.waiting, left.paused) == (0, {})
            assert await state_counts(journal) == {State.IN_DOUBT: 1}

    async def test_what_is_paused_without_a_doubt_leaves_a_provider_that_was_removed(
        self, open_journal: OpenJournal
    ) -> None:
        """Bound to it, no end of a pause would let it go on; what is bound to none stays paused."""
        async with open_journal() as journal:
            await make_ready(journal, 2)
            await bring_to_wait(journal, 1, NOW, "sms")
            (entry,) = (await journal.due(NOW, {"sms": 1})).entries
            steps = [transitions.parked(each, NOW, None, SETTINGS) for each in (entry, sample_entry(2))]
            await journal.change(steps)
        async with open_journal() as journal:
            left = await journal.recover(NOW, ["email"])
            assert (left.waiting, left.paused) == (1, {SETTINGS: 1})
            assert (await journal.due(NOW, {"": 9})).entries == [sample_entry(1)]

    async def test_a_forgotten_message_leaves_no_pause(self, open_journal: OpenJournal) -> None:
        async with open_journal() as journal:
            await give(journal, Action.PAUSE, ItemKind.MESSAGE, 1, 2)
            await deliver_to_sent(journal, 1)
            assert await journal.prune(DAYS_LATER, 9) == 3  # the message, and both decisions
            assert names(await journal.end_pauses(NOW)) == ["message 2"]
