"""Counters of lives that have lasted 2^24 and 2^31 steps, in environments of Gymnasium and MiniGrid, and wrappers."""

from typing import Any

import pytest
import torch

from lifelong.envs import make_env
from lifelong.envs.gymnasium_env import GymnasiumEnv
from lifelong.envs.life_wrapper import ScheduledWrapper
from lifelong.envs.switch_world import SwitchWorldEnv

NEVER = {"name": "markov", "regimes": 2, "hazard": 0.0}
LONG_LIVES: dict[str, dict[str, Any]] = {
    "switch_world": {"name": "switch_world", "hazard": 0.0},
    "wrapped MiniGrid": {
        "name": "minigrid",
        "id": "MiniGrid-Empty-8x8-v0",
        "reset_memory": "life",
        "wrappers": [
            {"name": "continuing"},
            {"name": "goal_relocate", "schedule": NEVER},
            {"name": "action_remap", "schedule": NEVER},
            {"name": "wind", "schedule": NEVER},
            {"name": "observation_permute", "schedule": NEVER},
        ],
    },
    "wrapped CartPole": {
        "name": "gymnasium",
        "reset_memory": "life",
        "wrappers": [
            {"name": "continuing"},
            {"name": "action_remap", "schedule": NEVER},
            {"name": "drift_physics", "parameter": "gravity", "schedule": {"name": "constant", "level": 9.8}},
        ],
    },
}


def age(env: GymnasiumEnv, steps: int) -> None:
    """Let every counter of every layer say that so many steps have passed."""
    state = env.state_dict()
    state["life_step"] = torch.full_like(state["life_step"], steps)
    state["total_steps"] = steps
    env.load_state_dict(state)
    for environment in env.environments:
        layer: Any = environment
        while layer is not layer.unwrapped:
            if isinstance(layer, ScheduledWrapper):
                layer.clock.steps_since_change = steps
            layer = layer.env
        if isinstance(layer, SwitchWorldEnv):
            layer._since, layer.clock.steps_since_change = steps, steps
        if hasattr(layer, "step_count"):
            layer.step_count = steps


@pytest.mark.parametrize("start", [2**24 - 2, 2**31 - 5])
@pytest.mark.parametrize("which", list(LONG_LIVES))
def test_counters_stay_exact_past_the_limits_of_float32_and_int32(which: str, start: int) -> None:
    env = make_env({**LONG_LIVES[which], "num_lives": 2, "seed": 0})
    assert isinstance(env, GymnasiumEnv)
    env.reset()
    age(env, start)
    for t in range(1, 11):
        step = env.step(torch.zeros(2, dtype=torch.int64))
        state = env.state_dict()
        assert state["life_step"].tolist() == [start + t] * 2
        assert state["life_step"].dtype == torch.int64
        assert state["total_steps"] == start + t
        assert step.privileged["steps_since_change"].tolist() == [start + t] * 2
        assert step.privileged["steps_since_change"].dtype == torch.int64
        assert not (step.terminated | step.truncated).any()
    before = env.step(torch.zeros(2, dtype=torch.int64))
    env.load_state_dict(state)
    assert env.step(torch.zeros(2, dtype=torch.int64)).reward.equal(before.reward)
