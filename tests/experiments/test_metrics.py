"""The metrics of a life on series that are worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lifelong.experiments.metrics.adaptation import adaptation_curve
from lifelong.experiments.metrics.lifetime import dynamic_regret, lifetime_average, lifetime_score, normalised_score
from lifelong.experiments.metrics.plasticity import covering_rank, probe_plasticity
from lifelong.experiments.metrics.recovery import drops, kaplan_meier, recovery_times
from lifelong.experiments.metrics.recurrence import savings, savings_slope
from lifelong.experiments.metrics.retention import (
    chance_corrected,
    decades_remembered,
    decades_remembered_by_group,
    half_life,
    retention_curve,
)
from lifelong.experiments.metrics.transfer import (
    average_performance,
    forgetting,
    forward_transfer,
    isolated_forgetting,
    lost_area,
    relative_forward_transfer,
    weighted_forgetting,
    zero_shot_transfer,
)

# Lifetime


def test_the_lifetime_score_is_a_ratio_of_sums():
    """Half a life in which 10 could be won and 5 was, half in which 1 could be won and all was: 6 / 11."""
    score = lifetime_score([5.0, 1.0], random=[0.0, 0.0], oracle=[10.0, 1.0])
    assert score.whole == pytest.approx(6 / 11)
    assert score.second_half == 1.0
    assert normalised_score([5.0, 1.0], 0.0, [10.0, 1.0]).mean() == 0.75  # the mean of ratios, which it is not


def test_the_lifetime_score_is_zero_for_random_and_one_for_the_oracle():
    assert lifetime_score([0.25] * 4, 0.25, 0.75).whole == 0.0
    assert lifetime_score([0.75] * 4, 0.25, 0.75).whole == 1.0
    assert lifetime_average([1.0, 2.0, 6.0]) == 3.0


def test_long_lives_are_summed_in_float64():
    """A float32 sum of ones stops at 2^24."""
    rewards = np.ones(2**24 + 8, np.float32)
    assert dynamic_regret(rewards, 2.0).total == 2**24 + 8


def test_dynamic_regret_is_counted_from_change_to_change():
    found = dynamic_regret([1.0, 1.0, 0.0, 0.5, 0.0], oracle=1.0, changes=[2, 4])
    assert found.total == 2.5
    assert found.per_step == 0.5
    assert found.per_change.tolist() == [1.5, 1.0]
    assert dynamic_regret([1.0, 0.0], [1.0, 2.0]).per_change.size == 0


# Recovery


SCORE = [1.0, 1.0, 0.0, 0.0, 0.6, 1.0, 1.0, 0.2, 0.2, 0.2, 0.2]


def test_recovery_is_the_first_window_that_is_as_good_as_before():
    """Change at 2: windows of 2 hold 0, .3, .8, 1: nine tenths of 1 from tau = 3 on. At 7: never, 3 windows seen."""
    found = recovery_times(SCORE, changes=[2, 7], window=2)
    assert found.change_step.tolist() == [2, 7]
    assert found.steps.tolist() == [3, 2]
    assert found.censored.tolist() == [False, True]


def test_recovery_does_not_look_past_the_next_change():
    """The old level comes back at step 4, under the next rule. (That change has no level to come back to.)"""
    found = recovery_times([1, 1, 0, 0, 1, 1], changes=[2, 4], window=2)
    assert found.change_step.tolist() == [2]
    assert found.censored.tolist() == [True]


def test_a_change_that_cannot_be_judged_is_left_away():
    assert recovery_times(SCORE, changes=[1, 7], window=2).change_step.tolist() == [7]  # one step before the first
    assert recovery_times(SCORE, changes=[2, 10], window=2).change_step.tolist() == [2]  # one step after the last
    assert recovery_times([-1.0, 0.0, 1.0, 1.0], changes=[2], window=2).steps.size == 0  # nothing was known
    assert recovery_times(SCORE, changes=[], window=2).steps.size == 0


def test_a_level_that_does_not_fall_is_recovered_at_once():
    assert recovery_times(np.ones(10), changes=[5], window=3).steps.tolist() == [0]


def test_drop_and_regret_after_a_change():
    found = drops(SCORE, changes=[2, 7], window=2, length=3)
    assert found.retained == pytest.approx([0.0, 0.2])
    assert found.regret == pytest.approx([2.4, 2.4])  # 1 + 1 + 0.4; 3 x 0.8
    assert drops(SCORE, changes=[2, 7], window=2, length=100).regret == pytest.approx([2.4, 3.2])


def test_kaplan_meier_by_hand():
    """Six changes: recovered after 1, 3, 3, 5; left unrecovered at 2 and 4."""
    curve = kaplan_meier([1, 3, 2, 3, 5, 4], [False, False, True, False, False, True])
    assert curve.times.tolist() == [1.0, 3.0, 5.0]
    assert curve.survival == pytest.approx([5 / 6, 5 / 6 * 2 / 4, 0.0])
    assert curve.median == 3.0
    assert curve.censored_share == pytest.approx(1 / 3)


def test_who_leaves_at_the_time_of_a_recovery_was_there_before_it():
    assert kaplan_meier([2, 2], [True, False]).survival.tolist() == [0.5]


def test_a_median_that_is_never_seen_is_infinite():
    curve = kaplan_meier([1, 9, 9, 9], [False, True, True, True])
    assert curve.median == math.inf
    assert curve.survival.tolist() == [0.75]
    assert kaplan_meier([], []).median == math.inf


def test_weights_count_as_copies():
    steps, censored, weights = [1, 3, 2, 3], [False, False, True, True], [2, 0, 3, 1]
    copied = kaplan_meier(np.repeat(steps, weights), np.repeat(censored, weights))
    weighted = kaplan_meier(steps, censored, weights)
    assert weighted.times.tolist() == copied.times.tolist()
    np.testing.assert_allclose(weighted.survival, copied.survival)
    assert weighted[2:] == copied[2:]


def test_kaplan_meier_equals_scipy():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    steps, censored = generator.integers(1, 30, size=200), generator.random(200) < 0.3
    data = stats.CensoredData(uncensored=steps[~censored], right=steps[censored])
    expected = stats.ecdf(data).sf
    ours = kaplan_meier(steps, censored)
    np.testing.assert_allclose(expected.evaluate(ours.times), ours.survival, rtol=1e-12)
    assert ours.median == expected.quantiles[expected.probabilities <= 0.5][0]


# Retention


def test_recall_is_counted_in_decades_of_age_and_corrected_for_chance():
    ages = [1, 9, 10, 99, 100, 999, 1000, 5]
    correct = [1, 1, 1, 0, 0, 1, 1, 0]
    curve = retention_curve(ages, correct, chance=0.25, decades=3)
    assert curve.queries.tolist() == [3, 2, 2]  # 1000 is beyond the third decade
    assert curve.accuracy == pytest.approx([(2 / 3 - 0.25) / 0.75, 1 / 3, 1 / 3])
    assert chance_corrected([0.25, 1.0], 0.25).tolist() == [0.0, 1.0]


def test_decades_in_which_nothing_was_asked_have_no_accuracy():
    curve = retention_curve([5], [1], chance=0.5, decades=2)
    assert curve.accuracy[0] == 1.0
    assert math.isnan(curve.accuracy[1])


def test_a_memory_of_the_last_hundred_steps_remembers_two_decades():
    assert decades_remembered([1.0, 1.0, 0.0, 0.0]) == 2.0
    # By groups re-bound every 10^g steps it answers min(1, 100 / 10^g): 1, 1, 0.1, 0.01.
    assert decades_remembered_by_group([1.0, 1.0, 0.1, 0.01]) == pytest.approx(2.0, abs=0.002)
    assert decades_remembered_by_group([1.0, 0.5, 0.25, 0.125], base=2.0) == pytest.approx(1.0, abs=0.13)
    assert decades_remembered_by_group([0.0, 0.0]) == 0.0


def test_the_half_life_is_interpolated_on_the_logarithm_of_age():
    assert half_life([1, 10, 100, 1000], [1.0, 1.0, 0.0, 0.0]) == pytest.approx(10**1.5)
    assert half_life([1, 10], [0.9, 0.5]) == pytest.approx(10.0)
    assert half_life([1, 10], [0.9, 0.6]) == math.inf
    assert half_life([1, 10], [0.4, 0.9]) == 0.0
    assert half_life([0, 1, 10], [1.0, 0.9, 0.5]) == pytest.approx(10.0)
    assert half_life([0, 10], [1.0, 0.0]) == 0.0  # an age of 0 is left away


# Recurrence and adaptation


def test_savings_compare_a_return_with_the_first_visit():
    """Regime 7 costs 10, then 4 after a gap of 20 steps; regime 8 costs 5, then 6 after a gap of 10."""
    found = savings(regimes=[7, 8, 7, 8], starts=[0, 10, 30, 40], cost=[10.0, 5.0, 4.0, 6.0])
    assert found.regime.tolist() == [7, 8]
    assert found.gap.tolist() == [20, 10]
    assert found.savings == pytest.approx([0.6, -0.2])


def test_a_first_visit_that_cost_nothing_saves_nothing():
    assert savings([1, 2, 1], [0, 5, 9], [0.0, 3.0, 1.0]).savings.size == 0


def test_savings_without_eviction_do_not_depend_on_the_gap():
    assert savings_slope([10, 100, 1000], [0.7, 0.7, 0.7]) == pytest.approx(0.0)
    assert savings_slope([10, 100, 1000], [0.9, 0.6, 0.3]) == pytest.approx(-0.3)  # per decade
    assert savings_slope([0, 10, 100], [9.0, 0.5, 0.4]) == pytest.approx(-0.1)  # a gap of 0 is left away
    assert math.isnan(savings_slope([10, 10], [0.1, 0.2]))


def test_the_adaptation_curve_is_a_mean_over_regimes_by_episode():
    curve = adaptation_curve([[0.0, 1.0, math.nan], [1.0, 1.0, 1.0], [0.5, 0.25, 0.0]])
    assert curve.mean == pytest.approx([0.5, 0.75, 0.5])
    assert curve.low == pytest.approx([0.2, 0.55, 0.2])
    assert curve.area == pytest.approx(1.75 / 3)


# Transfer


def test_continual_world_counts_what_is_lost_from_the_end_of_a_task_to_the_end_of_all():
    performance = [[0.0, 0.8, 0.4, 0.2], [0.0, 0.0, 0.0, 1.0]]  # two tasks, two evaluations each
    assert forgetting(performance, tail=1) == pytest.approx([0.6, 0.0])
    assert forgetting(performance) == pytest.approx([0.1, 0.0])  # a task has two evaluations, not the usual five
    with pytest.raises(ValueError, match="2 tasks and 1 evaluations"):
        forgetting([[0.5], [0.5]])
    assert average_performance(performance, tail=1) == pytest.approx(0.6)
    assert average_performance(performance, tail=2) == pytest.approx(0.4)
    assert forward_transfer([0.6, 0.2], [0.2, 0.5]) == pytest.approx([0.5, -0.6])
    assert relative_forward_transfer([0.6, 0.2], [0.2, 0.5]) == pytest.approx([2.0, -0.6])


def test_meal_weighs_early_losses_more():
    weight = [1.0, math.exp(-1.0)]
    assert weighted_forgetting([0.25, 1.0], end=0.5) == pytest.approx(0.5 * weight[0] / sum(weight))
    assert weighted_forgetting([1.0, 0.25], end=0.5) == pytest.approx(0.5 * weight[1] / sum(weight))
    assert lost_area(0.3, 0.4) == pytest.approx(0.25)
    assert lost_area(0.5, 0.4) == 0.0


def test_cora_looks_at_one_task_at_a_time():
    returns = [[0.0, 1.0, 0.4], [0.1, 0.3, 0.9]]  # before; after task 0; after task 1
    lost, gained = isolated_forgetting(returns), zero_shot_transfer(returns)
    assert lost[0, 1] == pytest.approx(0.6)
    assert gained[1, 0] == pytest.approx(0.2)
    assert np.isnan(lost).sum() == np.isnan(gained).sum() == 3


# Plasticity


def test_the_covering_rank_by_hand():
    assert covering_rank([98.0, 1.0, 1.0]) == 2
    assert covering_rank([99.5, 0.5]) == 1
    assert covering_rank([0.0]) == 0


def test_lost_plasticity_is_a_ratio_of_sums():
    assert probe_plasticity([0.2, 0.4], [0.1, 0.1]) == pytest.approx(3.0)
