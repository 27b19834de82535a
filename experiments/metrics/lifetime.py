"""The whole of a life in one number: lifetime average, lifetime score, dynamic regret.

A life is a series of rewards r_t, t = 1..T, beside the reward rates that the random policy and the oracle have at each
step (numbers, or series where the world's changes move them).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lifelong.experiments.metrics.aggregate import Array


class LifetimeScore(NamedTuple):
    """Of the whole life, and of its second half: the gap between them is learning, or decay."""

    whole: float
    second_half: float


class DynamicRegret(NamedTuple):
    """What the oracle got and the agent did not."""

    total: float
    per_step: float
    per_change: Array  # [C]: from each change to the next, the last to the end of the life


def lifetime_average(rewards: ArrayLike) -> float:
    """R = (1 / T) sum_t r_t: the objective of average-reward RL (Mahadevan 1996), over a life of T steps.

    Args:
        rewards: [T].
    """
    return float(np.mean(np.asarray(rewards, np.float64)))


def normalised_score(rewards: ArrayLike, random: ArrayLike, oracle: ArrayLike) -> Array:
    """s_t = (r_t - random_t) / (oracle_t - random_t), for series of rewards or of window means.

    Args:
        rewards: [...]; random, oracle: numbers or of the same shape.
    """
    low, high = np.asarray(random, np.float64), np.asarray(oracle, np.float64)
    score: Array = (np.asarray(rewards, np.float64) - low) / (high - low)
    return score


def lifetime_score(rewards: ArrayLike, random: ArrayLike, oracle: ArrayLike, half: int | None = None) -> LifetimeScore:
    """S = sum_t (r_t - random_t) / sum_t (oracle_t - random_t).

    A ratio of sums and not a mean of ratios: stretches in which there is little to win weigh little.

    Args:
        rewards: [T], T >= 2; random, oracle: numbers or [T]. Or the sums of all three over stretches of the life.
        half: index at which the second half begins, where that is not the middle (stretches may be unequal).
    """
    series = np.asarray(rewards, np.float64)
    won, winnable = np.broadcast_arrays(series - np.asarray(random), np.subtract(oracle, random, dtype=np.float64))
    half = len(series) // 2 if half is None else half
    return LifetimeScore(
        float(won.sum() / winnable.sum()),
        float(won[half:].sum() / winnable[half:].sum()),
    )


def dynamic_regret(rewards: ArrayLike, oracle: ArrayLike, changes: Sequence[int] = ()) -> DynamicRegret:
    """Reg = sum_t (oracle_t - r_t), against the oracle of the moment (dynamic regret, Zinkevich 2003).

    Args:
        rewards: [T]; oracle: number or [T].
        changes: steps, ascending, at which the hidden rule changed: the index of the first reward under the new rule.
    """
    lost = np.broadcast_to(np.asarray(oracle, np.float64), np.shape(rewards)) - np.asarray(rewards, np.float64)
    edges = [*changes, len(lost)]
    per_change = [lost[start:stop].sum() for start, stop in pairwise(edges)]
    return DynamicRegret(float(lost.sum()), float(lost.mean()), np.array(per_change, np.float64))
