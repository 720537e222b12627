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
        self._shared = [0] * LOW  # by rank, how many messages it shared with the ranks below

    def portions(self, most: int, priorities: Priorities) -> Sequence[FetchPortion]:
        """How many of the next `most` messages are fetched of which ids, by rank."""
        if priorities == NO_RULES:
            return [FetchPortion(most, self._after[NORMAL])]
        high, low = priorities
        normal = self._below(HIGH, most)
        last = self._below(NORMAL, normal)
        return [
            FetchPortion(most - normal, self._after[HIGH], only=high),
            FetchPortion(normal - last, self._after[NORMAL], without=high | low),
            FetchPortion(last, self._after[LOW], only=low),
        ]

    def _below(self, rank: int, most: int) -> int:
        """How many of the next messages of a rank and those below it are the share of those below."""
        before = self._shared[rank]
        self._shared[rank] = before + most
        return self._shared[rank] // SHARE - before // SHARE

    def took(self, entries: Sequence[Entry], priorities: Priorities) -> None:
        """Note which ids had their turns."""
        if priorities == NO_RULES:
            entries = entries[-1:]
        for entry in entries:
            self._after[priorities.rank(entry.settings_id)] = entry.settings_id
