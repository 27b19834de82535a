"""Can the network still learn? Units that sleep, ranks that shrink, weights that grow; the health of fast weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lifelong.experiments.metrics.aggregate import Array


def dormant_share(activations: ArrayLike, threshold: float = 0.025) -> float:
    """Share of units i with E|h_i| / mean_k E|h_k| <= threshold (ReDo, Sokar et al. 2023).

    Relative to the layer's mean, so that a layer of small numbers is not asleep. MEAL's "dormant" (|h| < 0.01 per
    entry) is another quantity.

    Args:
        activations: [samples, units] of one layer.
        threshold: 0.025 in ReDo; 0 and 0.1 are reported too.
    """
    size = np.abs(np.asarray(activations, np.float64)).mean(axis=0)
    return float((size <= threshold * size.mean()).mean())


def singular_values(matrix: ArrayLike) -> Array:
    """Singular values of [..., rows, columns], descending."""
    return np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False)


def effective_rank(values: ArrayLike) -> float:
    """exp(-sum_i p_i ln p_i), p = sigma / sum sigma (Roy and Vetterli 2007); 0 for a matrix of zeros.

    Args:
        values: [K] singular values.
    """
    sigma = np.asarray(values, np.float64)
    total = sigma.sum()
    if total == 0.0:
        return 0.0
    share = sigma[sigma > 0.0] / total
    return float(np.exp(-(share * np.log(share)).sum()))


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


def root_mean_square(values: ArrayLike) -> float:
    """sqrt(mean x^2), of weights, gradients or a state."""
    return float(np.sqrt(np.square(np.asarray(values, np.float64)).mean()))


def update_ratio(before: ArrayLike, after: ArrayLike) -> float:
    """||after - before|| / ||before||: the size of an update, or of a write to fast weights, against what is there.

    inf where nothing was there and something was written, 0 where nothing was written.
    """
    old = np.asarray(before, np.float64)
    change, size = np.linalg.norm(np.asarray(after, np.float64) - old), np.linalg.norm(old)
    if change == 0.0:
        return 0.0
    return float(change / size) if size > 0.0 else float("inf")


def probe_plasticity(loss: ArrayLike, loss_from_scratch: ArrayLike) -> float:
    """Loss after n steps of regressing fresh random targets, over that from the initial weights (Lyle et al. 2023).

    1: as plastic as at birth; above 1: less.

    Args:
        loss, loss_from_scratch: [probes], the same targets and steps in both. Means are taken first: a ratio of sums.
    """
    return float(np.mean(np.asarray(loss, np.float64)) / np.mean(np.asarray(loss_from_scratch, np.float64)))
