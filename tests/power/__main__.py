"""`python -m power --points all --seed S` cuts the power of recorded workers, and prints figures."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from power.faults import fail, go_on
from power.recording import Recording, open_studio, record_lives
from power.sweep import Figures, sweep

INJECTIONS = tuple(
    f"{call}:error={error}{end}:when={number}"
    for call, error, end, numbers in (
        ("fdatasync", "EIO", "", range(1, 25, 2)),
        ("fdatasync", "ENOSPC", "", (10, 14)),
        ("fdatasync", "EIO", ":signal=KILL", (9, 11, 13)),
        ("pwrite64", "EIO", "", range(5, 125, 20)),
        ("pwrite64", "EIO", ":signal=KILL", range(60, 125, 20)),
    )
    for number in numbers
)
"""The calls of a life that fail in a soak, each in a life of its own; strace counts for each thread."""


def main() -> int:
    """Exit status 1 when a journal didn't stand for what had been told."""
    parser = argparse.ArgumentParser(prog="python -m power", description=__doc__)
    parser.add_argument("--points", default="all", help="how many points of each recording, or all of them")
    parser.add_argument("--seed", type=int, default=1, help="decides which unsynced writes are kept")
    parser.add_argument("--lives", action="store_true", help="only the lives without a failing disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    began = time.monotonic()
    sums: dict[str, dict[str, int]] = {}
    for life in ("lives",) if options.lives else ("lives", *INJECTIONS):
        with tempfile.TemporaryDirectory() as folder:
            recording = _record(life, Path(folder))
        figures = _sweep(recording, options.seed, options.points)
        for violation in figures.violations[:5]:
            _say(f"VIOLATION in {life}: {violation}")
        kind = sums.setdefault("power cut" if life == "lives" else "power cut after a failure", {})
        for name, number in figures.as_dict().items():
            kind[name] = kind.get(name, 0) + number
    for group, numbers in sums.items():
        line = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
        _say(f"{group}: {line}".replace("_", " "))
    violations = sum(numbers["violations"] for numbers in sums.values())
    failures = 0 if options.lives else len(INJECTIONS)
    _say(f"failures injected {failures}, seconds {time.monotonic() - began:,.0f}")
    if options.json is not None:
        options.json.write_text(json.dumps({"groups": sums, "failures": failures, "violations": violations}))
    return 1 if violations else 0


def _record(name: str, folder: Path) -> Recording:
    if name == "lives":
        return record_lives(folder)
    with open_studio(folder) as studio:
        fail(studio, name)
        return go_on(studio)


def _sweep(recording: Recording, seed: int, points: str) -> Figures:
    if points == "all":
        return sweep(recording, seed)
    every = max(len(recording.steps) // int(points), 1)
    return sweep(recording, seed, lambda point: point % every == seed % every)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
