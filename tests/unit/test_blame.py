"""Whose fault a failure is, by what became of first tries."""

from __future__ import annotations

from deliveryd.runtime.blame import SEVERAL, Blame

GOOD, BAD = 1, 2


def test_a_group_is_at_fault_while_others_are_served() -> None:
    """From the first success of another one on, until it is served itself."""
    blame = Blame()
    assert not blame.failed(10, BAD, is_first=True)
    assert not blame.failed(11, BAD, is_first=True)
    blame.served(GOOD, is_first=True)
    assert blame.failed(12, BAD, is_first=True)
    blame.served(BAD, is_first=True)
    assert not blame.failed(13, BAD, is_first=True)


def test_a_message_is_at_fault_if_more_first_tries_succeeded_than_failed_since_it_failed() -> None:
    blame = Blame()
    assert not blame.failed(10, GOOD, is_first=True)
    for _ in range(3):
        blame.served(GOOD, is_first=True)
    assert blame.failed(10, GOOD, is_first=False)
    assert not blame.failed(10, GOOD, is_first=False)  # nothing was served meanwhile


def test_a_peer_that_turns_away_more_than_it_serves_is_at_fault_itself() -> None:
    blame = Blame()
    for message in range(10):
        assert not blame.failed(message, GOOD, is_first=True)
    blame.served(GOOD, is_first=True)
    for message in range(10, 15):
        assert not blame.failed(message, GOOD, is_first=True)
    assert not blame.failed(0, GOOD, is_first=False)


def test_repeats_that_succeed_show_nothing_of_others() -> None:
    """A peer that serves few: which of those that wait is one of them is chance."""
    blame = Blame()
    assert not blame.failed(10, BAD, is_first=True)
    for _ in range(3):
        blame.served(GOOD, is_first=False)
    assert not blame.failed(10, BAD, is_first=False)


def test_several_failed_in_a_row() -> None:
    blame = Blame()
    for message in range(SEVERAL):
        assert not blame.several_failed
        blame.failed(message, GOOD, is_first=True)
    assert blame.several_failed
    blame.served(GOOD, is_first=True)
    assert not blame.several_failed
