"""A sequence of tasks: what the early ones lose, and what they give to the later ones.

Three conventions are in use and not comparable: Continual World (Wolczyk et al. 2021; COOM, Tomilin et al. 2023, has
the same), CORA (Powers et al. 2022) and MEAL (Tomilin et al. 2025). Functions say which they follow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lifelong.experiments.metrics.aggregate import Array

_TAIL = 5  # evaluations over which Continual World averages an end


def average_performance(performance: ArrayLike, tail: int = _TAIL) -> float:
    """Continual World's AP: (1 / N) sum_i p_i(T), each the mean of the last ``tail`` evaluations.

    Args:
        performance: [N, E], success in [0, 1] of each task at each evaluation of the whole sequence.
    """
    return float(np.asarray(performance, np.float64)[:, -tail:].mean())


def forgetting(performance: ArrayLike, tail: int = _TAIL) -> Array:
    """Continual World's F_i = p_i(end of training on i) - p_i(T), [N]; positive where something was lost.

    Args:
        performance: [N, E]; task i is trained during the i-th N-th of the E evaluations.
        tail: evaluations that each end is averaged over; no more than a task has.

    Raises:
        ValueError: fewer evaluations than tasks.
    """
    table = np.asarray(performance, np.float64)
    each = table.shape[1] // len(table)
    if each == 0:
        raise ValueError(f"{len(table)} tasks and {table.shape[1]} evaluations: every task needs one or more")
    tail = min(tail, each)
    ends = [table[i, (i + 1) * each - tail : (i + 1) * each].mean() for i in range(len(table))]
    lost: Array = np.array(ends) - table[:, -tail:].mean(axis=1)
    return lost


def forward_transfer(area: ArrayLike, alone: ArrayLike) -> Array:
    """Continual World's FT_i = (AUC_i - AUC_i^b) / (1 - AUC_i^b): what the tasks before did for learning task i.

    Args:
        area: [N] area under the training curve of each task in the sequence, as a mean of success in [0, 1].
        alone: [N] the same for an agent that learns it from scratch. Below 1.
    """
    sequence, scratch = np.asarray(area, np.float64), np.asarray(alone, np.float64)
    gained: Array = (sequence - scratch) / (1.0 - scratch)
    return gained


def relative_forward_transfer(area: ArrayLike, alone: ArrayLike) -> Array:
    """MEAL's FT_i = (AUC_i - AUC_i^b) / AUC_i^b. Arguments as of ``forward_transfer``; ``alone`` above 0."""
    sequence, scratch = np.asarray(area, np.float64), np.asarray(alone, np.float64)
    gained: Array = (sequence - scratch) / scratch
    return gained


def weighted_forgetting(after: ArrayLike, end: float) -> float:
    """MEAL's F = sum_t w_t max(p_end - p_t, 0) / p_end / sum_t w_t, w_t = exp(-2 t / T): early losses weigh more.

    Args:
        after: [T] performance in a task at the evaluations t = 0..T-1 after its training.
        end: p_end > 0, its performance when the training ended.
    """
    later = np.asarray(after, np.float64)
    weight = np.exp(-2.0 * np.arange(len(later)) / len(later))
    return float((weight * np.maximum(end - later, 0.0)).sum() / end / weight.sum())


def lost_area(area_again: float, area_first: float) -> float:
    """MEAL's loss of plasticity, max(0, 1 - AUC_rep / AUC_1): how much worse a repeated sequence is learned."""
    return max(0.0, 1.0 - area_again / area_first)


def isolated_forgetting(returns: ArrayLike) -> Array:
    """CORA's F_ij = r_i(before task j) - r_i(after task j), for j > i: what task j alone cost task i.

    Args:
        returns: [N, N + 1], evaluation of task i before any training (column 0) and after the training of task j
            (column j + 1), each row over the largest |return| of its task.

    Returns:
        [N, N]; NaN where j <= i.
    """
    table = np.asarray(returns, np.float64)
    later = np.triu(np.ones((len(table), len(table)), np.bool_), k=1)
    return np.where(later, table[:, :-1] - table[:, 1:], np.nan)


def zero_shot_transfer(returns: ArrayLike) -> Array:
    """CORA's Z_ij = r_i(after task j) - r_i(before task j), for j < i: what task j did for task i, unseen as yet.

    Args:
        returns: as in ``isolated_forgetting``.

    Returns:
        [N, N]; NaN where j >= i.
    """
    table = np.asarray(returns, np.float64)
    earlier = np.tril(np.ones((len(table), len(table)), np.bool_), k=-1)
    return np.where(earlier, table[:, 1:] - table[:, :-1], np.nan)
