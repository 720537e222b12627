"""Breaks the worker in every way that the tests know, for as long as it takes, and prints one table of it.

Each part is a program of its own and can be run alone: `python -m simulation`, `crashes`, `power`,
`hostile`, `retention`, `fleet`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.output import say

TESTS = Path(__file__).parent


def main() -> int:
    """Exit status 1 when a promise was broken in any part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=100_000, help="simulated plans")
    parser.add_argument("--kills", type=int, default=1000, help="kills under load; the sweeps come on top")
    parser.add_argument("--faults", type=int, default=300, help="faults that happen to workers on PostgreSQL")
    parser.add_argument("--seed", type=int, default=1, help="seed of all parts")
    options = parser.parse_args()
    seed = f"--seed={options.seed}"
    parts = {
        "simulation": (f"--plans={options.plans}", seed),
        "crashes": (f"--kills={options.kills}", "--sweep", seed),
        "power": ("--points=all", seed),
        "retention": (),
        "fleet": (
            f"--faults={options.faults}",
            "--boundaries=commits",
            "--receipts=1",
            "--standby=sync",
            "--standby=async",
            seed,
        ),
    }
    status = 0
    with TemporaryDirectory() as folder:
        say("=== tests that only the soak runs")
        status |= run_marked()
        for name, arguments in parts.items():
            say(f"=== {name} {' '.join(arguments)}")
            status |= run(name, *arguments, f"--json={folder}/{name}.json")
        say("=== all of it")
        for line in table(Path(folder)):
            say(line)
    return 1 if status else 0


def run_marked() -> int:
    """Run the tests with the mark `soak`."""
    marked = [sys.executable, "-m", "pytest", "-m", "soak", str(TESTS)]
    return subprocess.run(marked, env={**os.environ, "DELIVERYD_SOAK": "1"}, check=False).returncode


def run(name: str, *arguments: str) -> int:
    """Run one part to its end; it prints its own figures."""
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run([sys.executable, "-m", name, *arguments], env=environ, check=False).returncode


def table(folder: Path) -> Iterator[str]:
    """The figures of all parts, as a table in Markdown."""
    yield "| part | what | number |"
    yield "|---|---|---:|"
    for part in ("simulation", "crashes", "power", "retention", "fleet"):
        file = folder / f"{part}.json"
        if not file.exists():
            yield f"| {part} | came to no end | |"
            continue
        for what, number in flat(json.loads(file.read_text(encoding="utf-8"))):
            yield f"| {part} | {what} | {number:,.10g} |"


def flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All numbers, by the path that leads to them."""
    for name, value in figures.items():
        what = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{what}: ")
        elif isinstance(value, int | float):
            yield what, value


if __name__ == "__main__":
    sys.exit(main())
