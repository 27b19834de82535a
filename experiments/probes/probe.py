"""What a probe is: a question, how it is measured, and the levels that the answer is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lifelong.experiments.probes.learner import Memory

SHARE = (-0.03, 1.06)  # y_limits of a share

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Curve:
    """Points with their standard errors over lives; a reference may have none."""

    x: list[float]
    y: list[float]
    error: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Panel:
    """One plot: its axes, and the levels drawn behind the cores' curves."""

    title: str
    x_label: str
    y_label: str
    references: Callable[[], dict[str, Curve | float]]  # label: a curve, or a constant
    log_x: bool = False
    log_y: bool = False
    y_limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Probe:
    """One question.

    Attributes:
        good: what a good memory shows, in a sentence.
        task: which training a core needs before: a key of ``TASKS``.
        measure: (memory, generator, progress) -> a curve per panel; a panel may have several, as "panel: variant".
        headline: the one number for the table, off the measured curves, and what it says.
    """

    name: str
    good: str
    task: str
    panels: dict[str, Panel]
    measure: Callable[[Memory, torch.Generator, Progress], dict[str, Curve]]
    headline: Callable[[dict[str, Curve]], float]
    headline_says: str


def curve_of(x: Sequence[float], samples: list[Tensor]) -> Curve:
    """For each x the mean of ``samples`` [lives, ...], and its standard error with a life as the unit."""
    means, errors = [], []
    for sample in samples:
        per_life = sample.double().flatten(1).mean(1) if sample.dim() > 1 else sample.double()
        means.append(float(per_life.mean()))
        errors.append(float(per_life.std() / len(per_life) ** 0.5) if len(per_life) > 1 else 0.0)
    return Curve(list(map(float, x)), means, errors)


def value_at(curve: Curve, x: float) -> float:
    """The measured value at ``x``; the last one where the measurement ended before."""
    return next((y for at, y in zip(curve.x, curve.y, strict=True) if at >= x), curve.y[-1])
