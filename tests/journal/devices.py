"""Cases of messages that some of a customer's devices have, and that are repeated for the others."""

from __future__ import annotations

import pytest

from deliveryd import transitions
from deliveryd.journal.base import Orphans
from deliveryd.journal.journal import Journal
from deliveryd.model import Content, Entry, Outcome, Rendered, Transition
from deliveryd.states import State
from journal.protocol import OpenJournal, OpenReader
from journal.samples import NOW, ONE_SECOND, attempt_on, begin_attempts, make_ready

REST = Content(Rendered("sms", "en", {"text": "x"}), {"tokens": '["b","c"]'}, None)
LATER = NOW + 200 * ONE_SECOND
ACCEPTED = "device 1: accepted"


def in_part(entry: Entry, at: int, provider_id: str) -> Transition:
    """A device accepted the message; others are repeated."""
    taken = transitions.accepted(entry, at, provider_id, (), reason=ACCEPTED)
    return transitions.sent_in_part(taken, REST, at + ONE_SECOND)


async def due_again(journal: Journal) -> Entry:
    """The message, which is due."""
    (entry,) = (await journal.due(LATER, {"sms": 10})).entries
    assert (entry.is_sent_in_part, entry.doubt, entry.content) == (True, True, REST)
    return entry


async def accepted_twice(journal: Journal) -> Entry:
    """Bring a message so far that devices accepted it in two tries, and others are left; it is due."""
    await make_ready(journal, 7)
    await begin_attempts(journal, attempt_on(7))
    await journal.change([in_part(attempt_on(7), NOW + 1, "p1")])
    entry = (await due_again(journal)).begun("sms", b"12345678", NOW + 2)
    await journal.change([transitions.intent(entry, NOW + 2, ())])
    await journal.change([in_part(entry, NOW + 3, "p2")])
    return await due_again(journal)


class DeviceCases:
    """One `sent`, whatever comes of the others, and no try is forgotten."""

    async def test_what_is_left_expires(self, open_journal: OpenJournal, open_reader: OpenReader) -> None:
        async with open_journal() as journal:
            entry = await accepted_twice(journal)
            await journal.change([transitions.expired(entry, State.READY, LATER, LATER)])
            self._is_sent(open_reader, ["accepted", "accepted"])
            reason = f"{ACCEPTED}; {transitions.expiry_details(LATER)}"
            assert self._reasons(open_reader) == [ACCEPTED, reason]

    async def test_what_is_left_is_refused(self, open_journal: OpenJournal, open_reader: OpenReader) -> None:
        async with open_journal() as journal:
            entry = (await accepted_twice(journal)).begun("sms", b"12345678", LATER)
            await journal.change([transitions.intent(entry, LATER, ())])
            refused = Outcome("refused", None, "provider answered 400")
            await journal.change([transitions.rest_ends(entry, State.SENDING, LATER, refused)])
            self._is_sent(open_reader, ["accepted", "accepted", "refused"])
            assert self._reasons(open_reader) == [ACCEPTED, ACCEPTED, "provider answered 400"]

    async def test_what_is_left_accepts_it(self, open_journal: OpenJournal, open_reader: OpenReader) -> None:
        async with open_journal() as journal:
            entry = (await accepted_twice(journal)).begun("sms", b"12345678", LATER)
            await journal.change([transitions.intent(entry, LATER, ())])
            await journal.change([transitions.accepted(entry, LATER, "p3", ())])
            self._is_sent(open_reader, ["accepted", "accepted", "accepted"])

    @pytest.mark.parametrize("how", ["held", "removed", "unrepeatable"])
    async def test_what_is_left_and_held_ends_as_sent(
        self, how: str, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        async with open_journal() as journal:
            entry = await accepted_twice(journal)
            step = {
                "held": transitions.not_repeated(entry, State.READY, LATER, transitions.HOLDS),
                "removed": transitions.held_without_provider(entry, State.READY, LATER),
                "unrepeatable": transitions.not_repeated(entry, State.READY, LATER, transitions.CHANGED),
            }[how]
            await journal.change([step])
            self._is_sent(open_reader, ["accepted", "accepted"])

    async def test_a_part_is_in_order_while_it_waits(
        self, open_journal: OpenJournal, open_reader: OpenReader
    ) -> None:
        """Also after a restart; nothing is in doubt for those who look."""
        async with open_journal() as journal:
            await make_ready(journal, 7)
            await begin_attempts(journal, attempt_on(7))
            await journal.change([in_part(attempt_on(7), NOW + 1, "p1")])
            assert open_reader().audit().findings == ()
            [life] = open_reader().lives([7])
            assert life.message is not None
            assert (life.message.sent_in_part, life.message.doubt) == (True, False)
            assert await journal.orphans("sms", 0) == Orphans(waiting=1)
        async with open_journal() as journal:
            entry = await due_again(journal)
            assert entry.stay_tries == 1
            assert open_reader().audit().findings == ()

    def _reasons(self, open_reader: OpenReader) -> list[str | None]:
        (life,) = open_reader().lives([7])
        return [attempt.reason for attempt in life.attempts]

    def _is_sent(self, open_reader: OpenReader, verdicts: list[str]) -> None:
        reader = open_reader()
        assert reader.audit().findings == ()
        (history,) = reader.lives([7])
        assert [attempt.verdict for attempt in history.attempts] == verdicts
        assert history.message is not None
        assert not history.message.sent_in_part
        assert [event.status for event in history.events].count("sent") == 1
        assert [event.status for event in history.events].count("error") == 0
