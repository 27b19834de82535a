"""What policies that see the last transition earn is what the references say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lifelong.envs import make_env
from lifelong.envs.associative_recall import simulate_echo_return
from lifelong.envs.base import References
from lifelong.envs.batched import TensorEnv
from lifelong.envs.last_transition import (
    LastTransitionPolicy,
    Transition,
    answer_by_the_rule_of_the_payoff,
    echo_one_key,
    echo_one_value,
    echo_the_best_arm,
    echo_the_cue,
    measure_with_last_transition,
    win_stay_in_the_context,
    win_stay_lose_shift,
)

POLICIES: list[tuple[dict[str, Any], Callable[[Any], LastTransitionPolicy]]] = [
    ({"name": "long_tmaze", "corridor": 5}, lambda env: echo_the_cue),
    ({"name": "delayed_credit"}, lambda env: answer_by_the_rule_of_the_payoff(0.001, 10)),
    (
        {"name": "delayed_credit", "delay": 1, "hazard": 0.95, "noise": 1.0},
        lambda env: answer_by_the_rule_of_the_payoff(0.95, 1),
    ),
    ({"name": "delayed_credit", "delay": 2, "hazard": 0.95}, lambda env: answer_by_the_rule_of_the_payoff(0.95, 2)),
    ({"name": "drift_bandit"}, lambda env: win_stay_lose_shift(5, seed=0)),
    ({"name": "drift_bandit", "signal": "cue"}, lambda env: echo_the_best_arm),
    ({"name": "drift_bandit", "signal": "cue", "kind": "restless"}, lambda env: echo_the_best_arm),
    ({"name": "switching_bandit"}, lambda env: win_stay_in_the_context(env, seed=0)),
    (
        {"name": "switching_bandit", "contexts": 2, "actions": 3, "hazard": 0.2},
        lambda env: win_stay_in_the_context(env, seed=0),
    ),
    ({"name": "recall_stream"}, echo_one_key),
    ({"name": "recall_stream", "keys_per_group": [3, 2], "base": 6, "conjunctive": True}, echo_one_key),
    ({"name": "associative_recall"}, echo_one_value),
    ({"name": "associative_recall", "pairs": 2, "keys": 9}, echo_one_value),
]


@pytest.mark.parametrize(("config", "policy"), POLICIES, ids=[config["name"] for config, _ in POLICIES])
def test_what_is_known_to_be_earned_from_the_last_transition_is_earned(
    config: dict[str, Any], policy: Callable[[Any], LastTransitionPolicy]
) -> None:
    env = make_env({"num_lives": 256, "seed": 3, **config})
    assert isinstance(env, TensorEnv)
    references = env.references
    assert isinstance(references, References)
    assert references.last_transition is not None
    measured = measure_with_last_transition(env, policy(env), 300, references.per, burn_in=60)
    assert measured.agrees_with(references.last_transition), (measured, references.last_transition)


def test_the_step_before_is_empty_in_a_new_life() -> None:
    env = make_env({"name": "long_tmaze", "num_lives": 2, "seed": 0, "life_steps": 3})
    assert isinstance(env, TensorEnv)
    seen: list[Transition] = []

    def note(observation: torch.Tensor, before: Transition) -> torch.Tensor:
        seen.append(before)
        return torch.ones(2, dtype=torch.int64)

    measure_with_last_transition(env, note, 6, "step")
    assert [before.action.tolist() for before in seen] == [[0, 0], [1, 1], [1, 1]] * 2
    assert bool((seen[3].observation == 0).all())


def test_the_stored_echo_of_one_value_is_what_a_simulation_gives() -> None:
    references = make_env({"name": "associative_recall", "num_lives": 1, "seed": 0}).references
    assert references is not None
    assert references.last_transition is not None
    assert simulate_echo_return(4, 4, lives=512).agrees_with(references.last_transition)
