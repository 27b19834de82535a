"""Reward rates and returns on series worked out by hand."""

from __future__ import annotations

import torch

from lifelong.agents.statistics import LifeStatistics

NO = torch.zeros(2, dtype=torch.bool)


def flags(*values: bool) -> torch.Tensor:
    return torch.tensor(values)


def test_episodes_end_at_soft_resets_and_at_the_ends_of_lives_and_only_the_latter_restart_the_life():
    statistics = LifeStatistics(2)
    statistics.add(torch.tensor([1.0, 0.5]), NO, NO, None)
    statistics.add(torch.tensor([2.0, 0.5]), NO, flags(True, False), None)
    statistics.add(torch.tensor([4.0, 0.5]), flags(False, True), NO, None)
    assert list(statistics.returns) == [3.0, 1.5]
    assert list(statistics.lengths) == [2, 3]
    assert statistics.life_step.tolist() == [3, 0]
    metrics = statistics.metrics()
    assert metrics["rollout/ep_rew_mean"] == 2.25
    assert metrics["rollout/reward_rate"] == 8.5 / 6
    assert metrics["rollout/episodes"] == 2


def test_a_reward_rate_is_there_when_no_episode_ever_ends():
    statistics = LifeStatistics(2)
    for _ in range(5):
        statistics.add(torch.ones(2), NO, NO, None)
    assert statistics.metrics()["rollout/reward_rate"] == 1.0
    assert "rollout/ep_rew_mean" not in statistics.metrics()


def test_sums_and_counters_stay_exact_where_float32_and_int32_would_not():
    statistics = LifeStatistics(1)
    statistics.episode_return += 2.0**24
    statistics.episode_length += 2**31 - 1
    statistics.life_step += 2**31 - 1
    one = torch.zeros(1, dtype=torch.bool)
    for _ in range(3):
        statistics.add(torch.ones(1), one, one, None)
    assert float(statistics.episode_return) == 2.0**24 + 3
    assert int(statistics.episode_length) == int(statistics.life_step) == 2**31 + 2


def test_reward_is_told_apart_by_the_age_of_the_hidden_rule():
    statistics = LifeStatistics(2)
    statistics.add(torch.tensor([1.0, 0.0]), NO, NO, torch.tensor([0, 9]))
    statistics.add(torch.tensor([1.0, 0.0]), NO, NO, torch.tensor([10, 1000]))
    metrics = statistics.metrics()
    assert metrics["life/reward_after_change_0_10"] == 0.5
    assert metrics["life/reward_after_change_10_30"] == 1.0
    assert metrics["life/reward_after_change_300_on"] == 0.0
    assert "life/reward_after_change_30_100" not in metrics
