"""Rules about rates: no stretch of time has more parts at a provider than its rate allows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from simulation.run import History

WINDOW = 5.0
"""Seconds of a stretch of time."""

_GSM = re.compile(r"[a-zö€]*")
_SECONDS = {"s": 1.0, "m": 60.0}


def broken_rates(history: History) -> Iterator[str]:
    """In each life: a new one doesn't know what the one before sent in its last second."""
    rate = history.plan.tuning.rate
    if rate is None or history.is_shared:
        return
    count, _, unit = rate.partition(" parts/")
    allowed = int(count) / _SECONDS[unit] * WINDOW * 1.05
    for life in range(len(history.lives)):
        asked = [
            (each.at, parts_of(each.content["text"])) for each in history.ledger.asked if each.life == life
        ]
        longest = max((parts for _, parts in asked), default=0)
        for begin, _ in asked:
            found = sum(parts for at, parts in asked if begin <= at < begin + WINDOW)
            if found > allowed + longest + 1:
                yield f"{found} parts were sent within {WINDOW:g} s from {begin:.1f} on, at {rate}"
                break


def parts_of(text: str) -> int:
    """The parts of one of the texts of such a plan, counted as 3GPP TS 23.040 has it."""
    if _GSM.fullmatch(text):
        widths, whole, part = [2 if char == "€" else 1 for char in text], 160, 153
    else:
        widths, whole, part = [len(char.encode("utf-16-le")) // 2 for char in text], 70, 67
    if sum(widths) <= whole:
        return 1
    parts, free = 1, part
    for width in widths:
        if width > free:
            parts, free = parts + 1, part
        free -= width
    return parts
