"""Lives that are watched: their curves against slow definitions, and what is done to them for comparison."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from lifelong.agents import ActorCritic
from lifelong.agents.evaluation import Ablation, Evaluation
from lifelong.agents.life_curves import LifeCurves, bin_starts
from lifelong.envs import make_env
from lifelong.experiments.metrics.recovery import recovery_times
from lifelong.memory import make_core


def test_recovery_counted_step_by_step_is_that_of_the_whole_series() -> None:
    """Of lives that simply stop, as those of an evaluation do."""
    generator = np.random.default_rng(0)
    lives, steps, window = 6, 4000, 20
    changed = generator.random((lives, steps)) < 0.02
    changed[:, 0] = True
    changed[0, -90:] = False
    changed[0, [-90, -30]] = True  # thirty steps are too few to be seen to recover
    since = np.zeros((lives, steps), np.int64)
    reward = np.zeros((lives, steps))
    for life in range(lives):
        for t in range(steps):
            since[life, t] = 0 if changed[life, t] else since[life, t - 1] + 1
            reward[life, t] = generator.random() < 0.25 + 0.7 * (since[life, t] > 15)
    reward += 1e-3 * generator.random(reward.shape)  # no mean is at the level to be reached by a rounding error
    curves = LifeCurves(lives, (0.25, 1.0), window)
    for t in range(steps):
        curves.add(
            {"steps_since_change": torch.from_numpy(since[:, t].copy())},
            torch.zeros(lives, dtype=torch.int64),
            torch.from_numpy(reward[:, t].copy()),
            torch.zeros(lives, dtype=torch.bool),
            torch.full((lives,), t, dtype=torch.int64),
        )
    wanted: Counter[tuple[int, bool]] = Counter()
    for life in range(lives):
        changes = [t for t in range(1, steps) if changed[life, t]]
        found = recovery_times((reward[life] - 0.25) / 0.75, changes, window)
        wanted.update(zip(found.steps.tolist(), found.censored.tolist(), strict=True))
        if life == 0:
            assert (found.change_step[-1], found.censored[-1]) == (steps - 30, True)
    counted: Counter[tuple[int, bool]] = Counter()
    for row in curves.records()["recovery"]:
        counted[row["steps"], row["censored"]] += row["count"]
    assert sum(wanted.values()) > 100
    assert {True, False} == {censored for _, censored in wanted}
    assert counted == wanted
    rows = curves.records()["changes"]
    assert sum(row["judged"] for row in rows) == sum(wanted.values())
    assert sum(row["all"] for row in rows) == changed[:, 1:].sum()
    assert curves.records() == curves.records()  # looking changes nothing


def test_recovery_is_not_counted_where_the_random_level_is_unknown() -> None:
    curves = LifeCurves(1, level=None)
    for t in range(100):
        situation = {"steps_since_change": torch.tensor([t % 50])}
        nothing = torch.zeros(1, dtype=torch.int64)
        curves.add(situation, nothing, torch.ones(1), nothing.bool(), torch.tensor([t]))
    assert curves.records().keys() == {"adaptation"}


def test_recall_is_counted_by_age_and_life() -> None:
    curves = LifeCurves(2)
    asked = torch.tensor([True, True])
    for age, actions in ((1, [3, 0]), (9, [3, 3]), (10, [3, 3]), (11, [0, 3])):
        situation = {"query": asked, "age": torch.tensor([age, age]), "oracle_action": torch.tensor([3, 3])}
        nothing = torch.zeros(2, dtype=torch.bool)
        curves.add(situation, torch.tensor(actions), torch.zeros(2), nothing, torch.zeros(2, dtype=torch.int64))
    assert curves.records() == {
        "recall_by_age": [
            {"age": 1, "hits": [1, 0], "trials": [1, 1]},
            {"age": 5, "hits": [1, 1], "trials": [1, 1]},
            {"age": 10, "hits": [1, 2], "trials": [2, 2]},
        ]
    }
    assert bin_starts()[:8] == [0, 1, 3, 5, 10, 22, 47, 100]


def make_evaluation(ablation: Ablation | None = None, seed: int = 0) -> Evaluation:
    torch.manual_seed(0)
    env = make_env({"name": "switching_bandit", "num_lives": 4, "seed": 5, "hazard": 0.05})
    agent = ActorCritic(env.observation_spec, env.action_spec, make_core("gated_delta", 16, heads=2, head_dim=8))
    return Evaluation(env, agent, seed, ablation=ablation or Ablation())


def test_a_life_may_be_cut_and_gone_on_with_to_the_bit() -> None:
    whole, first, second = (make_evaluation() for _ in range(3))
    whole.run_to(37)
    wanted = whole.run_to(90)
    first.run_to(37)
    second.lives.env.reset()
    second.lives.env.load_state_dict(first.lives.env.state_dict())
    second.load_state_dict(first.state_dict())
    second.environment_loaded()
    assert second.run_to(90) == wanted
    assert second.curves.records() == whole.curves.records()


def test_a_frozen_memory_stays_what_it_was() -> None:
    evaluation = make_evaluation(Ablation(freeze_memory_at=10))
    evaluation.run_to(10)
    before = evaluation.lives.state.clone()
    assert bool((before["layer_0", "fast_weights"] != 0).any())
    evaluation.run_to(25)
    assert bool((evaluation.lives.state == before).all())


def test_a_life_that_begins_after_the_freeze_reads_the_reset_memory_to_its_end(scripted_env, make_agent) -> None:
    env = scripted_env(lives=8, steps=64, ends=0.01)
    evaluation = Evaluation(env, make_agent(env), ablation=Ablation(freeze_memory_at=5))
    evaluation.run_to(5)
    frozen = evaluation.lives.state.clone()
    evaluation.run_to(30)
    fresh = evaluation.agent.core.initial_state(8)
    ended = (env.terminated | env.truncated)[4:29].any(0)  # an end at step t resets before step t + 1
    assert 0 < int(ended.sum()) < 8
    for life in range(8):
        wanted = fresh if ended[life] else frozen
        assert bool((evaluation.lives.state[life] == wanted[life]).all()), life


def test_a_memory_that_is_reset_every_step_is_that_of_one_step() -> None:
    evaluation = make_evaluation(Ablation(reset_memory_every=1))
    evaluation.run_to(20)
    kept = evaluation.lives.state["layer_0", "fast_weights"]
    rank = torch.linalg.matrix_rank(kept)
    assert bool((rank <= 1).all())  # one write of one pair


def test_a_state_kept_in_half_precision_is_rounded_between_steps() -> None:
    evaluation = make_evaluation(Ablation(state_dtype="bfloat16"))
    evaluation.run_to(20)
    kept = evaluation.lives.state["layer_0", "fast_weights"]
    assert torch.equal(kept, kept.bfloat16().float())
