"""Drift: a teacher that moves while it teaches. How fast may it move?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from lifelong.experiments.probes.learner import Memory
from lifelong.experiments.probes.probe import Curve, Panel, Probe, Progress, curve_of, value_at
from lifelong.experiments.probes.teachers import STEPS, Lesson, draw_lesson, track

_LIVES = 64
_SPEEDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.9]
_SETTLED = STEPS // 2  # errors are averaged from here on


def measure_drift(
    memory: Memory, generator: torch.Generator, progress: Progress, speeds: Sequence[float] = _SPEEDS
) -> dict[str, Curve]:
    """The mean squared error over the second half of the life, for each speed of the teacher."""

    def answers(lesson: Lesson, speed: float) -> Tensor:
        progress(f"speed {speed}")
        return memory(lesson.tokens, memory.initial_state(_LIVES))[0].squeeze(-1)

    return {"drift": _error(answers, generator, speeds)}


def _error(
    answers: Callable[[Lesson, float], Tensor], generator: torch.Generator, speeds: Sequence[float] = _SPEEDS
) -> Curve:
    squares = []
    for speed in speeds:
        lesson = draw_lesson("linear", _LIVES, STEPS, generator, torch.full((_LIVES,), speed))
        squares.append((answers(lesson, speed) - lesson.clean).square()[:, _SETTLED:])
    return curve_of(list(speeds), squares)


@cache
def _references() -> dict[str, Curve | float]:
    def never_forgets(lesson: Lesson, speed: float) -> Tensor:
        return track(lesson, 0.0)

    levels: dict[str, Curve | float] = {"saying 0": 1.0}
    for label, answers in (("ridge regression, never forgets", never_forgets), ("Kalman filter (optimal)", track)):
        curve = _error(answers, torch.Generator().manual_seed(0))
        levels[label] = Curve(curve.x, curve.y)
    return levels


DRIFT = Probe(
    "drift",
    good="a good memory stays near the Kalman filter, which knows how fast the teacher moves",
    task="teachers",
    panels={
        "drift": Panel(
            "Drift: a linear teacher whose weights wander",
            "speed s of the teacher: w <- sqrt(1 - s^2) w + s noise",
            "squared error (1: knows nothing)",
            _references,
            log_x=True,
            log_y=True,
        )
    },
    measure=measure_drift,
    headline=lambda curves: value_at(curves["drift"], 0.03),
    headline_says="squared error at speed 0.03",
)
