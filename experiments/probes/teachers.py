"""The task of the regression probes: teachers that a memory has to find out from examples, and how well one could.

A token is  [ x_{t-1} | y_{t-1} | known | x_t ],  8 + 1 + 1 + 8 numbers, and y_t is to be predicted, which the next
token tells: the last transition and the present observation, as agents here see the world. Inputs are N(0, I) and
never repeat, so nothing can be looked up. Every teacher has mean square 1, and its answers are told with noise of
deviation 0.1. Saying 0 always has error 1.

    linear      y = w . x,   w ~ N(0, I / 8)
    sparse      the same with 2 of the 8 weights, N(0, 1/2), and the others zero
    two_layer   y = sqrt(2 / 8) sum_j a_j relu(u_j . x),   8 units, a_j ~ N(0, 1), u_j ~ N(0, I / 8)
    drift       linear, with w_{t+1} = sqrt(1 - s^2) w_t + s N(0, I / 8) of speed s
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.experiments.probes.learner import Learner

INPUTS, HIDDEN, SPARSE, NOISE = 8, 8, 2, 0.1
TOKEN = 2 * INPUTS + 2
STEPS, LIVES = 128, 8  # of a training batch
# Error of the linear function that fits a two-layer teacher best: of relu(z), z normal, it leaves 1/2 - 1/pi over.
BEST_LINEAR = 0.5 - 1 / math.pi
KINDS = ("linear", "sparse", "two_layer")
_SPEEDS = (1e-3, 0.3)  # of the drift in training, log-uniform between


class Lesson(NamedTuple):
    """tokens [B, T, F]; the inputs [B, T, 8], what the teacher says [B, T], and what is told of it, with noise."""

    tokens: Tensor
    inputs: Tensor
    clean: Tensor
    told: Tensor


def draw_lesson(kind: str, lives: int, steps: int, generator: torch.Generator, speed: Tensor | None = None) -> Lesson:
    """A teacher of ``kind`` per life; ``speed`` [B] makes a linear one drift."""
    inputs = torch.randn(lives, steps, INPUTS, generator=generator)
    clean = _answers(kind, inputs, generator, speed)
    return tell(inputs, clean, clean + NOISE * torch.randn(lives, steps, generator=generator))


def tell(inputs: Tensor, clean: Tensor, told: Tensor) -> Lesson:
    """The tokens of a lesson: each holds the example before it and the present input."""
    example = torch.cat([inputs, told.unsqueeze(-1), torch.ones_like(told).unsqueeze(-1)], -1)
    before = torch.nn.functional.pad(example, (0, 0, 1, 0))[:, :-1]
    return Lesson(torch.cat([before, inputs], -1), inputs, clean, told)


def _answers(kind: str, inputs: Tensor, generator: torch.Generator, speed: Tensor | None) -> Tensor:
    lives, steps, _ = inputs.shape
    if kind == "two_layer":
        first = torch.randn(lives, INPUTS, HIDDEN, generator=generator) / math.sqrt(INPUTS)
        second = torch.randn(lives, HIDDEN, 1, generator=generator) * math.sqrt(2 / HIDDEN)
        return ((inputs @ first).relu() @ second).squeeze(-1)
    if kind == "sparse":
        which = support(lives, generator)
        weights = torch.randn(lives, INPUTS, generator=generator) / math.sqrt(SPARSE) * which
        return (inputs @ weights.unsqueeze(-1)).squeeze(-1)
    weights = torch.randn(lives, INPUTS, generator=generator) / math.sqrt(INPUTS)
    if speed is None:
        return (inputs @ weights.unsqueeze(-1)).squeeze(-1)
    kept, moved = (1 - speed.square()).sqrt().unsqueeze(1), speed.unsqueeze(1) / math.sqrt(INPUTS)
    answers = []
    for t in range(steps):
        answers.append((inputs[:, t] * weights).sum(1))
        weights = kept * weights + moved * torch.randn(lives, INPUTS, generator=generator)
    return torch.stack(answers, 1)


def support(lives: int, generator: torch.Generator) -> Tensor:
    """Which two inputs matter, [B, 8] of zeros and ones."""
    chosen = torch.rand(lives, INPUTS, generator=generator).topk(SPARSE, 1).indices
    return torch.zeros(lives, INPUTS).scatter(1, chosen, 1.0)


def training_loss(learner: Learner, generator: torch.Generator) -> Tensor:
    """Mean squared error over every step; a quarter of the lives each linear, sparse, two-layer, drifting."""
    quarter = LIVES // 4
    low, high = map(math.log, _SPEEDS)
    speed = (low + (high - low) * torch.rand(quarter, generator=generator)).exp()
    lessons = [draw_lesson(kind, quarter, STEPS, generator) for kind in KINDS]
    lessons.append(draw_lesson("linear", quarter, STEPS, generator, speed))
    tokens, told = (torch.cat([getattr(lesson, name) for lesson in lessons]) for name in ("tokens", "told"))
    answers, _ = learner(tokens, learner.initial_state(LIVES))
    return torch.nn.functional.mse_loss(answers.squeeze(-1), told)


Kernel = Callable[[Tensor, Tensor], Tensor]


def linear_kernel(left: Tensor, right: Tensor) -> Tensor:
    """Covariance of a linear teacher's answers, [B, N, 8], [B, M, 8] -> [B, N, M]."""
    return left @ right.mT / INPUTS


def two_layer_kernel(left: Tensor, right: Tensor) -> Tensor:
    """Covariance of a two-layer teacher's answers (the arc-cosine kernel of order 1, Cho and Saul 2009)."""
    lengths = left.norm(dim=-1).unsqueeze(-1) * right.norm(dim=-1).unsqueeze(-2)
    cosine = ((left @ right.mT) / lengths).clamp(-1.0, 1.0)
    angle = cosine.acos()
    return lengths / (INPUTS * math.pi) * (angle.sin() + (math.pi - angle) * cosine)


def regress(kernel: Kernel, lesson: Lesson, examples: int) -> Tensor:
    """The answer [B] to input ``examples`` of the best estimate that is linear in the answers told before it:

        k(x, X) (k(X, X) + 0.1^2 I)^-1 y,

    which is ridge regression for the linear kernel, and optimal where answers are jointly normal.
    """
    seen, told, asked = (
        part.double()
        for part in (lesson.inputs[:, :examples], lesson.told[:, :examples], lesson.inputs[:, examples : examples + 1])
    )
    covariance = kernel(seen, seen) + NOISE**2 * torch.eye(examples, dtype=torch.float64)
    solved = torch.linalg.solve(covariance, told.unsqueeze(-1))
    return (kernel(asked, seen) @ solved).flatten()


def nearest(lesson: Lesson, examples: int) -> Tensor:
    """The answer told for the nearest input seen, [B]: what one gets who remembers tokens and no concept."""
    which = torch.cdist(lesson.inputs[:, examples : examples + 1], lesson.inputs[:, :examples]).argmin(-1)
    return lesson.told.gather(1, which).flatten()


def track(lesson: Lesson, speed: float) -> Tensor:
    """The answers [B, T] of the Kalman filter that knows the speed of the drift: the optimum. At speed 0 it is ridge
    regression.
    """
    lives, steps, _ = lesson.inputs.shape
    inputs, told = lesson.inputs.double(), lesson.told.double()
    mean = torch.zeros(lives, INPUTS, dtype=torch.float64)
    start = torch.eye(INPUTS, dtype=torch.float64).expand(lives, -1, -1) / INPUTS
    covariance, answers = start, []
    for t in range(steps):
        x = inputs[:, t]
        answers.append((x * mean).sum(1))
        spread = (covariance @ x.unsqueeze(-1)).squeeze(-1)
        gain = spread / ((x * spread).sum(1, keepdim=True) + NOISE**2)
        mean = mean + gain * (told[:, t] - answers[-1]).unsqueeze(1)
        covariance = covariance - gain.unsqueeze(2) * spread.unsqueeze(1)
        mean = math.sqrt(1 - speed**2) * mean
        covariance = (1 - speed**2) * covariance + speed**2 * start
    return torch.stack(answers, 1)
