"""The pictures, as SVG that reads on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from figures import Figures

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

OURS, OTHER, INK = "#0f766e", "#94a3b8", "#334155"
WHOLE = FuncFormatter(lambda value, _: f"{value:,.0f}")
STEEP = 20
"""A curve whose greatest value is so many times its least is drawn on a logarithmic scale."""

STYLE = {
    "svg.hashsalt": "deliveryd",  # the same figures give the same file
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def bars(all_figures: Sequence[Figures], path: Path) -> None:
    """CPU for 1,000 messages of each subject, on a logarithmic scale."""
    shown = sorted((one for one in all_figures if not one.flaws), key=lambda one: -one.cpu)
    ours = next((one.cpu for one in shown if one.subject == "deliveryd"), None)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 0.42 * len(shown) + 1.1), layout="constrained")
        drawn = axes.barh(
            [one.title for one in shown],
            [one.cpu for one in shown],
            color=[OURS if one.subject == "deliveryd" else OTHER for one in shown],
            xerr=[
                [one.cpu - one.cpu_least for one in shown],
                [one.cpu_most - one.cpu for one in shown],
            ],
            error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
        )
        labels = [f"{one.cpu:,.0f}" + (f"  ({one.cpu / ours:.2g} x)" if ours else "") for one in shown]
        axes.bar_label(drawn, labels, padding=6)
        axes.set_xscale("log")
        axes.set_xlim(right=max(one.cpu for one in shown) * 4)
        axes.xaxis.set_major_formatter(WHOLE)
        axes.set_xlabel("CPU ms for 1,000 messages, whole process tree, start included (logarithmic)")
        _save(figure, path)


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure over one size."""

    name: str
    axis: str
    sizes: list[float]
    cpu: list[float]
    rate: list[float]
    log: bool = True


def curve(one: Curve, path: Path) -> None:
    """CPU and rate over a size, side by side."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
        for axes, values, what in (
            (left, one.cpu, "CPU ms for 1,000 messages"),
            (right, one.rate, "messages a second"),
        ):
            axes.plot(one.sizes, values, marker="o", color=OURS)
            if one.log:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(WHOLE)
            if max(values) > STEEP * min(values):
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0, top=max(values) * 1.15)
            axes.yaxis.set_major_formatter(WHOLE)
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(one.axis)
            axes.set_title(what, fontsize=10)
            axes.grid(visible=True, axis="y", alpha=0.3)
        _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(figure)
