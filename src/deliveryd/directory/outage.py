"""A remote directory that keeps failing: it is left alone but for single tries, and the log tells it once."""

from __future__ import annotations

import random

import anyio

from deliveryd.errors import DirectoryUnavailable
from deliveryd.runtime.waits import LONGEST_ANSWER_WAIT
from deliveryd.telemetry import Event, log

DOWN_AFTER = 5
"""Failed questions in a row after which the directory counts as down: fewer may be about their customers."""

FIRST_PAUSE = 0.5
LONGEST_OUTAGE_PAUSE = 5.0
"""Seconds between two tries of a directory that is down; the pauses double."""

LOG_PAUSE = 60.0
"""Seconds between two lines of the log about questions that fail while the directory answers others."""


class DirectoryBreaker:
    """Whether a directory may be asked, by how its last questions went."""

    def __init__(self) -> None:
        self._failures = 0
        self._pauses = 0
        self._began: float | None = None
        self._next_try = 0.0
        self._trying = False
        self._reason = ""
        self._next_line = float("-inf")

    @property
    def is_on(self) -> bool:
        """Whether the directory counts as down."""
        return self._began is not None

    def hindrance(self) -> DirectoryUnavailable | None:
        """Why nothing may be asked now, or None."""
        if self._began is None:
            return None
        pause = self._next_try - anyio.current_time()
        return DirectoryUnavailable(self._reason) if pause > 0 or self._trying else None

    def begin(self) -> None:
        """A question begins; while the directory is down, it is the only one."""
        self._trying = self.is_on

    def withdraw(self) -> None:
        """The question was broken off: it says nothing about the directory."""
        self._trying = False

    def answered(self) -> None:
        """The directory answered."""
        self._failures = self._pauses = 0
        self._trying = False
        if self._began is not None:
            log(Event.CUSTOMERS_RECOVERED, seconds=anyio.current_time() - self._began)
            self._began, self._next_line = None, float("-inf")

    def failed(self, error: DirectoryUnavailable) -> None:
        """The directory didn't answer a question."""
        self._failures += 1
        self._reason = str(error)
        now = anyio.current_time()
        if self._began is None:
            if now >= self._next_line:
                self._next_line = now + LOG_PAUSE
                log(Event.CUSTOMERS_UNAVAILABLE, reason=self._reason)
            if self._failures < DOWN_AFTER:
                return
            self._began = now
        elif not self._trying:  # a question from before
            return
        self._trying = False
        self._pauses += 1
        pause = min(FIRST_PAUSE * 2.0 ** min(self._pauses - 1, 10), LONGEST_OUTAGE_PAUSE) * random.uniform(
            0.7, 1.0
        )
        self._next_try = now + max(pause, min(error.after or 0.0, LONGEST_ANSWER_WAIT))
