"""The tables of `postgresql_cost.py`, and where they are written."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PHASES = ("messages", "receipts")
MARKS = ("<!-- figures: begin -->", "<!-- figures: end -->")
"""What stands before and behind the tables on a page."""


class Costs(NamedTuple):
    """Of one message or receipt: microseconds of CPU, and bytes of log; and what was seen meanwhile.

    `rest`: of the server's other processes. `upkeep`: of the vacuum and the checkpoint behind the run.
    `lock_waits`: how many waited for a lock at a look. `late`: by what share the run was behind its rate.
    """

    driver: float
    backend: float
    rest: float
    wal: float
    in_page: float
    lock_waits: float
    late: float
    p50: float
    p99: float
    upkeep: float = 0.0

    @property
    def database(self) -> float:
        """All CPU of the database."""
        return self.backend + self.rest + self.upkeep


def tables(found: Mapping[str, Mapping[str, Costs]], rate: float, seconds: float, batch: int) -> list[str]:
    """The lines of all tables, by the number of workers; "SQLite" beside them."""
    lines = [
        f"{rate:,.0f} messages a second through all workers together, then their receipts at the same rate,",
        f"{seconds:,.0f} seconds of each. A batch has {batch} messages; workers and database have",
        f"{os.cpu_count()} cores.",
    ]
    for phase in PHASES:
        lines += ["", *_table(phase, {name: costs[phase] for name, costs in found.items()})]
    return [*lines, "", *_cores(found)]


def _table(phase: str, rows: Mapping[str, Costs]) -> list[str]:
    base = next((each for each in rows.values() if each.backend), None)
    one = phase.removesuffix("s")
    cost = f"workers, per {one} | worker µs | backend µs | ratio | rest µs | upkeep µs | WAL bytes | HOT"
    lines = [
        f"| {cost} | waiting for locks | behind its rate | commit p50 ms | p99 ms |",
        f"|---|{'---:|' * 11}",
    ]
    for name, each in rows.items():
        times = f"{each.late:+.0%} | {each.p50:.1f} | {each.p99:.1f}"
        if base is None or not each.backend:
            lines.append(f"| {name} | {each.driver:,.0f} | | | | | | | | {times} |")
            continue
        cpu = f"{each.driver:,.0f} | {each.backend:,.0f} | {each.backend / base.backend:.2f}"
        rest = f"{each.rest:,.0f} | {each.upkeep:,.0f} | {each.wal:,.0f}"
        seen = f"{each.in_page:.0%} | {each.lock_waits:.3f}"
        lines.append(f"| {name} | {cpu} | {rest} | {seen} | {times} |")
    return lines


def _cores(found: Mapping[str, Mapping[str, Costs]]) -> list[str]:
    """Cores of the database for 1,000 messages a second."""
    lines = [
        "| workers | database cores for 1,000 messages a second | with a receipt for each |",
        "|---|---:|---:|",
    ]
    for name, costs in found.items():
        messages, receipts = (costs[phase].database / 1000 for phase in PHASES)
        if messages:
            lines.append(f"| {name} | {messages:.2f} | {messages + receipts:.2f} |")
    return lines


def write_figures(page: Path, lines: Sequence[str]) -> None:
    """Write the tables between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    begin, end = MARKS
    before, _, rest = text.partition(begin)
    _, is_there, behind = rest.partition(end)
    if not is_there:
        raise SystemExit(f"{page}: has no {begin} and {end}")
    page.write_text("\n".join([before + begin, "", *lines, "", end + behind]), encoding="utf-8")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
