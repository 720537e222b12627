"""Draw the pictures of explanation/performance.md from the figures in benchmarks/results: `make docs`."""  # noqa: INP001  # a script

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
OURS, OTHER, INK, RULE = "#0f766e", "#94a3b8", "#334155", "#e2e8f0"
STEEP = 20
"""A curve whose greatest value is so many times its least is drawn on a logarithmic scale."""


class Scale(NamedTuple):
    """Values from `low` to `high`, drawn from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high, value = map(math.log10, (self.low, self.high, value)) if self.log else (*self[:2], value)
        return self.begin + (value - low) / (high - low or 1) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if self.log:
            return [10.0**n for n in range(math.ceil(math.log10(self.low)), int(math.log10(self.high)) + 1)]
        unit = 10 ** math.floor(math.log10(self.high / 2))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor * 5 > self.high)
        return [step * number for number in range(int(self.high / step) + 1)]


def decades(values: Sequence[float], begin: float, end: float) -> Scale:
    """A logarithmic scale from one power of ten to another."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return Scale(10.0**low, 10.0**high, begin, end, log=True)


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(points: Sequence[tuple[float, float]], colour: str, width: float = 1) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def svg(width: int, height: int, parts: Iterator[str]) -> str:
    """A picture on a white ground, so that it reads on a dark page too."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = f'font-family="sans-serif" font-size="13" fill="{INK}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def bars(figures: Sequence[Mapping[str, Any]]) -> str:
    """CPU for 1,000 messages of each subject, least first, with the least and the most of its rounds."""
    shown = sorted((one for one in figures if not one["flaws"]), key=lambda one: one["cpu"])
    ours = next(one["cpu"] for one in shown if one["subject"] == "deliveryd")
    bottom = 10 + 32 * len(shown)
    across = decades([one[key] for one in shown for key in ("cpu_least", "cpu_most")], 280, 680)

    def parts() -> Iterator[str]:
        for tick in across.ticks():
            yield line([(across.at(tick), 10), (across.at(tick), bottom)], RULE)
            yield text(across.at(tick), bottom + 18, f"{tick:,.0f}")
        for row, one in enumerate(shown):
            middle, end = 26 + 32 * row, across.at(one["cpu"])
            least, most = across.at(one["cpu_least"]), across.at(one["cpu_most"])
            colour = OURS if one["subject"] == "deliveryd" else OTHER
            yield f'<rect x="280" y="{middle - 11}" width="{end - 280:.1f}" height="22" fill="{colour}"/>'
            yield line([(least, middle), (most, middle)], INK)
            yield text(270, middle + 5, one["title"], "end")
            yield text(most + 8, middle + 5, f"{one['cpu']:,.0f}  ({one['cpu'] / ours:.2g} x)", "start")
        yield text(
            450, bottom + 40, "CPU ms for 1,000 messages, whole process tree, start included (logarithmic)"
        )

    return svg(800, bottom + 54, parts())


def curve(axis: str, points: Sequence[Mapping[str, float]]) -> str:
    """CPU and rate over a size, side by side."""
    sizes = [point["size"] for point in points]

    def parts() -> Iterator[str]:
        for left, key, title in (
            (60, "cpu", "CPU ms for 1,000 messages"),
            (460, "rate", "messages a second"),
        ):
            values = [point[key] for point in points]
            across = Scale(min(sizes), max(sizes), left + 10, left + 300, log=min(sizes) > 0)
            steep = max(values) > STEEP * min(values)
            up = decades(values, 220, 30) if steep else Scale(0, max(values) * 1.15, 220, 30, log=False)
            for tick in up.ticks():
                yield line([(left, up.at(tick)), (left + 310, up.at(tick))], RULE)
                yield text(left - 6, up.at(tick) + 5, f"{tick:,.0f}", "end")
            yield from (text(across.at(tick), 238, f"{tick:,.0f}") for tick in across.ticks())
            drawn = [(across.at(size), up.at(value)) for size, value in zip(sizes, values, strict=True)]
            yield line(drawn, OURS, 2)
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{OURS}"/>' for x, y in drawn)
            yield text(left + 155, 18, title)
            yield text(left + 155, 260, axis)

    return svg(800, 270, parts())


def pictures() -> Iterator[tuple[str, str]]:
    """The path of each picture from the page that shows it, and its content."""
    bench, growth = (
        json.loads(RESULTS.joinpath(name).read_text("utf-8")) for name in ("bench.json", "growth.json")
    )
    yield "performance/bench.svg", bars(bench["figures"])
    for name, kept in growth["curves"].items():
        yield f"performance/growth-{name}.svg", curve(kept["axis"], kept["points"])


if __name__ == "__main__":
    for path, content in pictures():
        picture = ROOT / "docs" / "explanation" / path
        picture.parent.mkdir(exist_ok=True)
        picture.write_text(content, "utf-8")
