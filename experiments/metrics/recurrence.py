"""When an old regime comes back: is it learned anew, or remembered?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lifelong.experiments.metrics.aggregate import Array


class Savings(NamedTuple):
    """Of every return to a regime, [R]."""

    regime: NDArray[np.int64]
    gap: NDArray[np.int64]  # steps since the regime was last left
    savings: Array  # share of the first visit's cost that is spared


def savings(regimes: ArrayLike, starts: ArrayLike, cost: ArrayLike) -> Savings:
    """Savings of the k-th visit to a regime: 1 - A_k / A_1 (Ebbinghaus 1885), A the cost of adapting.

    0 is learning anew, 1 is remembering everything, below 0 the first visit has done harm. Regimes whose first visit
    cost nothing have none.

    Args:
        regimes: [C] int64, the regime of each segment of the life, in order.
        starts: [C] first step of each segment.
        cost: [C] adaptation regret of each segment (``recovery.drops``), or steps to recover.
    """
    regime, start, spent = np.asarray(regimes, np.int64), np.asarray(starts, np.int64), np.asarray(cost, np.float64)
    first: dict[int, float] = {}
    left: dict[int, int] = {}
    found = []
    for index, (name, begin, price) in enumerate(zip(regime.tolist(), start.tolist(), spent.tolist(), strict=True)):
        if name in first and first[name] > 0.0:
            found.append((name, begin - left[name], 1.0 - price / first[name]))
        first.setdefault(name, price)
        if index + 1 < len(start):
            left[name] = int(start[index + 1])
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    return Savings(np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.float64))


def savings_slope(gaps: ArrayLike, saved: ArrayLike) -> float:
    """Least-squares slope of savings against log10(gap), per decade: 0 for a memory that evicts nothing.

    NaN where all gaps are equal. A regime that returns at once (gap 0) is left away.

    Args:
        gaps: [R] steps; saved: [R].
    """
    gap, values = np.asarray(gaps, np.float64), np.asarray(saved, np.float64)
    logs, values = np.log10(gap[gap > 0]), values[gap > 0]
    centred = logs - logs.mean() if len(logs) else logs
    spread = (centred**2).sum()
    return float((centred * values).sum() / spread) if spread > 0 else float("nan")
