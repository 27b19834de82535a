"""After a change of the hidden rule: how low, for how long, and what it cost.

Scores s_t are normalised and may be as noisy as rewards are: levels are means over a window of w steps. Changes are
given as the index of the first step under the new rule; a change's *segment* ends at the next change or with the life.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lifelong.experiments.metrics.aggregate import Array

# How far the level before a change must be above the random policy's for the change to be judged.
FLOOR = 0.25  # of the way from random to oracle
ERRORS = 3.0  # standard errors of the window's mean


class Recovery(NamedTuple):
    """Of the changes that can be judged, [C]."""

    change_step: NDArray[np.int64]
    steps: NDArray[np.int64]  # to recovery; where censored, the longest time that was seen to be too short
    censored: NDArray[np.bool_]


class SurvivalCurve(NamedTuple):
    """P(not recovered after t steps), a step function that falls at ``times``."""

    times: Array  # [E] distinct times of events, ascending
    survival: Array  # [E], just after each of them
    median: float  # first time at which at most half have not recovered; inf where that is never seen
    censored_share: float


class Drop(NamedTuple):
    """Of the changes that can be judged, [C]."""

    change_step: NDArray[np.int64]
    retained: Array  # score right after the change over the score before
    regret: Array  # what was lost against the score before, summed over the steps after the change


def recovery_times(
    score: ArrayLike,
    changes: Sequence[int],
    window: int,
    share: float = 0.9,
    floor: float = FLOOR,
    errors: float = ERRORS,
) -> Recovery:
    """tau = min {tau >= 0 : mean s over [t_c + tau, t_c + tau + w) >= share * s_ref}, s_ref the mean of the last w
    steps before the change.

    Right-censored where the segment ends first, so that means of ``steps`` say nothing: take ``kaplan_meier``. A
    change is left away where it cannot be judged: fewer than w steps before it since the last change, or after it
    in its segment; or nothing had clearly been learned that could be lost. What is left is ``len(steps)`` of
    ``len(changes)``; say so beside the curve.

    Learned is what is clearly above the random policy's level, 0, in the last w steps: s_ref >= ``floor``, and
    s_ref >= ``errors`` of its own standard errors, std(s) / sqrt(w). A random policy is above 0 in half of all windows,
    and is soon back at a level that was chance: without this it recovers faster than a learner. The standard error
    refuses chance where rewards are noisy or rare; the floor refuses it where they are smooth, so that a window's steps
    tell little about how far its mean moves.

    Args:
        score: [T].
        changes: ascending steps.
        window: w, in steps, 2 or more.
        share: how much of the former level counts as recovered.
        floor, errors: what counts as learned.
    """
    series = np.asarray(score, np.float64)
    sums = np.concatenate([[0.0], series.cumsum()])
    judged = []
    for start, stop, reference in _judged(series, changes, window, floor, errors):
        means = (sums[start + window : stop + 1] - sums[start : stop + 1 - window]) / window
        recovered = means >= share * reference
        censored = not recovered.any()
        judged.append((start, len(means) - 1 if censored else int(recovered.argmax()), censored))
    columns = list(zip(*judged, strict=True)) or [(), (), ()]
    return Recovery(np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.bool_))


def drops(score: ArrayLike, changes: Sequence[int], window: int, length: int) -> Drop:
    """How much of the score is left right after a change, and what the way back cost.

    retained = mean s over [t_c, t_c + w) / s_ref (the resilience of NS-Gym, Keplinger et al. 2025);
    regret A = sum over tau < L of max(s_ref - s_{t_c + tau}, 0).

    Args:
        score: [T]. For the regret it had better be smooth: of noise, the positive part alone is counted.
        changes, window: as in ``recovery_times``, and judged alike.
        length: L, in steps; segments that are shorter are counted to their end.
    """
    series = np.asarray(score, np.float64)
    steps, retained, regret = [], [], []
    for start, stop, reference in _judged(series, changes, window):
        steps.append(start)
        retained.append(series[start : start + window].mean() / reference)
        regret.append(np.maximum(reference - series[start : min(start + length, stop)], 0.0).sum())
    return Drop(np.array(steps, np.int64), np.array(retained, np.float64), np.array(regret, np.float64))


def kaplan_meier(steps: ArrayLike, censored: ArrayLike, weights: ArrayLike | None = None) -> SurvivalCurve:
    """S(t) = prod over event times t_i <= t of (1 - d_i / n_i) (Kaplan and Meier 1958).

    d_i is how many recover at t_i and n_i how many had not recovered nor left before: who is censored at t_i counts
    as having been there.

    Args:
        steps: [N], times of recovery or of leaving.
        censored: [N] bool, True for leaving.
        weights: [N], how often each is counted (for resampling); 1 by default.
    """
    times, left = np.asarray(steps, np.float64), np.asarray(censored, np.bool_)
    weight = np.ones_like(times) if weights is None else np.asarray(weights, np.float64)
    grid, place = np.unique(times, return_inverse=True)
    present = np.bincount(place, weight, len(grid))[::-1].cumsum()[::-1]
    events = np.bincount(place, weight * ~left, len(grid))
    kept = events > 0
    survival = np.cumprod(1.0 - events[kept] / present[kept])
    below = np.flatnonzero(survival <= 0.5 + 1e-12)  # a half of five factors is a half but for rounding
    median = grid[kept][below[0]] if len(below) else np.inf
    total = weight.sum()
    return SurvivalCurve(grid[kept], survival, float(median), float((weight * left).sum() / total) if total else 0.0)


def _judged(
    score: Array, changes: Sequence[int], window: int, floor: float = FLOOR, errors: float = ERRORS
) -> list[tuple[int, int, float]]:
    """Segment and former level of the changes that can be judged: (start, stop, s_ref)."""
    found = []
    edges = [0, *changes, len(score)]
    for (before, start), stop in zip(pairwise(edges), edges[2:], strict=False):
        if start - before >= window and stop - start >= window:
            last = score[start - window : start]
            reference = float(last.mean())
            error = float(last.std(ddof=1)) / window**0.5
            if reference >= floor and reference >= errors * error:
                found.append((start, stop, reference))
    return found
