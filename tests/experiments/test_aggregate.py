"""Aggregates over runs: hand-worked numbers, and the numbers of the `rliable` package."""

from __future__ import annotations

import numpy as np
import pytest

from lifelong.experiments.metrics.aggregate import (
    Estimate,
    bootstrap,
    cluster_weights,
    estimate,
    frames_to_reach,
    interquartile_mean,
    intervals_part,
    percentile_interval,
    performance_profile,
    probability_of_improvement,
)


def strata(matrix):
    """rliable's [runs, environments, ...] as one [..., runs] per environment."""
    return [np.moveaxis(matrix[:, m], 0, -1) for m in range(matrix.shape[1])]


@pytest.fixture
def matrix():
    return np.random.default_rng(3).normal(0.5, 0.3, size=(7, 3))


def test_the_interquartile_mean_leaves_a_quarter_away_at_either_end():
    assert interquartile_mean([[100.0, 1.0, 2.0, 3.0, -50.0]]) == 2.0  # five runs: one goes at either end
    assert interquartile_mean([[1.0, 2.0], [3.0, 100.0]]) == 2.5  # pooled over environments
    assert interquartile_mean([[1.0, 2.0, 6.0]]) == 3.0  # three runs: none goes


def test_a_run_that_is_unknown_makes_the_mean_unknown():
    assert np.isnan(interquartile_mean([[np.nan, 1.0, 2.0, 3.0, 4.0]]))


def test_environments_may_have_different_numbers_of_runs():
    assert interquartile_mean([[0.0], [1.0, 2.0, 9.0]]) == 1.5


def test_the_probability_of_improvement_counts_pairs_and_half_of_ties():
    found = probability_of_improvement([[1.0, 2.0]], [[0.0, 2.0, 3.0]])
    assert found.value == pytest.approx((1.0 + 1.5) / 6)  # 1 beats 0; 2 beats 0 and ties with 2
    assert probability_of_improvement([[1.0, 2.0]], [[1.0, 2.0]]).value == 0.5
    assert probability_of_improvement([[3.0], [0.0]], [[1.0], [1.0]]).value == 0.5  # won in one, lost in the other


def test_the_profile_is_the_share_of_runs_above_a_threshold():
    found = performance_profile([[0.1, 0.5], [0.5, 0.9]], [0.0, 0.5, 0.95])
    assert found.value.tolist() == [1.0, 0.25, 0.0]  # strictly above
    assert found.low[0] == found.high[0] == 1.0
    assert found.low[1] == 0.0
    assert found.high[1] == 0.5


def test_frames_to_reach_are_those_of_the_first_point_and_infinite_for_a_run_that_fails():
    curves = [[0.1, 0.6, 0.4, 0.8], [0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.5, 0.5]]
    assert frames_to_reach([10, 20, 30, 40], curves, 0.5).tolist() == [20.0, np.inf, 10.0]


def test_the_same_seed_gives_the_same_interval_and_another_seed_another(matrix):
    first, again, other = (estimate(strata(matrix), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.value == other.value
    assert first.low != other.low


def test_runs_are_drawn_within_their_environment_and_not_across():
    """Two environments of constant scores: every resample has one half from each."""
    draws = bootstrap([np.zeros(4), np.ones(4)], lambda drawn: np.concatenate(drawn, -1).mean(-1), 50)
    assert (draws == 0.5).all()


def test_a_curve_is_resampled_by_whole_runs():
    """The second point is twice the first in every run, so it is in every resample."""
    runs = np.random.default_rng(0).normal(size=6)
    draws = bootstrap([np.stack([runs, 2 * runs])], interquartile_mean, 100)
    np.testing.assert_allclose(draws[1], 2 * draws[0])


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """IQM of 20 normal runs; the percentile bootstrap is a little short of 95 % at this size."""
    generator = np.random.default_rng(0)
    found = [estimate([generator.normal(size=20)], repetitions=400, seed=index) for index in range(300)]
    covered = np.mean([each.low <= 0.0 <= each.high for each in found])
    assert 0.87 <= covered <= 0.98


def test_seeds_are_drawn_whole_and_lives_within_them():
    weights = cluster_weights([2, 3], repetitions=4000, seed=0)
    first, second = weights[:, :2].sum(axis=1), weights[:, 2:].sum(axis=1)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == {(0, 6), (2, 3), (4, 0)}  # 0, 1 or 2 times each
    assert (first == 2).mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.06)


def test_lives_of_one_seed_do_not_count_as_independent():
    """Two seeds that differ, many equal lives: the interval spans both seeds, where lives alone would shrink it."""
    values = np.repeat([0.0, 1.0], 100)
    weights = cluster_weights([100, 100])
    low, high = percentile_interval(weights @ values / weights.sum(axis=1))
    assert (low, high) == (0.0, 1.0)


def test_intervals_part_only_where_they_do_not_touch():
    def between(low, high):
        return Estimate(np.float64((low + high) / 2), np.float64(low), np.float64(high))

    assert intervals_part(between(0.5, 0.6), between(0.3, 0.4))
    assert not intervals_part(between(0.3, 0.4), between(0.5, 0.6))
    assert not intervals_part(between(0.4, 0.6), between(0.3, 0.4))


class TestAgainstRliable:
    """The same numbers through the package of Agarwal et al. Its draws come from NumPy's global generator."""

    @pytest.fixture(autouse=True)
    def rliable(self):
        self.metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed")
        self.library = pytest.importorskip("rliable.library", reason="rliable is not installed")

    @pytest.mark.parametrize("shape", [(3, 1), (5, 2), (7, 3), (10, 1)])
    def test_point_estimates_are_equal(self, shape):
        x, y = np.random.default_rng(0).normal(size=(2, *shape)).round(1)  # rounded, so that some tie
        assert interquartile_mean(strata(x)) == pytest.approx(self.metrics.aggregate_iqm(x), rel=1e-14)
        expected = self.metrics.probability_of_improvement(x, y)
        assert probability_of_improvement(strata(x), strata(y)).value == pytest.approx(expected, rel=1e-14)
        thresholds = np.linspace(-2, 2, 9)
        profile = self.library.score_distributions(x, thresholds)
        np.testing.assert_allclose(performance_profile(strata(x), thresholds).value, profile, rtol=1e-14)

    def test_the_interval_is_equal_on_equal_draws(self, matrix):
        repetitions, seen = 200, []

        def record(scores):
            seen.append(scores.copy())
            return np.array([self.metrics.aggregate_iqm(scores)])

        _, intervals = self.library.get_interval_estimates({"core": matrix}, record, reps=repetitions)
        draws = np.stack(seen[-repetitions:])  # [repetitions, runs, environments]; the first is the point estimate
        values = interquartile_mean([draws[:, :, m] for m in range(draws.shape[2])])
        np.testing.assert_allclose(percentile_interval(values), intervals["core"][:, 0], rtol=1e-12)

    def test_intervals_of_our_own_draws_agree_within_the_error_of_the_bootstrap(self, matrix):
        np.random.seed(0)
        iqm = lambda scores: np.array([self.metrics.aggregate_iqm(scores)])  # noqa: E731
        _, intervals = self.library.get_interval_estimates({"core": matrix}, iqm, reps=5000)
        ours = estimate(strata(matrix), repetitions=20_000)
        np.testing.assert_allclose([ours.low, ours.high], intervals["core"][:, 0], atol=0.012)

        pair = {"pair": [matrix, matrix[:5] - 0.1]}
        probability = lambda x, y: np.array([self.metrics.probability_of_improvement(x, y)])  # noqa: E731
        _, intervals = self.library.get_interval_estimates(pair, probability, reps=400)
        ours = probability_of_improvement(*(strata(each) for each in pair["pair"]), repetitions=20_000)
        np.testing.assert_allclose([ours.low, ours.high], intervals["pair"][:, 0], atol=0.03)

        thresholds = np.linspace(0, 1, 6)
        _, bands = self.library.create_performance_profile({"core": matrix}, thresholds, reps=400)
        ours = performance_profile(strata(matrix), thresholds, repetitions=20_000)
        np.testing.assert_allclose([ours.low, ours.high], bands["core"], atol=1 / 21 + 1e-9)  # one run of 21

    def test_sample_efficiency_is_equal(self):
        curves = np.random.default_rng(1).normal(size=(5, 2, 4)).cumsum(axis=2)  # [runs, environments, frames]
        np.random.seed(0)
        iqm = lambda scores: np.array([self.metrics.aggregate_iqm(scores[..., f]) for f in range(4)])  # noqa: E731
        points, bands = self.library.get_interval_estimates({"core": curves}, iqm, reps=2000)
        ours = estimate(strata(curves), repetitions=20_000)
        np.testing.assert_allclose(ours.value, points["core"], rtol=1e-12)
        np.testing.assert_allclose([ours.low, ours.high], bands["core"], atol=0.15)
