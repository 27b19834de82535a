"""From many runs to one number and how sure it is.

Definitions of Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice*, and equal to
their package ``rliable`` on the same numbers (a test): interquartile mean, stratified bootstrap percentile interval,
performance profile, probability of improvement, sample efficiency.

Scores come as a list with one array per environment, runs along its last axis. The bootstrap draws runs with
replacement within each environment (the strata). Lives within seeds are drawn in two stages, seeds and then lives,
because lives of one seed share their weights and are not independent: ``cluster_weights``.

Every function that draws takes a seed, so that the same runs give the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Statistic = Callable[[list[Array]], Array]

_REPETITIONS = 2_000
_COVERAGE = 0.95


class Estimate(NamedTuple):
    """A number and its 95 % interval; arrays where the number is one."""

    value: Array
    low: Array
    high: Array


def interquartile_mean(scores: Sequence[ArrayLike]) -> Array:
    """Mean of the middle half of all runs of all environments (IQM; the 25 % trimmed mean of Agarwal et al. 2021).

    Args:
        scores: one array per environment, [..., runs].

    Returns:
        [...]; of n runs in all, floor(n / 4) are left away at either end. NaN where a run is NaN.
    """
    pooled = np.sort(np.concatenate([np.asarray(each, np.float64) for each in scores], axis=-1), axis=-1)
    cut = int(0.25 * pooled.shape[-1])
    kept = pooled[..., cut : pooled.shape[-1] - cut].mean(axis=-1)
    return np.where(np.isnan(pooled[..., -1]), np.nan, kept)  # sorted to the end, a NaN would be cut off unseen


def bootstrap(
    scores: Sequence[ArrayLike], statistic: Statistic, repetitions: int = _REPETITIONS, seed: int = 0
) -> Array:
    """The statistic of resampled runs: [..., repetitions].

    Args:
        scores: one array per environment, [..., runs]; the leading axes (thresholds, points of a curve) share the draw.
        statistic: takes arrays [..., repetitions, runs], one per environment, and gives [..., repetitions].
        repetitions: how many times all runs are drawn anew.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    drawn = []
    for each in scores:
        values = np.asarray(each, np.float64)
        runs = values.shape[-1]
        drawn.append(values[..., generator.integers(runs, size=(repetitions, runs))])
    return statistic(drawn)


def percentile_interval(draws: ArrayLike) -> tuple[Array, Array]:
    """The 95 % percentile interval over the last axis of a statistic's draws [..., repetitions]."""
    outside = (1.0 - _COVERAGE) / 2.0
    low, high = np.quantile(np.asarray(draws, np.float64), [outside, 1.0 - outside], axis=-1)
    return low, high


def estimate(
    scores: Sequence[ArrayLike],
    statistic: Statistic = interquartile_mean,
    repetitions: int = _REPETITIONS,
    seed: int = 0,
) -> Estimate:
    """A statistic of all runs with its stratified bootstrap interval.

    With one axis (runs) it is a number; with [points, runs] a curve, which is *sample efficiency* where the points are
    numbers of frames and the scores of all environments are normalised.
    """
    arrays = [np.asarray(each, np.float64) for each in scores]
    return Estimate(statistic(arrays), *percentile_interval(bootstrap(arrays, statistic, repetitions, seed)))


def performance_profile(
    scores: Sequence[ArrayLike], thresholds: ArrayLike, repetitions: int = _REPETITIONS, seed: int = 0
) -> Estimate:
    """Share of runs whose score exceeds each threshold: F(tau) = mean over environments and runs of [score > tau].

    Args:
        scores: one array [runs] per environment.
        thresholds: tau, [T].

    Returns:
        Estimates [T].
    """
    levels = np.asarray(thresholds, np.float64)[:, None]
    above = [(np.asarray(each, np.float64)[None, :] > levels).astype(np.float64) for each in scores]
    return estimate(above, lambda drawn: np.concatenate(drawn, axis=-1).mean(axis=-1), repetitions, seed)


def probability_of_improvement(
    scores: Sequence[ArrayLike], others: Sequence[ArrayLike], repetitions: int = _REPETITIONS, seed: int = 0
) -> Estimate:
    """P(a run of the one beats a run of the other) in the same environment, averaged over environments.

    P = mean over environments of mean over pairs of [x > y] + [x = y] / 2 (the Mann-Whitney statistic over the number
    of pairs). The bootstrap draws the runs of both sides independently.

    Args:
        scores, others: one array [runs] per environment, the same environments in the same order.
    """
    generator = np.random.default_rng(seed)
    values, draws = [], []
    for x, y in zip(scores, others, strict=True):
        first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
        wins = (first[:, None] > second) + 0.5 * (first[:, None] == second)
        counts = [generator.multinomial(n, np.full(n, 1.0 / n), size=repetitions) for n in wins.shape]
        values.append(wins.mean())
        draws.append(((counts[0] @ wins) * counts[1]).sum(axis=1) / wins.size)
    return Estimate(np.mean(values), *percentile_interval(np.mean(draws, axis=0)))


def frames_to_reach(frames: ArrayLike, scores: ArrayLike, level: float) -> Array:
    """Frames of the first point of each run's curve at or above ``level``; inf for a run that never gets there.

    Args:
        frames: [points], ascending.
        scores: [runs, points].
    """
    reached = np.asarray(scores, np.float64) >= level
    first = np.asarray(frames, np.float64)[reached.argmax(axis=1)]
    return np.where(reached.any(axis=1), first, np.inf)


def cluster_weights(lives: Sequence[int], repetitions: int = _REPETITIONS, seed: int = 0) -> Array:
    """How often each life is counted in each resample when seeds are drawn first and then lives within them.

    A ratio of sums over lives is then ``(weights @ numerator) / (weights @ denominator)``.

    Args:
        lives: number of lives of each seed.

    Returns:
        [repetitions, sum(lives)], seed after seed.
    """
    generator = np.random.default_rng(seed)
    seeds = len(lives)
    weights = []
    times_drawn = generator.multinomial(seeds, np.full(seeds, 1.0 / seeds), size=repetitions)
    for count, drawn in zip(lives, times_drawn.T, strict=True):
        weights.append(generator.multinomial(drawn * count, np.full(count, 1.0 / count)))
    return np.concatenate(weights, axis=1).astype(np.float64)


def intervals_part(better: Estimate, worse: Estimate) -> bool:
    """Whether the first interval lies wholly above the second: the only ground on which a report says "better"."""
    return bool(better.low > worse.high)
