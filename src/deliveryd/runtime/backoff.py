"""Exponential back-off with jitter: the one formula behind all growing pauses."""

from __future__ import annotations

import random

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
