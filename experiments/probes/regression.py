"""In-context regression: does the memory learn the concept behind its examples, or the examples?"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from lifelong.experiments.probes.learner import Memory
from lifelong.experiments.probes.probe import Curve, Panel, Probe, Progress, curve_of, value_at
from lifelong.experiments.probes.teachers import (
    BEST_LINEAR,
    KINDS,
    STEPS,
    Lesson,
    draw_lesson,
    linear_kernel,
    nearest,
    regress,
    two_layer_kernel,
)

_LIVES = 256
_EXAMPLES = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, STEPS - 1]


def measure_regression(memory: Memory, generator: torch.Generator, progress: Progress) -> dict[str, Curve]:
    """The squared error at inputs never seen, after N examples, for each kind of teacher."""
    curves = {}
    for kind in KINDS:
        progress(kind)
        lesson = draw_lesson(kind, _LIVES, STEPS, generator)
        answers, _ = memory(lesson.tokens, memory.initial_state(_LIVES))
        squares = (answers.squeeze(-1) - lesson.clean).square()
        curves[kind] = curve_of(list(_EXAMPLES), [squares[:, count] for count in _EXAMPLES])
    return curves


@cache
def _references(kind: str) -> dict[str, Curve | float]:
    lesson = draw_lesson(kind, _LIVES, STEPS, torch.Generator().manual_seed(0))

    def error(predict) -> Curve:  # type: ignore[no-untyped-def]
        squares: list[Tensor] = [(predict(count) - lesson.clean[:, count]).square() for count in _EXAMPLES]
        curve = curve_of(list(_EXAMPLES), squares)
        return Curve(curve.x, curve.y)

    levels: dict[str, Curve | float] = {"saying 0": 1.0, "nearest example": error(partial(nearest, lesson))}
    if kind == "linear":
        levels["ridge regression (optimal)"] = error(partial(regress, linear_kernel, lesson))
    if kind == "sparse":
        levels["ridge regression"] = error(partial(regress, linear_kernel, lesson))
        levels["ridge that knows the two inputs"] = error(partial(_regress_on_support, lesson))
    if kind == "two_layer":
        levels["best linear function, in the end"] = BEST_LINEAR
        levels["regression with the teacher's kernel"] = error(partial(regress, two_layer_kernel, lesson))
    return levels


def _regress_on_support(lesson: Lesson, examples: int) -> Tensor:
    """Ridge regression on the inputs that matter, which are read off the noiseless answers."""
    weights = torch.linalg.lstsq(lesson.inputs, lesson.clean.unsqueeze(-1)).solution.squeeze(-1)
    # Scaled so that the linear kernel of 8 inputs is that of the 2 that are left.
    mask = (weights.abs() > 1e-3).float() * (lesson.inputs.shape[-1] / 2) ** 0.5
    return regress(linear_kernel, lesson._replace(inputs=lesson.inputs * mask.unsqueeze(1)), examples)


def _panel(kind: str, title: str) -> Panel:
    return Panel(
        title, "examples seen", "squared error (1: knows nothing)", partial(_references, kind), log_x=True, log_y=True
    )


REGRESSION = Probe(
    "regression",
    good="a good memory falls as fast as the lowest line; one that only remembers examples stays at the nearest one",
    task="teachers",
    panels={
        "linear": _panel("linear", "A linear teacher"),
        "sparse": _panel("sparse", "A sparse linear teacher"),
        "two_layer": _panel("two_layer", "A two-layer teacher"),
    },
    measure=measure_regression,
    headline=lambda curves: value_at(curves["linear"], 32),
    headline_says="squared error after 32 examples of a linear teacher",
)
