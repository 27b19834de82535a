"""Recovery is counted only where something had clearly been learned: the random policy has nothing to recover."""

from __future__ import annotations

import numpy as np

from lifelong.experiments.metrics.recovery import recovery_times

STEPS, EVERY, WINDOW = 40_000, 50, 20
CHANGES = range(EVERY, STEPS, EVERY)
SINCE = np.arange(STEPS) % EVERY


def score(rate: float | np.ndarray, low: float = 0.25, high: float = 1.0) -> np.ndarray:
    """Of rewards that are 1 at this rate and 0 otherwise."""
    return ((np.random.default_rng(0).random(STEPS) < rate) - low) / (high - low)


def test_a_random_policy_is_hardly_ever_judged():
    random = score(0.25)
    assert len(recovery_times(random, CHANGES, WINDOW, floor=0.0, errors=0.0).steps) > 0.4 * len(CHANGES)
    assert len(recovery_times(random, CHANGES, WINDOW).steps) < 0.01 * len(CHANGES)


def test_a_learner_is_judged_nearly_always():
    assert len(recovery_times(score(np.where(SINCE < 15, 0.25, 0.95)), CHANGES, WINDOW).steps) > 0.99 * len(CHANGES)


def test_a_rare_reward_by_chance_is_nothing_learned():
    """One in a window is half of what the oracle gets, and less than a standard error."""
    rare = score(0.02, low=0.02, high=0.08)
    assert len(recovery_times(rare, CHANGES, WINDOW, errors=0.0).steps) > 0.2 * len(CHANGES)
    assert len(recovery_times(rare, CHANGES, WINDOW).steps) < 0.02 * len(CHANGES)


def test_a_level_that_drifts_slowly_around_the_random_one_is_nothing_learned():
    """No step of a window differs much from another, so that its standard error says nothing."""
    smooth = 0.2 * np.sin(2 * np.pi * np.arange(STEPS) / 777)
    assert len(recovery_times(smooth, CHANGES, WINDOW, floor=0.0).steps) > 0.3 * len(CHANGES)
    assert len(recovery_times(smooth, CHANGES, WINDOW).steps) == 0
