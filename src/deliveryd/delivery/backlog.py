"""The backlog: messages that wait in the journal, and the signals that some of them may go on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from deliveryd.model import Transition
from deliveryd.runtime import waits
from deliveryd.runtime.wakeup import AutoResetEvent

TOO_MANY = "too many messages wait in the journal (queue.max_waiting)"
TOO_MANY_PAUSED = "too many messages are paused (queue.max_paused)"
"""Why nothing is taken."""


class Backlog:
    """How many messages wait, when the next one has waited long enough, and which answers arrived.

    Those that are paused are counted apart.
    `max_waiting` and `max_paused` bound how many there may be when more are taken.
    `changed` is set when there is reason to look for messages that may go on.
    """

    def __init__(self, max_waiting: int, max_paused: int | None = None) -> None:
        self.bound(max_waiting, max_paused)
        self.changed = AutoResetEvent()
        self._count = 0
        self._paused = 0
        self._overdue_at: float = math.inf
        self._short_of_room: set[str] = set()
        self._answers: dict[str, float] = {}

    def bound(self, max_waiting: int, max_paused: int | None = None) -> None:
        """Take no more from now on while so many wait, or are paused."""
        self._max_waiting = max_waiting
        self._max_paused = math.inf if max_paused is None else max_paused

    @property
    def obstacle(self) -> str | None:
        """Why no more may be taken; None: it may."""
        if self._count >= self._max_waiting:
            return TOO_MANY
        return TOO_MANY_PAUSED if self._paused >= self._max_paused else None

    @property
    def count(self) -> int:
        """How many messages wait."""
        return self._count

    @property
    def paused(self) -> int:
        """How many messages are paused."""
        return self._paused

    @property
    def overdue_at(self) -> float:
        """When the next message has waited long enough for whatever it waits for."""
        return self._overdue_at

    def change(self, count: int) -> None:
        """Count messages that began to wait (positive) or ended to (negative)."""
        self._count += count

    def change_paused(self, count: int) -> None:
        """Count messages that were paused (positive) or are so no more (negative)."""
        self._paused += count

    def correct(self, count: int | None, paused: int | None) -> None:
        """Set how many messages wait, or are paused, in a journal that others change too; None: unknown."""
        self._count = self._count if count is None else count
        self._paused = self._paused if paused is None else paused

    def add(self, transitions: Iterable[Transition]) -> None:
        """Count messages that wait by these steps, and note what for."""
        for transition in transitions:
            if waits.is_paused(transition.waits_for):
                self._paused += 1
                self.expect_overdue(transition.due_at or 0)
                continue
            self._count += 1
            if transition.waits_for is not None and transition.due_at is not None:
                self.expect_overdue(transition.due_at)
                if transition.entry.provider is not None:
                    self._short_of_room.add(transition.entry.provider)
                elif transition.waits_for == waits.room(waits.ANY):
                    self._short_of_room.add(waits.ANY)

    def expect_overdue(self, at: float) -> None:
        """Look at this instant, if not before, for messages that have waited long enough."""
        self._overdue_at = min(self._overdue_at, at)

    def begin_overdue(self) -> None:
        """Forget the instant: the look begins, and others may begin to wait meanwhile."""
        self._overdue_at = math.inf

    def note_short_of_room(self, providers: Iterable[str]) -> None:
        """Note that messages may wait for room in these providers' dispatchers."""
        self._short_of_room.update(providers)

    def is_short_of_room(self, provider: str) -> bool:
        """Whether messages may wait for room in a provider's dispatcher."""
        return provider in self._short_of_room

    def begin_room(self, provider: str) -> None:
        """Forget a provider: the look begins, and others may begin to wait meanwhile."""
        self._short_of_room.discard(provider)

    def answered(self, waits_for: str, seconds: float = 0.0) -> None:
        """Note that messages that wait for this may go on, after this many seconds."""
        self._answers[waits_for] = seconds
        self.changed.set()

    def answered_before(self, waits_for: Iterable[str], seconds: float) -> None:
        """Note that more messages may wait for what was answered; a newer answer stays."""
        for each in waits_for:
            self._answers.setdefault(each, seconds)
        self.changed.set()

    def take_answers(self) -> Mapping[str, float]:
        """What was noted by `answered` since the last call."""
        answers, self._answers = self._answers, {}
        return answers
