"""Can the network still learn? What needs more than one look at it.

Dormant units, the size of weights and of updates are measured in training: ``lifelong.agents.plasticity``; effective
rank, of a layer's outputs or of fast weights: ``lifelong.memory.health``. They take tensors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def covering_rank(values: ArrayLike, share: float = 0.99) -> int:
    """The least k whose k largest singular values hold ``share`` of the sum (srank, Kumar et al. 2021).

    What some code calls "stable rank"; that name is ||A||_F^2 / ||A||_2^2 elsewhere.

    Args:
        values: [K] singular values.
    """
    sigma = np.sort(np.asarray(values, np.float64))[::-1]
    total = sigma.sum()
    if total == 0.0:
        return 0
    return int(np.searchsorted(sigma.cumsum() / total, share - 1e-12)) + 1


def probe_plasticity(loss: ArrayLike, loss_from_scratch: ArrayLike) -> float:
    """Loss after n steps of regressing fresh random targets, over that from the initial weights (Lyle et al. 2023).

    1: as plastic as at birth; above 1: less.

    Args:
        loss, loss_from_scratch: [probes], the same targets and steps in both. Means are taken first: a ratio of sums.
    """
    return float(np.mean(np.asarray(loss, np.float64)) / np.mean(np.asarray(loss_from_scratch, np.float64)))
