"""What a provider's configuration says of its attempts."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.options.units import Rate
from deliveryd.runtime.breaker import BreakerPolicy, backoff


class RetryPolicy(NamedTuple):
    """How often a message is tried at a provider, and the seconds between: `base`, doubled, up to `max`."""

    attempts: int
    base: float
    max: float

    def pause(self, tries: int, at_least: float | None = None) -> float:
        """Seconds to wait after so many tries, jittered; never less than the provider asked for."""
        return backoff(self.base, self.max, tries, asked=at_least)


class DispatchPolicy(NamedTuple):
    """The limits of a provider's attempts.

    A repeat in doubt comes at least `lookup_after` seconds after the doubt. `timeout`: the seconds that an
    attempt takes at most.
    """

    concurrency: int
    rate: Rate | None
    retry: RetryPolicy
    breaker: BreakerPolicy
    resend_in_doubt: bool
    lookup_after: float = 0.0
    timeout: float = 10.0
