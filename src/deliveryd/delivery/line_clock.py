"""The line's clock, and by how much the journal's due times are ahead of it."""

from __future__ import annotations

from collections.abc import Callable

from deliveryd.model import STEP, SteadyClock
from deliveryd.runtime.wakeup import AutoResetEvent


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
        self._put_back = put_back
        self._began = shown.now() - shown.elapsed()  # by the clock that the journal's due times go by
        self._latest = 0

    def now(self) -> int:
        """The present instant."""
        read = self.shown.now()
        if read < self._latest:
            if self._latest - read >= STEP:
                self._put_back.set()
            else:
                read = self._latest + 1
        self._latest = read
        return read

    def ahead(self) -> int:
        """Microseconds by which the journal's due times are ahead since the clock was set; negative: behind.

        Less than `STEP` is passed over.
        """
        ahead = self._began + self.shown.elapsed() - self.shown.now()
        return ahead if abs(ahead) >= STEP else 0

    def in_journal(self) -> int:
        """The present instant by the clock that the journal's due times go by."""
        return self.now() + self.ahead()

    def reading(self) -> Callable[[], tuple[int, int]]:
        """Read the present instant; return what returns it in a commit.

        With it comes by how many microseconds the journal's due times are ahead of those that are counted
        from this instant on: fewer once they were moved.
        """
        now, ahead = self.now(), self.ahead() - self._began
        return lambda: (now, ahead + self._began)

    def follow(self, back: int) -> None:
        """The journal's due times were moved back by so many microseconds."""
        self._began -= back
