"""What `events.batch_size` comes to, by the time that a post takes: posts and events a second, CPU, delay.

    python benchmarks/events_batches.py [--sizes 1,10,100,256,500,1024] [--round-trips 5,50] [--seconds 5]

Prints the table of docs/how-to/tune.md. The sizes of one round trip are measured one after the other; the
ratios are to the default. A small size gets fewer messages: as many as it reports in so many seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from catalogue import SUBJECTS
from measuring import Run, measure
from process import clean_up_when_told_to_end
from work import Work
from world import Conditions

DEFAULT = 500
START = 200
"""Messages of a run whose CPU is taken off, as that of the start."""

LEAST, MOST = 400, 6000
"""Messages of a run."""

HEADING = (
    "| round trip ms | `events.batch_size` | posts/s | events/s | of the default's"
    " | CPU ms for 1,000 events | of the default's | events in a post |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def main() -> int:
    """Measure and print; 1 when a run had flaws."""
    clean_up_when_told_to_end()
    chosen = _arguments()
    print(HEADING)
    flaws = []
    for round_trip in chosen.round_trips:
        runs = {size: _measured(size, round_trip, chosen.seconds) for size in chosen.sizes}
        for line in _lines(round_trip, runs):
            print(line, flush=True)
        flaws += [flaw for run, _ in runs.values() for flaw in run.flaws]
    print("\n".join(flaws))
    return int(bool(flaws))


def _measured(size: int, round_trip: float, seconds: float) -> tuple[Run, float]:
    """A run, and its CPU milliseconds for 1,000 events, without the start."""
    conditions = Conditions(events_latency_ms=round_trip)
    environ = {"DELIVERYD_EVENTS__BATCH_SIZE": str(size)}
    subject = SUBJECTS["deliveryd"]
    messages = START + min(max(int(size * seconds * 1000 / round_trip / 2), LEAST), MOST)
    start = measure(subject, Work(START), conditions, environ)
    run = measure(subject, Work(messages), conditions, environ)
    return run, (run.cpu - start.cpu) * 1e6 / (2 * (messages - START))


def _lines(round_trip: float, runs: dict[int, tuple[Run, float]]) -> Iterator[str]:
    usual, usual_cpu = runs.get(DEFAULT) or next(iter(runs.values()))
    for size, (run, cpu) in runs.items():
        posts = run.findings.event_posts
        cells = (
            f"{round_trip:g}", f"{size:,}", f"{posts / run.seconds:.1f}", f"{2 * run.rate:,.0f}",
            f"{run.rate / usual.rate:.2f}", f"{cpu:,.0f}", f"{cpu / usual_cpu:.2f}",
            f"{2 * run.messages / posts:.0f}",
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=_numbers, default=[1, 10, 100, 256, DEFAULT, 1024])
    parser.add_argument("--round-trips", type=_numbers, default=[5, 50], help="milliseconds")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run, about")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
