"""A channel's breaker: a provider that has failed often enough in a row is left alone, for pauses that grow.

closed ── `failures` in a row ──► open ── the pause is over ──► half-open: one probe is under way
   ▲                               ▲                                        │
   │                               └─────────────── it failed ──────────────┤
   └─────────────────────── the provider answered ──────────────────────────┘
"""

from __future__ import annotations

from typing import NamedTuple

import anyio

from deliveryd.runtime.backoff import backoff
from deliveryd.runtime.waits import LONGEST_ANSWER_WAIT


class BreakerPolicy(NamedTuple):
    """How many failures in a row open a breaker (0: never), and the pauses between probes, in seconds.

    Jitter leaves at least the fraction `least` of each pause.
    """

    failures: int
    pause: float
    max_pause: float
    least: float = 0.5


class Breaker:
    """Whether attempts may begin. While it is open, they may one at a time, each after a pause.

    A provider that fails again soon after it answered goes on where it was, with ever longer pauses.
    """

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._opened_at: float | None = None
        self._next_probe = 0.0
        self._probing = False
        self._pauses = 0
        self._closed_at = 0.0
        self.failures = 0
        """How many there were in a row."""
        self.pause = 0.0
        """Seconds of the latest pause."""

    @property
    def is_open(self) -> bool:
        """Whether the provider is left alone, but for probes."""
        return self._opened_at is not None

    @property
    def is_probing(self) -> bool:
        """Whether a probe is under way."""
        return self._probing

    def allowed(self, wanted: int) -> int:
        """How many attempts may begin now, `wanted` at most."""
        return wanted if self._opened_at is None else min(wanted, 1 if self.wait() <= 0 else 0)

    def wait(self) -> float:
        """Seconds until an attempt may begin."""
        return 0.0 if self._opened_at is None else self._next_probe - anyio.current_time()

    def probe(self) -> None:
        """The attempt begins that was allowed; the next one may when nothing is heard of it for long."""
        self._probing = True
        self._next_probe = anyio.current_time() + self._policy.max_pause

    def withdraw(self) -> None:
        """The probe was no attempt after all: another one may begin."""
        if self._probing:
            self._probing = False
            self._next_probe = anyio.current_time()

    def put_off(self) -> None:
        """The probe said nothing of the provider: another one may follow after as long a pause as before."""
        if self._probing:
            self._probing = False
            self._next_probe = anyio.current_time() + self.pause

    def hasten(self) -> None:
        """There is reason to think that the provider works again: the next probe may begin at once."""
        self._next_probe = anyio.current_time()

    def open(self) -> float:
        """Leave the provider alone from now on, however few failures there were; return the pause."""
        self.failures = max(self.failures, 1)
        if self._opened_at is None:
            self._open(anyio.current_time())
        return self._pause(None)

    def answered(self) -> float:
        """The provider answered, so the breaker is closed; return for how many seconds it was open."""
        self.failures = 0
        if self._opened_at is None:
            return 0.0
        self._closed_at = anyio.current_time()
        opened_at, self._opened_at, self._probing = self._opened_at, None, False
        return self._closed_at - opened_at

    def failed(self, after: float | None = None) -> float | None:
        """The provider failed, and asks to be left alone for `after` seconds.

        Returns the pause that begins with it, if one does: with the failure that opens, and with a probe's.
        Those of attempts that began before prolong it at most.
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
        """Begin the next pause."""
        self._probing = False
        self._pauses += 1
        policy = self._policy
        self.pause = backoff(policy.pause, policy.max_pause, self._pauses, least=policy.least, asked=after)
        self._next_probe = anyio.current_time() + self.pause
        return self.pause
