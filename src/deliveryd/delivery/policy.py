"""What a channel's configuration says of its attempts."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.options.units import Rate
from deliveryd.runtime.breaker import BreakerPolicy, grown


class RetryPolicy(NamedTuple):
    """How often a channel is tried for one message, and the seconds between: `base`, doubled, up to `max`."""

    attempts: int
    base: float
    max: float

    def pause(self, tries: int, at_least: float | None = None) -> float:
        """Seconds to wait after so many tries, jittered; never less than the provider asked for."""
        return grown(self.base, self.max, tries, at_least)


class DispatchPolicy(NamedTuple):
    """The limits of a channel's attempts."""

    concurrency: int
    rate: Rate | None
    retry: RetryPolicy
    breaker: BreakerPolicy
    resend_in_doubt: bool
