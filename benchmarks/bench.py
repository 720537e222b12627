"""All subjects on the same work, in turns: `make bench`, or `make bench-quick` for the nearest three.

It prints a table, and writes benchmarks/results/bench.json, which `make docs` draws.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from catalogue import SUBJECTS, Subject
from conditions import conditions
from figures import Figures, bar, figures_of, table
from measuring import Run, measure
from process import SubjectFailed, clean_up_when_told_to_end
from redis_server import NoRedis
from work import Work

RESULTS = Path(__file__).parent / "results"
SMALL = 200
QUICK = ("floor", "aiohttp", "deliveryd")


def main() -> int:
    """Measure and print; 1 when a subject has no figures."""
    clean_up_when_told_to_end()
    chosen = _arguments()
    subjects = [SUBJECTS[name] for name in chosen.subjects]
    found = conditions()
    for name, value in found.items():
        print(f"{name}: {value}")
    measured, failures = _measure_all(subjects, chosen.messages, chosen.runs)
    all_figures = [
        figures_of(SUBJECTS[name], runs, small, chosen.messages) for name, (runs, small) in measured.items()
    ]
    print(f"\n{table(all_figures)}\n\n{bar(all_figures)}\n")
    for failure in failures:
        print(failure)
    if chosen.write:
        _write(found, all_figures, chosen.messages)
    return int(bool(failures) or any(one.flaws for one in all_figures))


def _measure_all(
    subjects: Sequence[Subject], messages: int, rounds: int
) -> tuple[dict[str, tuple[list[Run], list[Run]]], list[str]]:
    """Run all in turns. A subject that fails has no figures, and holds up no other."""
    measured: dict[str, tuple[list[Run], list[Run]]] = {subject.name: ([], []) for subject in subjects}
    failures: list[str] = []
    for round_ in range(1, rounds + 1):
        for subject in [subject for subject in subjects if subject.name in measured]:
            _show(f"round {round_} of {rounds}: {subject.title}")
            try:
                measured[subject.name][1].append(measure(subject, Work(SMALL)))
                measured[subject.name][0].append(measure(subject, Work(int(messages * subject.share))))
            except NoRedis:
                failures.append(f"{subject.title}: left out, there is no redis-server")
                del measured[subject.name]
            except SubjectFailed as error:
                failures.append(f"{subject.title}: {error}")
                del measured[subject.name]
    _show("")
    return measured, failures


def _show(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{progress}", end="", file=sys.stderr, flush=True)


def _write(found: dict[str, str], all_figures: Sequence[Figures], messages: int) -> None:
    RESULTS.mkdir(exist_ok=True)
    kept = {"conditions": found, "messages": messages, "figures": [one.as_json() for one in all_figures]}
    RESULTS.joinpath("bench.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="5,000 messages of the nearest three; writes nothing"
    )
    parser.add_argument("--messages", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS)
    chosen = parser.parse_args()
    chosen.write = not chosen.quick and not chosen.subjects
    chosen.messages = chosen.messages or (5_000 if chosen.quick else 20_000)
    chosen.subjects = chosen.subjects or (QUICK if chosen.quick else tuple(SUBJECTS))
    return chosen


if __name__ == "__main__":
    raise SystemExit(main())
