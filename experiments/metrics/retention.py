"""How far back a memory reaches: accuracy of recall against the age of what is asked for.

Ages are in steps and span decades, so everything here is on a logarithmic axis. What counts as independent is a
binding of a key to a value, not a query: asking the same thing twice tells little more. Intervals therefore resample
lives, and never queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lifelong.experiments.metrics.aggregate import Array


class RetentionCurve(NamedTuple):
    """By decade of age, g = 1..G: ages in [10^(g-1), 10^g)."""

    accuracy: Array  # [G], corrected for chance; NaN where nothing was asked
    queries: NDArray[np.int64]  # [G]


def chance_corrected(accuracy: ArrayLike, chance: float) -> Array:
    """(accuracy - chance) / (1 - chance): 0 for guessing, 1 for perfect recall."""
    corrected: Array = (np.asarray(accuracy, np.float64) - chance) / (1.0 - chance)
    return corrected


def retention_curve(ages: ArrayLike, correct: ArrayLike, chance: float, decades: int) -> RetentionCurve:
    """Chance-corrected accuracy of recall in each decade of age.

    Args:
        ages: [N] steps since what is asked for was shown, 1 or more; older than 10^decades is left away.
        correct: [N] bool.
        chance: accuracy of guessing.
        decades: G.
    """
    age = np.asarray(ages, np.int64)
    # By comparison and not by logarithm, whose rounding would put 1000 into the wrong decade.
    place = np.searchsorted(10 ** np.arange(decades + 1, dtype=np.int64), age, side="right") - 1
    inside = (place >= 0) & (place < decades)
    asked = np.bincount(place[inside], minlength=decades)
    hits = np.bincount(place[inside], np.asarray(correct, np.float64)[inside], minlength=decades)
    share = np.divide(hits, asked, out=np.full(decades, np.nan), where=asked > 0)
    return RetentionCurve(chance_corrected(share, chance), asked)


def decades_remembered(accuracy: ArrayLike) -> float:
    """sum_g Acc(g): a memory of exactly the last 10^d steps has d, one of everything G.

    Args:
        accuracy: [G] chance-corrected, by decade of *age* (``retention_curve``).
    """
    return float(np.sum(np.asarray(accuracy, np.float64)))


def decades_remembered_by_group(accuracy: ArrayLike, base: float = 10.0) -> float:
    """The same from groups of keys where group g is bound anew every base^g steps and asked for at any age up to that.

    A perfect memory of the last W = base^d steps answers min(1, W / base^g) of group g. Summed, that is d and a rest
    of 1/base + 1/base^2 + ... = 1 / (base - 1) from the groups that are too slow for it, which is taken off: for
    base 10, G * mean - 0.11. (Of the memory of everything, too much is taken off; it is one of *at least* G decades.)

    Args:
        accuracy: [G] chance-corrected, by *group*.
    """
    return max(0.0, float(np.sum(np.asarray(accuracy, np.float64))) - 1.0 / (base - 1.0))


def half_life(ages: ArrayLike, accuracy: ArrayLike) -> float:
    """The age at which chance-corrected accuracy first falls to one half, interpolated on the logarithm of age.

    Args:
        ages: [N] ascending, in steps; 0, which has no logarithm, is left away. accuracy: [N].

    Returns:
        inf where it never falls that low; 0 where it is that low from the first age on.
    """
    known = np.asarray(ages) > 0
    logs, levels = np.log10(np.asarray(ages, np.float64)[known]), np.asarray(accuracy, np.float64)[known]
    low = np.flatnonzero(levels <= 0.5)
    if not len(low):
        return float("inf")
    index = int(low[0])
    if index == 0:
        return 0.0
    share = (levels[index - 1] - 0.5) / (levels[index - 1] - levels[index])
    return float(10.0 ** (logs[index - 1] + share * (logs[index] - logs[index - 1])))
