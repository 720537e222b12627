"""Plots of the last hour as SVG: drawn here, so that the page shows them without a script as well."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from deliveryd.admin.sections import figure

WIDTH, HEIGHT = 360, 56
"""Units of a plot: one across for each ten seconds, the latest at the right."""

_TOP = 4


def plot(name: str, unit: str, *series: tuple[str, Sequence[float | None]]) -> str:
    """Draw series of one scale, each with its class, the first one filled; `name` is for the label."""
    values = [value for _, points in series for value in points if value is not None]
    highest = max(values, default=0.0)
    drawn = "".join(
        _line(kind, points, highest, is_filled=not index) for index, (kind, points) in enumerate(series)
    )
    label = f"{name} in the last hour: highest {figure(highest)}{unit}"
    return (
        f'<svg class="plot" role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' preserveAspectRatio="none">{drawn}</svg>'
        f'<span class="scale" aria-hidden="true"><span>1 h ago</span>'
        f"<span>highest {figure(highest)}{escape(unit)}</span><span>now</span></span>"
    )


def _line(kind: str, points: Sequence[float | None], highest: float, *, is_filled: bool) -> str:
    """One series: a path for each stretch without a gap."""
    shown = points[-WIDTH:]
    left = WIDTH - len(shown)
    scale = (HEIGHT - _TOP) / highest if highest > 0 else 0.0
    areas, lines, stretch = [], [], list[tuple[int, int]]()
    for index, value in enumerate((*shown, None)):
        if value is not None:
            stretch.append((left + index + 1, round(HEIGHT - value * scale)))
        elif stretch:
            path = _path(stretch)
            lines.append(path)
            areas.append(f"{path}V{HEIGHT}H{stretch[0][0] - 1}Z")
            stretch = []
    area = f'<path class="area {kind}" d="{"".join(areas)}"/>' if is_filled and areas else ""
    return area + (f'<path class="line {kind}" d="{"".join(lines)}"/>' if lines else "")


def _path(stretch: Sequence[tuple[int, int]]) -> str:
    """A path through points that lie one apart; level parts take one step."""
    (x, y), *rest = stretch
    parts, level = [f"M{x - 1} {y}"], y
    for x, y in stretch:
        if y != level:
            parts.append(f"H{x - 1}L{x} {y}")
            level = y
    last = rest[-1][0] if rest else x
    return f"{''.join(parts)}H{last}"
