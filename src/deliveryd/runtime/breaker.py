"""Growing pauses, and a circuit breaker.

After enough consecutive failures it allows only single probes, after growing pauses.

closed ── `failures` in a row ──► open ── the pause is over ──► half-open: one probe is under way
   ▲                               ▲                                        │
   │                               └─────────────── it failed ──────────────┤
   └─────────────────────── the provider answered ──────────────────────────┘
"""

from __future__ import annotations

import random
from typing import NamedTuple

import anyio

from deliveryd.runtime.waits import LONGEST_ANSWER_WAIT

_MOST_DOUBLINGS = 40  # 2.0 ** 1024 overflows


def backoff(
    first: float, longest: float, number: int, *, least: float = 0.5, asked: float | None = None
) -> float:
    """Return the seconds to pause after failure `number` in a row: `first`, then doubled, up to `longest`.

    Jitter shortens the pause to between the fraction `least` and all of it. A peer that asked for a longer
    pause (Retry-After) gets the `asked` seconds, capped at `LONGEST_ANSWER_WAIT`.
    """
    pause = min(first * 2.0 ** min(number - 1, _MOST_DOUBLINGS), longest) * random.uniform(least, 1.0)
    return max(pause, min(asked or 0.0, LONGEST_ANSWER_WAIT))


class BreakerPolicy(NamedTuple):
    """How many failures in a row open a breaker (0: never), and the pauses between probes, in seconds.

    Jitter leaves at least the fraction `least` of each pause.
    """

    failures: int
    pause: float
    max_pause: float
    least: float = 0.5


class Breaker:
    """Decides whether attempts may begin. While open, it allows one probe at a time, each after a pause.

    If the peer fails again soon after the breaker closed, the pauses continue to grow from the last one.
    """

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._opened_at: float | None = None
        self._next_probe = 0.0
        self._probing = False
        self._pauses = 0
        self._closed_at = 0.0
        self.failures = 0
        """Consecutive failures."""
        self.pause = 0.0
        """The latest pause in seconds."""

    def follow(self, policy: BreakerPolicy) -> None:
        """Open and pause by another policy from now on; the present state and pause stay."""
        self._policy = policy

    @property
    def opens(self) -> bool:
        """Whether it opens after failures at all."""
        return self._policy.failures > 0

    @property
    def is_open(self) -> bool:
        """Whether only probes are allowed."""
        return self._opened_at is not None

    @property
    def is_probing(self) -> bool:
        """Whether a probe is under way."""
        return self._probing

    @property
    def seconds_open(self) -> float:
        """For how many seconds it has been open; 0: it is closed."""
        return 0.0 if self._opened_at is None else anyio.current_time() - self._opened_at

    def allowed(self, wanted: int) -> int:
        """Return how many of `wanted` attempts may begin now."""
        return wanted if self._opened_at is None else min(wanted, 1 if self.wait() <= 0 else 0)

    def wait(self) -> float:
        """Return the seconds until an attempt may begin."""
        return 0.0 if self._opened_at is None else self._next_probe - anyio.current_time()

    def probe(self) -> None:
        """Begin a probe. If it has no outcome, the next may begin after `max_pause`."""
        self._probing = True
        self._next_probe = anyio.current_time() + self._policy.max_pause

    def withdraw(self) -> None:
        """Cancel the probe, which made no attempt: another may begin at once."""
        if self._probing:
            self._probing = False
            self._next_probe = anyio.current_time()

    def put_off(self, seconds: float | None = None) -> None:
        """Record an inconclusive probe: another may begin after this many seconds.

        None: after the same pause as before.
        """
        if self._probing:
            self._probing = False
            self._next_probe = anyio.current_time() + (self.pause if seconds is None else seconds)

    def hasten(self) -> None:
        """Allow the next probe at once, since there are signs of recovery."""
        self._next_probe = anyio.current_time()

    def open(self) -> float:
        """Open the breaker regardless of the number of failures; return the pause."""
        self.failures = max(self.failures, 1)
        if self._opened_at is None:
            self._open(anyio.current_time())
        return self._pause(None)

    def answered(self) -> float:
        """Record an answer, which closes the breaker; return how many seconds it was open."""
        self.failures = 0
        if self._opened_at is None:
            return 0.0
        self._closed_at = anyio.current_time()
        opened_at, self._opened_at, self._probing = self._opened_at, None, False
        return self._closed_at - opened_at

    def failed(self, after: float | None = None) -> float | None:
        """Record a failure of a peer that asks for a pause of `after` seconds.

        Returns the new pause if one begins: the failure opened the breaker, or was a probe's. Failures of
        attempts from before the opening can only extend the current pause.
        """
        self.failures += 1
        now = anyio.current_time()
        if self._opened_at is None:
            if not self._policy.failures or self.failures < self._policy.failures:
                return None
            self._open(now)
        elif not self._probing:
            self._next_probe = max(self._next_probe, now + min(after or 0.0, LONGEST_ANSWER_WAIT))
            return None
        return self._pause(after)

    def _open(self, now: float) -> None:
        self._opened_at = now
        if now - self._closed_at > self.pause:
            self._pauses = 0

    def _pause(self, after: float | None) -> float:
        """Begin the next pause and return it."""
        self._probing = False
        self._pauses += 1
        policy = self._policy
        self.pause = backoff(policy.pause, policy.max_pause, self._pauses, least=policy.least, asked=after)
        self._next_probe = anyio.current_time() + self.pause
        return self.pause
