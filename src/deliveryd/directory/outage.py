"""The breaker of a remote directory, with its errors and its log lines."""

from __future__ import annotations

import anyio

from deliveryd.errors import DirectoryUnavailable
from deliveryd.runtime.breaker import Breaker, BreakerPolicy
from deliveryd.telemetry.log_events import Event, log

POLICY = BreakerPolicy(failures=5, pause=0.5, max_pause=5.0, least=0.7)
"""Fewer than five failures in a row may be due to the customers in the question, not to the directory."""

LOG_PAUSE = 60.0
"""Seconds between log lines about failed questions while the directory answers others."""


class DirectoryOutage:
    """Counts failed questions; while the directory is down, allows one question at a time, after pauses.

    Logs each outage once. Unlike a provider's breaker it starts afresh after each outage: pauses are short.
    """

    def __init__(self) -> None:
        self._breaker = Breaker(POLICY)
        self._reason = ""
        self._next_line = float("-inf")

    @property
    def is_on(self) -> bool:
        """Whether the directory counts as down."""
        return self._breaker.is_open

    def hindrance(self) -> DirectoryUnavailable | None:
        """Return the error for a question that may not be asked now, or None."""
        blocked = self.is_on and (self._breaker.is_probing or self._breaker.wait() > 0)
        return DirectoryUnavailable(self._reason) if blocked else None

    def begin(self) -> None:
        """Record that a question is being asked; while the directory is down, it is a probe."""
        if self.is_on:
            self._breaker.probe()

    def withdraw(self) -> None:
        """Record that the question was cancelled, which proves nothing about the directory."""
        self._breaker.withdraw()

    def answered(self) -> None:
        """Record an answer, which ends the outage."""
        was_on = self.is_on
        seconds = self._breaker.answered()
        if was_on:
            log(Event.CUSTOMERS_RECOVERED, seconds=seconds)
            self._breaker, self._next_line = Breaker(POLICY), float("-inf")

    def failed(self, error: DirectoryUnavailable) -> None:
        """Record a failed question. One asked before the outage began changes nothing."""
        self._reason = str(error)
        if self.is_on:
            if self._breaker.is_probing:
                self._breaker.failed(error.after)
            return
        if (now := anyio.current_time()) >= self._next_line:
            self._next_line = now + LOG_PAUSE
            log(Event.CUSTOMERS_UNAVAILABLE, reason=self._reason)
        self._breaker.failed(error.after)
