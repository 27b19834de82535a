"""The figures of evaluation lives: each a function of a report's numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from lifelong.experiments.metrics.aggregate import Estimate
from lifelong.experiments.report_life import HEALTH, CoreLife, LifeNumbers
from lifelong.experiments.report_numbers import Curve
from lifelong.experiments.report_style import (
    GREY,
    Looks,
    Picture,
    add_legend,
    draw_curve,
    draw_references,
    figure_height,
    line_of,
    new_figure,
    paint,
)

_CAPTIONS = {
    "life": "Along the life: level means that nothing is lost with age.",
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


def life_pictures(numbers: LifeNumbers, look: Looks) -> list[Picture]:
    """What the evaluation lives hold of: score over the life, recall, recovery, cost, health."""
    curves = {name for core in numbers.cores for name in core.curves}
    there = {name.partition("_")[0] if name.startswith(("cost_", "health_")) else name for name in curves}
    figures = {
        "life": _life,
        "recall": _recall,
        "recovery": _recovery,
        "recovery_by_decade": _recovery_by_decade,
        "adaptation": _adaptation,
        "cost": _cost,
        "health": _health,
    }
    return [paint(name, _CAPTIONS[name], draw, numbers, look) for name, draw in figures.items() if name in there]


def _life(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.2, len(numbers.cores)))
    _draw_all(axes, numbers.cores, "life", look)
    axes.set_xlim(left=0)
    axes.set_xlabel("life step")
    axes.set_ylabel(numbers.unit)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    draw_references(axes, numbers.references)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _recall(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.2, len(numbers.cores)))
    _draw_all(axes, numbers.cores, "recall", look)
    _logarithmic_steps(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("age, in steps since it was shown")
    axes.set_ylabel("P(right answer)")
    draw_references(axes, {} if numbers.chance is None else {"guessing": numbers.chance})
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _recovery(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        if "recovery" in core.curves:
            curve, colour = core.curves["recovery"], look[core.name].colour
            at = curve.at + 1.0  # a logarithmic axis has no place for 0
            axes.step(at, curve.estimate.value, where="post", **line_of(core.name, look))
            axes.fill_between(at, curve.estimate.low, curve.estimate.high, step="post", color=colour, alpha=0.15, lw=0)
    axes.axhline(0.5, color=GREY, linewidth=0.7, linestyle=(0, (4, 2)))
    _logarithmic_steps(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("1 + steps since the rule changed")
    axes.set_ylabel("share not recovered")
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _recovery_by_decade(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        if "recovery_by_decade" in core.curves:
            curve = core.curves["recovery_by_decade"]
            seen = Estimate(*(np.where(np.isfinite(each), each, np.nan) + 1.0 for each in curve.estimate))
            draw_curve(axes, Curve(curve.at, seen), core.name, look[core.name], markers=True)
    _logarithmic_steps(axes)
    axes.set_yscale("log")
    axes.set_xlabel("life step of the change, from")
    axes.set_ylabel("1 + median steps to recover")
    _label_logarithm(axes)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _adaptation(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, (axes,) = new_figure(figure_height(2.2, len(numbers.cores)))
    for core in numbers.cores:
        if "adaptation" in core.curves:
            curve = core.curves["adaptation"]
            draw_curve(axes, Curve(curve.at + 1.0, curve.estimate), core.name, look[core.name])
    _logarithmic_steps(axes)
    axes.set_xlabel("1 + steps since the rule changed")
    axes.set_ylabel("reward per step")
    draw_references(axes, numbers.reward_references)
    add_legend(figure, axes, len(numbers.cores))
    return figure


def _cost(numbers: LifeNumbers, look: Looks) -> Figure:
    figure, axes = new_figure(figure_height(1.9, len(numbers.cores)), columns=2)
    for place, key, word in ((0, "cost_microseconds", "µs per step"), (1, "cost_state_bytes", "bytes of state a life")):
        _draw_all(axes[place], numbers.cores, key, look, markers=True)
        _logarithmic_steps(axes[place])
        axes[place].set_xlabel("life step")
        axes[place].set_ylabel(word)
        axes[place].set_yscale("log")
        _label_logarithm(axes[place])
    add_legend(figure, axes[0], len(numbers.cores))
    return figure


def _logarithmic_steps(axes: Axes) -> None:
    """Steps on a logarithmic axis, with few and short labels whatever it spans. To be called when all is drawn."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 50.0 * low else (1.0,), numticks=9))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


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
    figure, axes = new_figure(
        figure_height(1.25 * rows + 0.2, len(numbers.cores)), rows=rows, columns=min(2, len(known))
    )
    for place, key in zip(axes, known, strict=False):
        _draw_all(place, numbers.cores, f"health_{key}", look)
        place.set_title(_HEALTH_NAMES[key], pad=3)
        _logarithmic_steps(place)
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
            draw_curve(axes, curve, core.name, look[core.name], markers or len(curve.at) < 16)
