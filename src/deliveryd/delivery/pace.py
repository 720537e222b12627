"""The pace of a provider's attempts (`rate`)."""

from __future__ import annotations

import anyio

from deliveryd.options.units import Rate


class Pace:
    """Spaces attempts out evenly: no second has more than the rate and a twentieth."""

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.per / rate.permits
        self._burst = max(1.0, 0.05 / self._interval)
        self._next = 0.0

    def allowed(self, wanted: int) -> int:
        """How many attempts may be made now, `wanted` at most."""
        now = anyio.current_time()
        self._next = max(self._next, now - self._burst * self._interval)
        return min(wanted, int((now - self._next) / self._interval + 1e-9))

    def spend(self, number: int) -> None:
        """Count attempts that are made."""
        self._next += number * self._interval

    def wait(self) -> float:
        """Seconds until another attempt may be made."""
        return max(self._next + self._interval - anyio.current_time(), 0.0)
