"""Whose turn it is in the journal, and the share that a priority leaves to those below it."""

from __future__ import annotations

from collections.abc import Sequence

from deliveryd.journal.base import LOWEST_ID, FetchPortion
from deliveryd.model import Entry
from deliveryd.rules.priorities import HIGH, LOW, NO_RULES, NORMAL, PRIORITY_NAMES, Priorities

SHARE = 10
"""One message of so many is of a lower priority, while any such message waits.

So beside each other, high and normal ones are sent 9 to 1, and normal and low ones too.
"""


class FetchTurns:
    """Whose turn it is in the journal, among messages that wait for room at one provider."""

    def __init__(self) -> None:
        self._after = [LOWEST_ID] * len(PRIORITY_NAMES)  # by rank, the id that had the latest turn
        self._shared = 0  # messages that high ones shared with the others
        self._normal = 0  # normal ones that were fetched, less those for which low ones had their share

    def portions(self, most: int, priorities: Priorities) -> Sequence[FetchPortion]:
        """How many of the next `most` messages are fetched of which ids, by rank."""
        if priorities == NO_RULES:
            return [FetchPortion(most, self._after[NORMAL])]
        high, low = priorities
        others = self._below_high(most)
        last = self._below_normal(others)
        return [
            FetchPortion(most - others, self._after[HIGH], only=high),
            FetchPortion(others - last, self._after[NORMAL], without=high | low),
            FetchPortion(last, self._after[LOW], only=low),
        ]

    def _below_high(self, most: int) -> int:
        """How many of the next messages are the share of those that aren't high."""
        before = self._shared
        self._shared = before + most
        return self._shared // SHARE - before // SHARE

    def _below_normal(self, most: int) -> int:
        """How many of these are the share of the low ones.

        Counted by what was fetched: where no high ones wait, normal ones have their part as well.
        """
        last = min((self._normal + most) // SHARE, most)
        self._normal -= (SHARE - 1) * last
        return last

    def took(self, entries: Sequence[Entry], priorities: Priorities) -> None:
        """Note which ids had their turns."""
        if priorities == NO_RULES:
            entries = entries[-1:]
        for entry in entries:
            rank = priorities.rank(entry.settings_id)
            self._after[rank] = entry.settings_id
            self._normal += rank == NORMAL
