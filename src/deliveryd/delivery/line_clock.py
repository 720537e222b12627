"""The line's clock, and by how much the journal's due times are ahead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from deliveryd.model import SECOND, STEP, SteadyClock
from deliveryd.runtime.wakeup import AutoResetEvent

JITTER = SECOND // 1000
"""Microseconds that may lie between readings of two clocks: no due time is changed for so little."""


class _Forward(NamedTuple):
    """By how much the clock was put forward last, and until which instant steps were made before that."""

    until: int
    forward: int


class LineClock:
    """The time of day. `shown` is what a clock shows that may be set.

    Where that is set, due times in the journal are ahead of it (behind, where it is put forward) until they
    are moved: those that are recorded meanwhile are recorded as far ahead, else they would be moved although
    they were right. `put_back` is set when the clock was put back, so that they are moved soon; see `follow`.
    Put back by less than `STEP`, it all but stands still: it goes on by a microsecond with each reading, so
    that no two steps of a message share an instant.
    """

    def __init__(self, shown: SteadyClock, put_back: AutoResetEvent) -> None:
        self.shown = shown
        self._read = shown.now
        self._put_back = put_back
        self._began = shown.now() - shown.elapsed()  # by the clock that the journal's due times go by
        self._latest = 0
        self._followed = _Forward(0, 0)

    def now(self) -> int:
        """The present instant."""
        read = self._read()
        if read < self._latest:
            if self._latest - read >= STEP:
                self._put_back.set()
            else:
                read = self._latest + 1
        self._latest = read
        return read

    def ahead(self) -> int:
        """Microseconds by which the journal's due times are ahead since the clock was set; negative: behind.

        Less than `STEP` isn't followed: that is how clocks are kept right all the time. Then it is 0.
        """
        return ahead if abs(ahead := self._ahead()) >= STEP else 0

    def _ahead(self) -> int:
        return self.in_journal() - self.shown.now()

    def in_journal(self) -> int:
        """The present instant by the clock that the journal's due times go by; can be read in a commit."""
        return self._began + self.shown.elapsed()

    def reading(self) -> Callable[[int], int]:
        """Read how far ahead due times are; return what returns it, in a commit, of a step by its instant.

        A step that was made before the clock was set has a due time by the clock as it was. One that was made
        afterwards is as far ahead as the journal, which is less once its due times were moved.
        """
        now, ahead, began, follow = self.now(), self._ahead(), self._began, self._followed

        def ahead_of(at: int) -> int:
            if abs(ahead) >= JITTER:
                is_older = at >= now + STEP if ahead > 0 else at <= now + ahead
                by_reading = 0 if is_older else ahead
            elif at >= now + STEP:
                by_reading = now - at
            else:
                by_reading = follow.forward if at <= follow.until else 0
            return by_reading + self._began - began

        return ahead_of

    def follow(self, back: int) -> None:
        """The journal's due times were moved back by so many microseconds."""
        self._began -= back
        self._followed = _Forward(self.now() + min(back, 0), max(-back, 0))
