"""Instructions of the worker's process for each message, of several installations: steady on a busy machine.

`python benchmarks/instructions.py OLD/.venv/bin/python NEW/.venv/bin/python` prints the second by the first.
Valgrind counts them, at fifty times the time of a plain run. The difference of a large and a small run
leaves the start out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from catalogue import SUBJECTS, Place, Start
from measuring import folder_on_disk, measure
from process import clean_up_when_told_to_end
from work import Work

LINE = "{:<50} {:>8} {:>8} {:>12} {:>12} {:>16} {:>8}"
TOOL = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
TOTAL = re.compile(r"I\s+refs:\s+([0-9,]+)")


def main() -> None:
    """Measure each installation in turns, and print what a message costs in it."""
    clean_up_when_told_to_end()
    chosen = _arguments()
    print(LINE.format("python", "small", "large", "small, 10^9", "large, 10^9", "per message", "by first"))
    first = None
    for python in chosen.python:
        small, large = (
            _instructions(python, messages, chosen.runs) for messages in (chosen.small, chosen.large)
        )
        each = (large - small) / (chosen.large - chosen.small)
        first = first or each
        print(
            LINE.format(
                str(python)[-50:], chosen.small, chosen.large, f"{small / 1e9:.3f}", f"{large / 1e9:.3f}",
                f"{each:,.0f}", f"{each / first:.4f}",
            ),
            flush=True,
        )  # fmt: skip


def _instructions(python: Path, messages: int, runs: int) -> float:
    """The median of some runs."""
    return median(_run(python, messages) for _ in range(runs))


def _run(python: Path, messages: int) -> int:
    """What one worker executes for so many messages, from its start to its end. Raises SubjectFailed."""
    with folder_on_disk() as folder:
        log = folder / "valgrind.log"
        subject = replace(SUBJECTS["deliveryd"], start=_counted(python, log, SUBJECTS["deliveryd"].start))
        run = measure(subject, Work(messages))
        if run.flaws:
            raise SystemExit(f"{python}: {'; '.join(run.flaws)}")
        found = TOTAL.search(log.read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1].replace(",", ""))


def _counted(python: Path, log: Path, start: Callable[[Place], Start]) -> Callable[[Place], Start]:
    def counted(place: Place) -> Start:
        plain = start(place)
        # A fixed seed of hashes: the order of sets, and with it the count, is the same in each run.
        environ = {**plain.environ, "PYTHONHASHSEED": "0"}
        return Start([*TOOL, f"--log-file={log}", str(python), *plain.command[1:]], environ)

    return counted


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "python", type=Path, nargs="+", help="the interpreter of an environment with deliveryd"
    )
    parser.add_argument("--small", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=60_000)
    parser.add_argument("--runs", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
