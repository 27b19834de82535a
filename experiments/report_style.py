"""How figures look: one column of a paper wide, safe for the colour-blind, a core the same in every figure."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lifelong.experiments.report_numbers import Curve

WIDTH = 3.5  # inches: a column
DOTS = 300  # per inch

# Okabe and Ito 2008, without yellow, which white paper swallows; references are grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_LINES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p", "d", "8")
GREY = "#767676"

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.2,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "savefig.dpi": DOTS,
    "svg.hashsalt": "lifelong",
}


@dataclass(frozen=True)
class Look:
    """Of one core."""

    colour: str
    line: str
    marker: str


Looks = dict[str, Look]


@dataclass(frozen=True)
class Picture:
    """A figure of a report."""

    name: str
    caption: str
    png: bytes


def looks(names: Iterable[str]) -> Looks:
    """A look for each core, by its place among the sorted names, so that it does not depend on who did well."""
    found = {}
    for index, name in enumerate(sorted(set(names))):
        line = _LINES[index // len(_COLOURS) % len(_LINES)]
        found[name] = Look(_COLOURS[index % len(_COLOURS)], line, _MARKERS[index % len(_MARKERS)])
    return found


def paint(name: str, caption: str, draw: Callable[..., Figure], *arguments: Any) -> Picture:
    """What ``draw`` draws, as PNG."""
    with rc_context(RC):
        stream = io.BytesIO()
        # No software version in the file: the same numbers give the same bytes.
        draw(*arguments).savefig(stream, format="png", metadata={"Software": None})
    return Picture(name, caption, stream.getvalue())


def figure_height(axes: float, cores: int) -> float:
    """Of a figure whose legend stands below."""
    return axes + (0.15 * -(-cores // 3) if cores > 1 else 0.0)


def line_of(name: str, look: Looks) -> dict[str, Any]:
    """Of a core, for lines that are drawn by hand."""
    return {"color": look[name].colour, "linestyle": look[name].line, "label": name}


def draw_curve(axes: Axes, curve: Curve, name: str, look: Look, markers: bool = False) -> None:
    """A line with its band; a point alone where that is all."""
    value, low, high = curve.estimate
    marker = look.marker if markers or len(curve.at) < 2 else ""
    axes.plot(curve.at, value, color=look.colour, linestyle=look.line, label=name, marker=marker, markersize=3)
    axes.fill_between(curve.at, low, high, color=look.colour, alpha=0.15, linewidth=0)


def new_figure(height: float = 2.4, rows: int = 1, columns: int = 1, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """A figure outside of pyplot's state, and its axes row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def add_legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Below the figure, in as many columns as fit; none for a single line."""
    handles, labels = axes.get_legend_handles_labels()
    if entries < 2:
        return
    widest = max(len(label) for label in labels)
    columns = max(1, min(4, 66 // (widest + 7)))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.0, columnspacing=1.0
    )


def draw_references(axes: Axes, references: dict[str, float]) -> None:
    """Floors and oracle as grey lines that are named at the right edge; equal levels share a line."""
    levels: dict[float, list[str]] = {}
    for name, value in references.items():
        levels.setdefault(round(value, 6), []).append(name.replace("_", " "))
    if not levels:
        return
    for level in levels:
        axes.axhline(level, color=GREY, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
    bottom, top = axes.get_ylim()
    bottom, top = min(bottom, *levels), max(top, *levels)
    margin = 0.03 * (top - bottom)
    axes.set_ylim(bottom - margin, top + margin)
    least = 0.075 * (top - bottom)  # a line of text, about
    for level, place in _spread(sorted(levels), least).items():
        text = "\n".join(levels[level]) if len(levels[level]) > 2 else ", ".join(levels[level])
        axes.annotate(
            text,
            (1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=6.2,
            annotation_clip=False,
        )


def _spread(levels: list[float], least: float) -> dict[float, float]:
    """Places for labels, ascending and at least so far apart, near their levels."""
    places: list[float] = []
    for level in levels:
        places.append(max(level, places[-1] + least) if places else level)
    # Runs of pushed labels are moved back down by half of the push, so that they straddle their levels.
    index = 0
    while index < len(places):
        end = index
        while end + 1 < len(places) and places[end + 1] - places[end] <= least * 1.000001:
            end += 1
        shift = sum(places[k] - levels[k] for k in range(index, end + 1)) / (end - index + 1)
        floor = places[index - 1] + least if index else float("-inf")
        shift = min(shift, places[index] - floor)
        for k in range(index, end + 1):
            places[k] -= shift
        index = end + 1
    return dict(zip(levels, places, strict=True))
