"""From runs to figures: medians, what a start costs, and how subjects stand to deliveryd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from catalogue import Subject
from measuring import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of a subject's runs, or the flaws for which it has none.

    CPU is in milliseconds for 1,000 messages of the whole process tree. `cpu` counts the start in as a part
    of the full number of messages, also for a subject that was given fewer; `marginal` leaves the start out.
    """

    subject: str
    title: str
    messages: int
    runs: int
    cpu: float
    cpu_least: float
    cpu_most: float
    marginal: float
    redis_cpu: float
    rate: float
    p50_ms: float
    p99_ms: float
    peak_rss_mb: float
    world_busy: float
    flaws: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)


def figures_of(subject: Subject, runs: Sequence[Run], small: Sequence[Run], full: int) -> Figures:
    """Sum up. `small` are runs with few messages, mostly start; `full` is the whole work's number."""
    start = median(run.cpu for run in small)
    few = small[0].messages
    marginal = [(run.cpu - start) / (run.messages - few) for run in runs]
    whole = [(start + one * (full - few)) / full * 1e6 for one in marginal]

    def middle(value: Callable[[Run], float]) -> float:
        return median(map(value, runs))

    return Figures(
        subject=subject.name,
        title=subject.title,
        messages=runs[0].messages,
        runs=len(runs),
        cpu=median(whole),
        cpu_least=min(whole),
        cpu_most=max(whole),
        marginal=median(marginal) * 1e6,
        redis_cpu=middle(lambda run: run.redis_cpu / run.messages * 1e6),
        rate=middle(lambda run: run.rate),
        p50_ms=middle(lambda run: run.p50_ms),
        p99_ms=middle(lambda run: run.p99_ms),
        peak_rss_mb=middle(lambda run: run.peak_rss_mb),
        world_busy=middle(lambda run: run.world_busy),
        flaws=tuple(dict.fromkeys(flaw for run in [*runs, *small] for flaw in run.flaws)),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the bar: deliveryd's CPU over a subject's, at most."""

    subject: str
    must: float
    aim: float

    def verdict(self, ratio: float) -> str:
        """In a word."""
        if ratio <= self.aim:
            return "aim met"
        return "must met" if ratio <= self.must else "missed"


BAR = (
    Line("floor", 2.0, 1.3),
    Line("aiohttp", 1.4, 1.0),
    Line("taskiq", 1 / 4, 1 / 6),
    Line("dramatiq", 1 / 7, 1 / 10),
    Line("arq", 1 / 12, 1 / 17),
    Line("celery", 1 / 15, 1 / 21),
    Line("sequential", 1 / 5, 1 / 7),
    Line("httpx", 1 / 15, 1 / 22),
)


def table(all_figures: Sequence[Figures]) -> str:
    """All figures as a Markdown table, least CPU first."""
    ours = _ours(all_figures)
    head = "subject|messages|CPU ms/1,000|least to most|without start|times deliveryd"
    rows = [[*head.split("|"), *["messages/s", "p50 ms", "p99 ms", "peak RSS MB"]]]
    for one in sorted(all_figures, key=lambda figures: figures.cpu):
        if one.flaws:
            rows.append([one.title, f"{one.messages:,}", "none: " + "; ".join(one.flaws), *[""] * 7])
            continue
        rows.append(
            [
                one.title,
                f"{one.messages:,}",
                f"{one.cpu:,.0f}",
                f"{one.cpu_least:,.0f} to {one.cpu_most:,.0f}",
                f"{one.marginal:,.0f}",
                f"{one.cpu / ours.cpu:.2f}" if ours else "",
                f"{one.rate:,.0f}",
                f"{one.p50_ms:,.1f}",
                f"{one.p99_ms:,.1f}",
                f"{one.peak_rss_mb:,.0f}",
            ]
        )
    return markdown(rows)


def bar(all_figures: Sequence[Figures]) -> str:
    """deliveryd's CPU as a share of each subject's, beside what it must be and aims to be at most."""
    ours = _ours(all_figures)
    known = {one.subject: one for one in all_figures if not one.flaws}
    rows = [["deliveryd's CPU against", "must", "aim", "is", ""]]
    for line in BAR:
        if ours and (other := known.get(line.subject)):
            ratio = ours.cpu / other.cpu
            shares = [_share(line.must), _share(line.aim), _share(ratio)]
            rows.append([other.title, *shares, line.verdict(ratio)])
    return markdown(rows)


def _ours(all_figures: Sequence[Figures]) -> Figures | None:
    return next((one for one in all_figures if one.subject == "deliveryd" and not one.flaws), None)


def _share(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio > 0.6 else f"1/{1 / ratio:.1f}".removesuffix(".0")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |"

    rule = [("-" * width if index == 0 else "-" * (width - 1) + ":") for index, width in enumerate(widths)]
    return "\n".join([line(rows[0]), line(rule), *map(line, rows[1:])])
