"""How old records are, by the time that passed: a clock that is put forward makes nothing old by itself.

Records bear the time of day. What is forgotten by its age is therefore older than the lowest that the clock
showed while that age passed, as a clock measures it that can't be set. While the machine is off, no time is
known to pass: a clock that is wrong at a start ends nothing. Steps of the clock are noticed here too, also
those between two runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from deliveryd.journal.journal import Journal
from deliveryd.model import SECOND, STEP, SteadyClock, WallClock

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""What distinguishes one start of the machine, in which its monotonic clock runs on, from the next."""

KEPT_EVERY = 3600 * SECOND
"""Microseconds between two records of the passed time; as many may be lost when the machine goes down."""

MOST_STEPS = 1000
"""Steps of the clock that are remembered."""


class ClockReading(NamedTuple):
    """What the clock showed when so much time had passed; it went on from there until the next one."""

    passed: int
    shown: int


class PassedTime:
    """The time that passed since the journal began, in microseconds, and what the clock showed meanwhile.

    `kept` is what `record` returned in an earlier run; "": there was none, and what was recorded is as old as
    at `last_at`, when that run last wrote (0: never).
    """

    def __init__(self, clock: SteadyClock, kept: str = "", last_at: int = 0) -> None:
        self._clock = clock
        self._boot = _boot_id()
        monotonic = clock.elapsed()
        before = looked = highest = 0
        is_same_boot = False
        record: Mapping[str, Any] = {}
        self._readings = [ClockReading(0, min(clock.now(), last_at or clock.now()))]
        if kept:
            record = json.loads(kept)
            is_same_boot = record["boot"] == self._boot and record["monotonic"] <= monotonic
            before = record["passed"] + (monotonic - record["monotonic"] if is_same_boot else 0)
            self._readings = [ClockReading(*each) for each in record["readings"]]
            looked = record["passed"] if is_same_boot else before - KEPT_EVERY
            highest = record.get("highest", 0)
        self._began = monotonic - before
        self._recorded = None if not kept else before - KEPT_EVERY
        self._looked = looked  # by the time that passed
        self._measured_since = record.get("measured_since", 0) if is_same_boot else before
        self._highest = max(highest, last_at)  # that the clock showed
        self._unfollowed = 0
        step = self._look()
        # What was written before a step that is kept shows no other one.
        ahead = last_at - clock.now() if last_at > highest + STEP else 0
        if not is_same_boot:  # nobody measured how much time passed
            step = min(step, -ahead, 0)
        self._unfollowed = step if abs(step) >= STEP else 0

    def before(self, seconds: float) -> int:
        """Return the instant before which all that was recorded is older than this many seconds."""
        self._look()
        since = self._passed - int(seconds * SECOND)
        ends = [later.passed for _, later in pairwise(self._readings)] + [self._passed + 1]
        lowest = [
            shown + (since - passed if number == 0 else max(since - passed, 0))
            for number, ((passed, shown), end) in enumerate(zip(self._readings, ends, strict=True))
            if end > since
        ]
        return min(lowest)

    def since(self, at: int) -> int:
        """Return how many microseconds passed since the clock showed an instant, for the last time."""
        self._look()
        now = self._passed
        first, *others = self._readings
        when = first.passed + at - first.shown
        ends = [*(later.passed for later in others[1:]), now]
        for (passed, shown), end in zip(others, ends, strict=False):
            if 0 <= at - shown <= end - passed + STEP:
                when = passed + at - shown
        return max(now - when, 0)

    def is_measured(self, seconds: float) -> bool:
        """Whether so many seconds passed, as measured, since the machine or this record began."""
        return self._passed - int(seconds * SECOND) >= self._measured_since

    def stepped(self) -> int:
        """Microseconds by which the clock was put forward since the last call; negative: put back, at least.

        The first call returns it since the earlier run. Less than `STEP` is passed over: that is how clocks
        are kept right all the time. Then it is 0.
        """
        self._look()
        step, self._unfollowed = self._unfollowed, 0
        return step

    def record(self) -> str | None:
        """Return what is to be kept for the next run; None: what it has will do.

        A step is kept only once it is followed: otherwise the next run would take it for followed.
        """
        self._look()
        if self._unfollowed:
            return None
        if self._recorded is not None and self._passed - self._recorded < KEPT_EVERY:
            return None
        self._recorded = self._passed
        monotonic = self._began + self._passed
        kept = {
            "boot": self._boot,
            "monotonic": monotonic,
            "passed": self._passed,
            "readings": self._readings,
            "highest": self._highest,
            "measured_since": self._measured_since,
        }
        return json.dumps(kept)

    @property
    def _passed(self) -> int:
        return self._clock.elapsed() - self._began

    def _look(self) -> int:
        """Note what the clock shows, if it was set since the last look: put back, perhaps just after it.

        Returns by how much.
        """
        passed, shown = self._passed, self._clock.now()
        latest = self._readings[-1]
        expected = latest.shown + (passed - latest.passed)
        self._highest = max(self._highest, expected, shown)
        step = shown - expected
        if abs(step) >= STEP:
            since = self._looked if step < 0 else passed
            reading = ClockReading(max(since, latest.passed), shown - (passed - since))
            self._readings = [*self._readings, reading]
            if since < latest.passed:  # the reading is what the clock may have shown, not what it did
                self._readings.append(ClockReading(passed, shown))
            while len(self._readings) > MOST_STEPS:
                first, second, *others = self._readings
                self._readings = [_lower(first, second), *others]
            self._recorded = None
            self._unfollowed += step
        self._looked = passed
        return step


def _lower(first: ClockReading, second: ClockReading) -> ClockReading:
    """One reading for the time of two: by the one that shows less at any moment."""
    return ClockReading(
        first.passed, first.passed + min(each.shown - each.passed for each in (first, second))
    )


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def is_older(kept: str, at: int, seconds: float) -> bool:
    """Whether what was recorded at an instant is older than so many seconds, for a command that only reads.

    `kept`: see `PassedTime`. Where part of them was before the machine's start, the clock counts.
    """
    passed = PassedTime(clock := WallClock(), kept)
    is_known = bool(kept) and passed.is_measured(seconds)
    return at < (passed.before(seconds) if is_known else clock.now() - int(seconds * SECOND))


async def at_next_start(journal: Journal, clock: SteadyClock) -> int:
    """The present instant by the clock of the earlier run: the next start moves pauses from that one on.

    While another worker works on the journal, that has followed the clock.
    """
    if await journal.others_at_work():
        return clock.now()
    return clock.now() - PassedTime(clock, journal.kept_clock, journal.last_at).stepped()
