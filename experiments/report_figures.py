"""The figures of training: each a function of a report's numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from lifelong.experiments.metrics.aggregate import Array
from lifelong.experiments.report_numbers import Curve, Numbers
from lifelong.experiments.report_style import (
    GREY,
    WIDTH,
    Looks,
    Picture,
    add_legend,
    draw_curve,
    draw_references,
    figure_height,
    line_of,
    looks,
    new_figure,
    paint,
)

_CAPTIONS = {
    "learning": "Learning curves and sample efficiency: interquartile mean over seeds at each number of frames, with "
    "its 95 % interval; single seeds as thin lines where there are few cores.",
    "final": "Final quarter of training (filled, with its 95 % interval) and best update (hollow): a gap between them "
    "is a collapse. Small dots are seeds.",
    "profile": "Performance profile: the share of runs whose final quarter lies above each level. Higher is better.",
    "improvement": "Probability that a run of the row beats a run of the column (0 violet, 1 orange); bold where the "
    "95 % interval leaves out one half.",
    "after_change": "Reward by steps since the hidden rule changed, final quarter of training: a memory that learns "
    "inside the life climbs, one that does not is level.",
}


def make_looks(sections: Sequence[Numbers]) -> Looks:
    """One look for each core of the whole report."""
    return looks(core.name for numbers in sections for core in numbers.cores)


def section_pictures(numbers: Numbers, look: Looks) -> list[Picture]:
    """Learning curves, final quarter, profile, pairs, adaptation."""
    several_seeds = max(core.seeds for core in numbers.cores) > 1
    changes = any("after_change" in core.curves for core in numbers.cores)
    figures = {
        "learning": _learning,
        "final": _final,
        **({"profile": _profile} if several_seeds else {}),
        **({"improvement": _improvement} if len(numbers.cores) > 1 else {}),
        **({"after_change": _after_change} if changes else {}),
    }
    return [paint(name, _CAPTIONS[name], draw, numbers, look) for name, draw in figures.items()]


def _learning(numbers: Numbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.3, len(numbers.cores)))
    for core in numbers.cores:
        for run in core.single_runs if len(numbers.cores) <= 4 else []:
            axes.plot(core.curves["learning"].at, run, color=look[core.name].colour, linewidth=0.4, alpha=0.45)
        draw_curve(axes, core.curves["learning"], core.name, look[core.name])
    axes.set_xlim(left=0)
    axes.set_xlabel(numbers.axis)
    axes.set_ylabel(numbers.unit)
    if numbers.axis == "frames":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    draw_references(axes, numbers.references)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _final(numbers: Numbers, look: Looks) -> Figure:
    cores = numbers.cores[::-1]
    figure, (axes,) = new_figure(0.75 + 0.2 * len(cores))
    for place, core in enumerate(cores):
        colour = look[core.name].colour
        final, best = core.scalars["final_quarter"], core.scalars["best"]
        axes.plot(core.finals, np.full(len(core.finals), place), ".", color=colour, markersize=2.5, alpha=0.5)
        axes.plot(
            [final.low, final.high], [place, place], color=colour, linewidth=3.0, alpha=0.45, solid_capstyle="butt"
        )
        axes.plot(final.value, place, "o", color=colour, markersize=4.5)
        axes.plot(best.value, place, "o", markerfacecolor="none", markeredgecolor=colour, markersize=4.5)
    axes.set_yticks(range(len(cores)), [core.name for core in cores])
    axes.set_ylim(-0.6, len(cores) - 0.4)
    axes.set_xlabel(numbers.unit)
    axes.grid(axis="y", visible=False)
    _vertical_references(axes, numbers.references)
    return figure


def _vertical_references(axes: Axes, references: dict[str, float]) -> None:
    """As ``draw_references``, standing, with the names above the axes; near neighbours share a label."""
    levels = sorted(references.items(), key=lambda item: item[1])
    low, high = axes.get_xlim()
    groups: list[list[tuple[str, float]]] = []
    for name, level in levels:
        axes.axvline(level, color=GREY, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        near = bool(groups) and level - groups[-1][-1][1] < 0.08 * (high - low)
        groups[-1].append((name, level)) if near else groups.append([(name, level)])
    for group in groups:
        axes.annotate(
            ", ".join(name.replace("_", " ") for name, _ in group),
            (group[0][1], 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            rotation=20,
            color=GREY,
            fontsize=6.2,
            annotation_clip=False,
        )


def _profile(numbers: Numbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        curve = core.curves["profile"]
        axes.step(curve.at, curve.estimate.value, where="post", **line_of(core.name, look))
        axes.fill_between(
            curve.at,
            curve.estimate.low,
            curve.estimate.high,
            step="post",
            color=look[core.name].colour,
            alpha=0.12,
            lw=0,
        )
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(f"{numbers.unit}, final quarter")
    axes.set_ylabel("share of runs above")
    _vertical_references(axes, numbers.references)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _improvement(numbers: Numbers, look: Looks) -> Figure:
    names = [core.name for core in numbers.cores]
    size = len(names)
    table = np.full((size, size), np.nan)
    for (one, other), found in numbers.improvement.items():
        table[names.index(one), names.index(other)] = found.value
    longest = max(map(len, names))
    side = min(WIDTH - 0.3 - 0.055 * longest, 0.5 * size)  # the names stand beside it
    figure, (axes,) = new_figure(side + 0.15 + 0.04 * longest)
    axes.imshow(table, cmap="PuOr_r", vmin=0.0, vmax=1.0)
    for (one, other), found in numbers.improvement.items():
        certain = bool(found.low > 0.5 or found.high < 0.5)
        dark = abs(float(found.value) - 0.5) > 0.32
        axes.text(
            names.index(other),
            names.index(one),
            f"{float(found.value):.2f}",
            ha="center",
            va="center",
            fontsize=7.0 if size <= 6 else 5.2,
            fontweight="bold" if certain else "normal",
            color="white" if dark else "black",
        )
    axes.set_xticks(range(size), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), names)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return figure


def _after_change(numbers: Numbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.2, len(numbers.cores)))
    starts: Array = np.empty(0)
    for core in numbers.cores:
        if "after_change" in core.curves:
            curve = core.curves["after_change"]
            starts = curve.at if len(curve.at) > len(starts) else starts
            draw_curve(
                axes,
                Curve(np.arange(len(curve.at), dtype=np.float64), curve.estimate),
                core.name,
                look[core.name],
                True,
            )
    ends = [*(f"{int(end) - 1}" for end in starts[1:]), "on"]
    words = [
        f"{int(start)}–{end}" if end != "on" else f"{int(start)} on" for start, end in zip(starts, ends, strict=True)
    ]
    axes.set_xticks(range(len(starts)), words)
    axes.set_xlabel("steps since the rule changed")
    axes.set_ylabel("reward per step")
    draw_references(axes, numbers.references if numbers.unit == "reward per step" else {})
    add_legend(figure, axes, len(numbers.cores))
    return figure
