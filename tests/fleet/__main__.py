"""Puts several real workers on a real PostgreSQL through faults, and prints what that came to.

`python -m fleet --faults 300 --seed 1 --workers 2`, `--boundaries commits`, `--takeovers 50 --lease 20`,
`--rolling 5`, `--standby async`; several of them are run one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fleet.boundaries import all_boundaries, call_boundaries, commit_boundaries
from fleet.faults import drawn
from fleet.receiving import Fate, cases, receive_elsewhere
from fleet.rest import Rest
from fleet.rolling import roll
from fleet.run import run_faults
from fleet.standby import MODES
from fleet.striking import strike_all, summary
from fleet.takeover import take_over
from support.output import say

BOUNDARIES = {"commits": commit_boundaries, "calls": call_boundaries, "all": all_boundaries}
"""Where workers are killed and stopped."""


class Part(NamedTuple):
    """What one part came to, as a line and as figures."""

    summary: str
    figures: Mapping[str, Any]
    violations: int = 0


def main() -> int:
    """Exit status 1 when a promise was broken."""
    options = _parser().parse_args()
    figures = {}
    violations = 0
    for name, part in _parts(options):
        say(f"{name}: {part.summary}")
        figures[name] = part.figures
        violations += part.violations
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fleet", description=__doc__)
    parser.add_argument("--faults", type=int, default=0, help="faults under load, of all kinds")
    parser.add_argument("--boundaries", choices=BOUNDARIES, help="a kill and a stop at each, under load")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="K/N", help="of the boundaries, each Nth"
    )
    parser.add_argument("--receipts", type=int, default=0, help="rounds of receipts at the other worker")
    parser.add_argument("--takeovers", type=int, default=0, help="kills whose takeover is measured")
    parser.add_argument("--lease", type=int, default=20, help="seconds, for the takeovers")
    parser.add_argument("--rolling", type=int, default=0, help="restarts of each worker, one after the other")
    parser.add_argument("--standby", choices=MODES, action="append", default=[], help="a standby takes over")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    return int(number), int(parts)


def _parts(options: argparse.Namespace) -> Iterator[tuple[str, Part]]:
    if options.faults:
        with TemporaryDirectory(prefix="fleet-run-") as folder:
            yield "faults", _faults(Path(folder), options)
    if options.boundaries:
        with TemporaryDirectory(prefix="fleet-run-") as folder:
            yield f"boundaries {options.boundaries}", _boundaries(Path(folder), options)
    if options.receipts:
        with TemporaryDirectory(prefix="fleet-run-") as folder:
            yield "receipts", _receipts(Path(folder), options.receipts)
    if options.takeovers:
        with TemporaryDirectory(prefix="fleet-run-") as folder:
            yield "takeovers", _takeovers(Path(folder), options)
    if options.rolling:
        with TemporaryDirectory(prefix="fleet-run-") as folder:
            yield "rolling", _rolling(Path(folder), options)
    for mode in options.standby:
        with TemporaryDirectory(prefix="fleet-run-") as folder:
            yield f"standby {mode}", _standby(Path(folder), mode, options)


def _faults(folder: Path, options: argparse.Namespace) -> Part:
    story = run_faults(folder, options.workers, drawn(options.seed, options.faults), note=say)
    figures = {"faults": sum(story.faults.values()), "kinds": dict(story.faults)}
    return _judged(story.summary, figures, story.rest)


def _boundaries(folder: Path, options: argparse.Namespace) -> Part:
    number, parts = options.part
    names = BOUNDARIES[options.boundaries]()[number - 1 :: parts]
    line, figures, violations = summary(list(strike_all(folder, names, note=say)))
    lines = [line, *(f"  {violation}" for violation in violations)]
    return Part("\n".join(lines), {**figures, "violations": len(violations)}, len(violations))


def _receipts(folder: Path, rounds: int) -> Part:
    received = receive_elsewhere(folder, cases() * rounds, note=say)
    figures = {
        "cases": len(received.matched),
        "slowest": received.slowest(Fate.GOES_ON),
        "slowest of struck senders": received.slowest(Fate.STOPPED, Fate.KILLED),
        "violations": len(received.violations),
    }
    line = (
        "{cases} cases, slowest match {slowest:.2f} s, {slowest of struck senders:.2f} s where the sender was"
        " stopped or killed, {violations} violations"
    )
    lines = [line.format_map(figures), *(f"  {violation}" for violation in received.violations)]
    return Part("\n".join(lines), figures, len(received.violations))


def _takeovers(folder: Path, options: argparse.Namespace) -> Part:
    taken = take_over(folder, options.takeovers, options.lease, options.seed)
    figures = {
        "number": len(taken.seconds), "lease": options.lease,
        "median": median(taken.seconds), "worst": max(taken.seconds),
        "in doubt": len(taken.doubts), "repeated": len(taken.repeated),
    }  # fmt: skip
    line = (
        "{number}, lease {lease} s: all was reported after {median:.2f} s in the median, {worst:.2f} s at"
        " worst; {repeated} of {in doubt} messages in doubt were repeated under their keys"
    )
    return _judged(f"{line.format_map(figures)}; {taken.rest.summary}", figures, taken.rest)


def _rolling(folder: Path, options: argparse.Namespace) -> Part:
    rolled = roll(folder, options.workers, options.rolling)
    answers = {str(answer): count for answer, count in rolled.answers.items()}
    figures = {"restarts": len(rolled.pauses), "median": median(rolled.pauses), "worst": max(rolled.pauses)}
    pauses = "{restarts} restarts, longest time without a take: median {median:.2f} s, worst {worst:.2f} s"
    summary = f"{pauses.format_map(figures)}; answers to receipts: {answers}; {rolled.rest.summary}"
    return _judged(summary, {**figures, "answers": answers}, rolled.rest)


def _standby(folder: Path, mode: str, options: argparse.Namespace) -> Part:
    story = MODES[mode](folder, options.workers)
    return _judged(story.summary, {"restarts": story.restarts, "lost": len(story.lost)}, story.rest)


def _judged(summary: str, figures: Mapping[str, Any], rest: Rest) -> Part:
    lines = [summary, *(f"  {violation}" for violation in rest.violations)]
    known = {"messages": rest.messages, "repeats": rest.repeats, "receipts elsewhere": rest.elsewhere}
    violations = len(rest.violations)
    return Part("\n".join(lines), {**figures, **known, "violations": violations}, violations)


if __name__ == "__main__":
    sys.exit(main())
