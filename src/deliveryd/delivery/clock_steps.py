"""Steps of the computer's clock: it was corrected, or the machine was suspended."""

from __future__ import annotations

import anyio

from deliveryd.model import STEP, Clock


class StepWatch:
    """Compares the wall clock with the monotonic one, which can't be set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = self._measure()

    def stepped(self) -> int:
        """Microseconds by which the wall clock was put forward since the last look; negative: put back.

        Less than `STEP` is passed over: that is how clocks are kept right all the time. Then it is 0.
        """
        ahead = self._measure()
        step, self._ahead = ahead - self._ahead, ahead
        return step if abs(step) >= STEP else 0

    def _measure(self) -> int:
        return self._clock.now() - int(anyio.current_time() * 1_000_000)
