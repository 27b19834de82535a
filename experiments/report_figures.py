"""The figures of a report, as PNG bytes: each a function of the report's numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from lifelong.experiments.metrics.aggregate import Array, Estimate
from lifelong.experiments.report_life import HEALTH, CoreLife, LifeNumbers
from lifelong.experiments.report_numbers import CoreNumbers, Curve, Numbers
from lifelong.experiments.report_style import GREY, RC, WIDTH, Look, add_legend, draw_references, looks, new_figure

Looks = dict[str, Look]

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
    "life": "Evaluation life, slow weights frozen: level means that nothing is lost with age.",
    "recall": "Right answers by the age of what is asked for, in online RL along one life.",
    "recovery": "Kaplan-Meier: share of changes of the hidden rule from which the agent has not yet recovered.",
    "recovery_by_decade": "Median steps to recover from a change, by the life step at which it came: level means that "
    "an old agent learns as fast as a young one. Missing where fewer than half are seen to recover.",
    "adaptation": "Reward by steps since the hidden rule changed, over the whole life.",
    "cost": "Cost of a step and size of the state over the life.",
    "health": "Health of the memory over the life.",
}
_HEALTH_NAMES = {
    "state_norm": "norm",
    "effective_rank": "effective rank",
    "state_max": "largest entry",
    "state_non_finite": "share not finite",
    "write_size": "write / state",
    "surprise_before": "surprise",
}


@dataclass(frozen=True)
class Picture:
    """A figure of a report."""

    name: str
    caption: str
    png: bytes


def make_looks(sections: Sequence[Numbers]) -> Looks:
    """One look for each core of the whole report."""
    return looks(core.name for numbers in sections for core in numbers.cores)


def section_pictures(numbers: Numbers, look: Looks) -> list[Picture]:
    """Learning curves, final quarter, profile, pairs, adaptation."""
    pictures = [_picture("learning", _learning, numbers, look), _picture("final", _final, numbers, look)]
    if max(core.seeds for core in numbers.cores) > 1:
        pictures.append(_picture("profile", _profile, numbers, look))
    if len(numbers.cores) > 1:
        pictures.append(_picture("improvement", _improvement, numbers, look))
    if any("after_change" in core.curves for core in numbers.cores):
        pictures.append(_picture("after_change", _after_change, numbers, look))
    return pictures


def life_pictures(numbers: LifeNumbers, look: Looks) -> list[Picture]:
    """What the evaluation lives hold of: score over the life, recall, recovery, cost, health."""
    there = {name for core in numbers.cores for name in core.curves}
    pictures = []
    if "life" in there:
        pictures.append(_picture("life", _life, numbers, look))
    if "recall" in there:
        pictures.append(_picture("recall", _recall, numbers, look))
    if "recovery" in there:
        pictures.append(_picture("recovery", _recovery, numbers, look))
    if "recovery_by_decade" in there:
        pictures.append(_picture("recovery_by_decade", _recovery_by_decade, numbers, look))
    if "adaptation" in there:
        pictures.append(_picture("adaptation", _adaptation, numbers, look))
    if any(name.startswith("cost_") for name in there):
        pictures.append(_picture("cost", _cost, numbers, look))
    if any(name.startswith("health_") for name in there):
        pictures.append(_picture("health", _health, numbers, look))
    return pictures


def _picture(name: str, draw: Callable[..., Figure], numbers: Numbers | LifeNumbers, look: Looks) -> Picture:
    with rc_context(RC):
        stream = io.BytesIO()
        # No software version in the file: the same numbers give the same bytes.
        draw(numbers, look).savefig(stream, format="png", metadata={"Software": None})
    return Picture(name, _CAPTIONS[name], stream.getvalue())


def _learning(numbers: Numbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(_height(2.3, len(numbers.cores)))
    for core in numbers.cores:
        for run in core.single_runs if len(numbers.cores) <= 4 else []:
            axes.plot(core.curves["learning"].at, run, color=look[core.name].colour, linewidth=0.4, alpha=0.45)
        _draw(axes, core.curves["learning"], core.name, look[core.name])
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
    figure, (axes,) = new_figure(_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        curve = core.curves["profile"]
        axes.step(curve.at, curve.estimate.value, where="post", color=look[core.name].colour, **_line(core, look))
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
    figure, (axes,) = new_figure(_height(2.2, len(numbers.cores)))
    starts: Array = np.empty(0)
    for core in numbers.cores:
        if "after_change" in core.curves:
            curve = core.curves["after_change"]
            starts = curve.at if len(curve.at) > len(starts) else starts
            _draw(
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


def _life(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(_height(2.2, len(numbers.cores)))
    _draw_all(axes, numbers.cores, "life", look)
    axes.set_xlim(left=0)
    axes.set_xlabel("life step")
    axes.set_ylabel(numbers.unit)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    draw_references(axes, numbers.references)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _recall(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(_height(2.2, len(numbers.cores)))
    _draw_all(axes, numbers.cores, "recall", look)
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("age, in steps since it was shown")
    axes.set_ylabel("P(right answer)")
    draw_references(axes, {} if numbers.chance is None else {"guessing": numbers.chance})
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _recovery(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        if "recovery" in core.curves:
            curve, colour = core.curves["recovery"], look[core.name].colour
            at = curve.at + 1.0  # a logarithmic axis has no place for 0
            axes.step(at, curve.estimate.value, where="post", color=colour, **_line(core, look))
            axes.fill_between(at, curve.estimate.low, curve.estimate.high, step="post", color=colour, alpha=0.15, lw=0)
    axes.axhline(0.5, color=GREY, linewidth=0.7, linestyle=(0, (4, 2)))
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("1 + steps since the rule changed")
    axes.set_ylabel("share not recovered")
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _recovery_by_decade(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        if "recovery_by_decade" in core.curves:
            curve = core.curves["recovery_by_decade"]
            seen = Estimate(*(np.where(np.isfinite(each), each, np.nan) + 1.0 for each in curve.estimate))
            _draw(axes, Curve(curve.at, seen), core.name, look[core.name], markers=True)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("life step of the change, from")
    axes.set_ylabel("1 + median steps to recover")
    _label_logarithm(axes)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _adaptation(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        if "adaptation" in core.curves:
            curve = core.curves["adaptation"]
            _draw(axes, Curve(curve.at + 1.0, curve.estimate), core.name, look[core.name])
    axes.set_xscale("log")
    axes.set_xlabel("1 + steps since the rule changed")
    axes.set_ylabel("reward per step")
    draw_references(axes, numbers.reward_references)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _cost(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, axes = new_figure(_height(1.9, len(numbers.cores)), columns=2)
    for place, key, word in ((0, "cost_microseconds", "µs per step"), (1, "cost_state_bytes", "bytes of state a life")):
        _draw_all(axes[place], numbers.cores, key, look, markers=True)
        axes[place].set_xscale("log")
        axes[place].set_xlabel("life step")
        axes[place].set_ylabel(word)
        axes[place].set_yscale("log")
        _label_logarithm(axes[place])
    add_legend(figure, axes[0], len(numbers.cores))
    return figure


def _label_logarithm(axes: Axes) -> None:
    """A logarithmic axis that spans less than a decade has no labels: let it span one."""
    low, high = axes.get_ylim()
    if high < 10.0 * low:
        centre = (low * high) ** 0.5
        axes.set_ylim(centre / 4.0, centre * 4.0)
    subdivided = axes.get_ylim()[1] < 1e3 * axes.get_ylim()[0]
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if subdivided else (1.0,), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _health(numbers: LifeNumbers, look: Looks) -> Figure:
    known = [key for key in HEALTH if any(f"health_{key}" in core.curves for core in numbers.cores)]
    rows = -(-len(known) // 2)
    figure, axes = new_figure(_height(1.25 * rows + 0.2, len(numbers.cores)), rows=rows, columns=min(2, len(known)))
    for place, key in zip(axes, known, strict=False):
        _draw_all(place, numbers.cores, f"health_{key}", look)
        place.set_title(_HEALTH_NAMES[key], pad=3)
        place.set_xscale("log")
        place.yaxis.set_major_locator(MaxNLocator(4))
        if key == "state_non_finite":
            place.set_ylim(-0.05, 1.05)
    for place in axes[-2:]:
        place.set_xlabel("life step")
    for place in axes[len(known) :]:
        place.set_visible(False)
    add_legend(figure, axes[0], len(numbers.cores))
    return figure


def _draw_all(axes: Axes, cores: Sequence[CoreLife], key: str, look: Looks, markers: bool = False) -> None:
    for core in cores:
        if key in core.curves:
            curve = core.curves[key]
            _draw(axes, curve, core.name, look[core.name], markers or len(curve.at) < 16)


def _draw(axes: Axes, curve: Curve, name: str, look: Look, markers: bool = False) -> None:
    """A line with its band; a point alone where that is all."""
    value, low, high = curve.estimate
    marker = look.marker if markers or len(curve.at) < 2 else ""
    axes.plot(curve.at, value, color=look.colour, linestyle=look.line, label=name, marker=marker, markersize=3)
    axes.fill_between(curve.at, low, high, color=look.colour, alpha=0.15, linewidth=0)


def _line(core: CoreNumbers | CoreLife, look: Looks) -> dict[str, Any]:
    return {"linestyle": look[core.name].line, "label": core.name}


def _height(axes: float, cores: int) -> float:
    """Of a figure whose legend stands below."""
    return axes + (0.15 * -(-cores // 3) if cores > 1 else 0.0)
