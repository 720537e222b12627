"""The line's clock, and by how much the journal's due times are ahead of it."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.model import STEP, Clock
from deliveryd.runtime.wakeup import AutoResetEvent


class LineTime(NamedTuple):
    """The present instant, and the microseconds by which the journal's due times are ahead of it."""

    now: int
    ahead: int


class LineClock:
    """The time of day. `shown` is what a clock shows that may be set.

    Where that is put back, due times in the journal are ahead of it until they are moved: those that are
    recorded meanwhile are recorded ahead as well (`LineTime.ahead`), else they would be moved although they
    were right. `put_back` is set when that is noticed, so that they are moved soon; see `follow`.
    Put back by less than `STEP`, it all but stands still: it goes on by a microsecond with each reading, so
    that no two steps of a message share an instant.
    """

    def __init__(self, shown: Clock, put_back: AutoResetEvent) -> None:
        self.shown = shown
        self._put_back = put_back
        self._ahead = 0
        self._latest = 0  # the latest reading, as far ahead

    def now(self) -> int:
        """The present instant."""
        shown = self.shown.now()
        latest, ahead = self._latest, self._ahead
        read = shown + ahead
        if latest - read >= STEP:
            self._ahead = ahead = latest - shown
            self._put_back.set()
            read = latest
        elif read < latest:
            read = latest + 1
        self._latest = read
        return read - ahead

    def in_journal(self) -> int:
        """The present instant, as far ahead as the journal's due times: for pauses that are recorded now."""
        return self.now() + self._ahead

    def ahead(self) -> int:
        """Microseconds by which the journal's due times are ahead, since the clock was put back."""
        self.now()
        return self._ahead

    def peek(self) -> LineTime:
        """Both for another thread than the event loop's: nothing is noted."""
        shown, latest, ahead = self.shown.now(), self._latest, self._ahead
        return LineTime(shown, latest - shown if latest - shown - ahead >= STEP else ahead)

    def follow(self, back: int) -> None:
        """The journal's due times were moved back by so many microseconds, which `ahead` returned."""
        self._ahead -= back
        self._latest -= back
