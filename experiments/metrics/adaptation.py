"""Learning inside the life: return by the number of episodes since the rule last changed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lifelong.experiments.metrics.aggregate import Array


class AdaptationCurve(NamedTuple):
    """Over regimes (or trials), by episode k = 1..K since the change."""

    mean: Array  # [K]
    low: Array  # [K], the 20th percentile over regimes: how the worse ones fare
    area: float  # mean of ``mean``: area under the curve over K


def adaptation_curve(returns: ArrayLike) -> AdaptationCurve:
    """The curve by which XLand (Adaptive Agent Team 2023) and XLand-MiniGrid (Nikulin et al. 2024) are read.

    A memory that learns climbs from k = 1 on; one that does not is level.

    Args:
        returns: [R, K], return of the k-th episode under each of R regimes; NaN where the regime ended earlier.
            Every k has at least one.
    """
    table = np.asarray(returns, np.float64)
    mean = np.nanmean(table, axis=0)
    return AdaptationCurve(mean, np.nanpercentile(table, 20, axis=0), float(mean.mean()))
