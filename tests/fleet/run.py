"""One run: a fleet under load, faults one after the other, and what it came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.faults import FAULTS, PROGRESS, progress
from fleet.rest import Rest, come_to_rest
from fleet.stage import open_fleet


class Story(NamedTuple):
    """How often each fault happened, and what the run came to."""

    faults: Mapping[str, int]
    rest: Rest

    @property
    def summary(self) -> str:
        """The same in a line."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return f"{sum(self.faults.values())} faults ({kinds}), {self.rest.summary}"


def run_faults(
    folder: Path,
    workers: int,
    plan: Sequence[tuple[str, int]],
    note: Callable[[str], None] = lambda _line: None,
) -> Story:
    """Have the faults of a plan (see `faults.drawn`) happen, and judge what it came to. Raises NoPostgres."""
    happened: Counter[str] = Counter()
    with open_fleet(folder, workers) as fleet:
        fleet.open()
        progress(fleet, PROGRESS)
        for name, number in plan:
            FAULTS[name](fleet, fleet.workers[number % workers])
            happened[name] += 1
            progress(fleet, PROGRESS)
            note(f"{happened.total()}: {name} of worker {number % workers + 1}; {fleet.enqueued}")
        return Story(happened, come_to_rest(fleet))
