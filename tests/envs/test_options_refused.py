"""Options and uses that would give wrong figures, or none, are refused in one line."""

from typing import Any

import gymnasium
import pytest
import torch

import lifelong.envs  # noqa: F401  (registers the Gymnasium ids)
from lifelong.envs import make_env
from lifelong.envs.base import References
from lifelong.envs.schedules import make_schedule
from lifelong.envs.wrapper_lifetime import Lifetime
from lifelong.envs.wrapper_wind import Wind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "markov_stream", "noise": 1.0}, r"noise=1.0 is not allowed; allowed: .* below 1"),
        ({"name": "recall_stream", "filler": 1.0}, r"filler=1.0 is not allowed; allowed: .* below 1"),
        ({"name": "recall_stream", "keys_per_group": [10]}, r"keys_per_group=\[10\] .* leaves no step for a query"),
        ({"name": "recall_stream", "base": 2, "keys_per_group": [1, 2]}, r"leaves no step for a query"),
        ({"name": "recall_stream", "keys_per_group": 3}, r"keys_per_group=3 is not allowed; allowed: a list"),
        ({"name": "recall_stream", "conjunctive": "no"}, r"conjunctive='no' is not allowed; allowed: true or false"),
        (
            {"name": "drift_control", "velocities": "false"},
            r"velocities='false' is not allowed; allowed: true or false",
        ),
        ({"name": "forage", "period": 7}, r"period=7 is not allowed; allowed: even integers"),
        ({"name": "drift_torus", "wind": 1.0}, r"wind=1.0 is not allowed; allowed: 0 to 0.5"),
        ({"name": "long_tmaze", "corridor": 2**62}, r"corridor=\d+ is not allowed"),
    ],
)
def test_an_option_without_a_meaning_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"num_lives": 1, "seed": 0, **options})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "piecewise_linear", "times": 3, "values": [1.0]}, "times=3 is not allowed; allowed: a list"),
        ({"name": "composite", "parts": 3}, "parts=3 is not allowed; allowed: a list"),
    ],
)
def test_a_schedule_that_wants_a_list_says_so(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_schedule(config)


def test_the_actions_of_a_remap_are_a_list() -> None:
    remap = {"name": "action_remap", "actions": 3, "schedule": {"name": "constant"}}
    with pytest.raises(ValueError, match="action_remap: actions=3 is not allowed; allowed: a list"):
        make_env({"name": "gymnasium", "num_lives": 1, "seed": 0, "wrappers": [remap]})


def test_no_score_is_given_where_the_oracle_earns_no_more_than_random_actions() -> None:
    with pytest.raises(ValueError, match="no score: the oracle earns 1, no more than random actions, 1"):
        References(per="step", random=1.0, oracle=1.0).score(0.5)


def test_a_small_world_has_references() -> None:
    references = make_env({"name": "forage", "num_lives": 1, "seed": 0, "size": 4, "radius": 1}).references
    assert references is not None
    assert references.oracle > 0


def test_many_pairs_have_references_without_delay() -> None:
    references = make_env({"name": "associative_recall", "num_lives": 1, "seed": 0, "pairs": 500}).references
    assert references is not None
    assert (references.order_free, references.last_transition, references.oracle) == (None, None, 1.0)


def test_the_first_reset_takes_the_seed_given_to_make_vec() -> None:
    def first(**options: Any) -> Any:
        return gymnasium.make_vec("lifelong/GoalMemory-v0", num_envs=8, **options)

    given, (by_reset, _) = first(seed=3).reset()[0], first().reset(seed=3)
    assert (given == by_reset).all()
    alone = gymnasium.make("lifelong/GoalMemory-v0", seed=3).reset()[0]
    assert (alone == by_reset[0]).all()
    with pytest.raises(ValueError, match="num_lives=5 is no option here; give num_envs"):
        first(num_lives=5)


def test_an_action_out_of_range_is_named_with_its_life_and_step() -> None:
    env = make_env({"name": "gymnasium", "num_lives": 2, "seed": 0})
    env.reset()
    env.step(torch.tensor([0, 1]))
    with pytest.raises(
        ValueError, match=r"CartPole-v1: action 7 of life 1 is out of range; allowed: 0 to 1 \(at step 1"
    ):
        env.step(torch.tensor([0, 7]))


def test_a_foreign_wrapper_between_two_of_ours_is_refused() -> None:
    inner = Wind(gymnasium.make("CartPole-v1").unwrapped, schedule={"name": "constant"})
    Lifetime(inner, episodes=2)
    with pytest.raises(ValueError, match="lifetime: TimeLimit stands around the wrapper wind, whose life would begin"):
        Lifetime(gymnasium.wrappers.TimeLimit(inner, 10), episodes=2)
