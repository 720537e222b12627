"""One subject, one or more runs: `python benchmarks/run.py deliveryd --messages 20000 --runs 3`."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from catalogue import DAEMON, SUBJECTS
from measuring import Run, measure
from process import clean_up_when_told_to_end
from work import Work
from world import Conditions

SMALL = 200
"""Messages of the small run whose cost is taken off for the marginal figure."""

LINE = "{:>14} {:>14} {:>9} {:>8} {:>8} {:>8} {:>7}  {}"


def main() -> int:
    """Run and print; 1 when a run had flaws."""
    clean_up_when_told_to_end()
    chosen = _arguments()
    subject = (SUBJECTS | {DAEMON.name: DAEMON})[chosen.subject]
    conditions = Conditions(chosen.latency_ms, chosen.rate)
    environ = dict(pair.split("=", 1) for pair in chosen.env)
    environ |= {_variable(key): value for key, value in (pair.split("=", 1) for pair in chosen.set)}
    work = Work(chosen.messages, chosen.settings, chosen.text_length)
    small = measure(
        subject, Work(SMALL, min(chosen.settings, SMALL), chosen.text_length), conditions, environ
    )
    print(LINE.format("CPU ms/1000", "marginal", "msg/s", "p50 ms", "p99 ms", "RSS MB", "world", "flaws"))
    runs = []
    for _ in range(chosen.runs):
        run = measure(subject, work, conditions, environ, chosen.log)
        runs.append(run)
        print(_line(run, small), flush=True)
    if chosen.runs > 1:
        print(f"{median(run.cpu_ms_per_1000 for run in runs):>14.1f} median of {chosen.runs}, start included")
    return int(any(run.flaws for run in runs))


def _line(run: Run, small: Run) -> str:
    marginal = (run.cpu - small.cpu) * 1e6 / (run.messages - small.messages)
    return LINE.format(
        f"{run.cpu_ms_per_1000:.1f}", f"{marginal:.1f}", f"{run.rate:.0f}", f"{run.p50_ms:.1f}",
        f"{run.p99_ms:.1f}", f"{run.peak_rss_mb:.0f}", f"{run.world_busy:.0%}", "; ".join(run.flaws),
    )  # fmt: skip


def _variable(key: str) -> str:
    return "DELIVERYD_" + key.upper().replace(".", "__")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=[*SUBJECTS, DAEMON.name])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--settings", type=int, default=20)
    parser.add_argument("--text-length", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument(
        "--rate", type=float, default=0.0, help="messages a second that the queue lets go; 0: all"
    )
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of deliveryd")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--log", type=Path, help="where to keep what the last run wrote")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
