"""What ``from_vector_env`` promises: it equals the loop of our own, and no filler row gets through."""

import io
import os
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from lifelong.envs import BatchedEnv, EnvironmentFault, Step, from_vector_env, make_env

LIVES = 4
served_modes = pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])


class Stamp(gymnasium.Env):
    """Shows and pays the number of its step, counted over all episodes; episodes last three steps; fails at ``bad``."""

    observation_space = spaces.Dict({"count": spaces.Box(-1, 1e6, (1,), np.float32)})
    action_space = spaces.Discrete(2)

    def __init__(self, bad: int = -1) -> None:
        self.count, self.time, self.bad = 0, 0, bad

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return {"count": np.full(1, -1, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count, self.time = self.count + 1, self.time + 1
        shown = np.array([np.nan if self.count == self.bad else self.count], np.float32)
        return {"count": shown}, float(self.count), False, self.time == 3, {}


def cartpoles(mode: AutoresetMode, copy: bool = True) -> SyncVectorEnv:
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=25)
    return SyncVectorEnv([make] * LIVES, autoreset_mode=mode, copy=copy)


def actions(steps: int) -> list[Tensor]:
    return list(torch.randint(0, 2, (steps, LIVES), generator=torch.Generator().manual_seed(0)))


def run(env: BatchedEnv, plan: list[Tensor]) -> list[Step]:
    return [env.step(action) for action in plan]


def assert_same(left: list[Step], right: list[Step]) -> None:
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one.observation["observation"], other.observation["observation"])
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one[1:5], other[1:5], strict=True))
        assert (one.final_observation is None) == (other.final_observation is None)
        if one.final_observation is not None and other.final_observation is not None:
            over = one.terminated | one.truncated
            finals = [f.final_observation["observation"][over] for f in (one, other) if f.final_observation is not None]
            assert torch.equal(*finals)


@served_modes
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("reset_memory", ["episode", "life"])
def test_an_adapted_vector_environment_equals_our_own_loop(mode: AutoresetMode, copy: bool, reset_memory: Any) -> None:
    config = {"name": "gymnasium", "id": "CartPole-v1", "num_lives": LIVES, "max_episode_steps": 25}
    own = make_env({**config, "seed": 7, "reset_memory": reset_memory})
    adapted = from_vector_env(cartpoles(mode, copy), seed=7, reset_memory=reset_memory)
    assert torch.equal(own.reset()["observation"], adapted.reset()["observation"])
    expected, found = run(own, actions(150)), run(adapted, actions(150))  # all steps are kept before they are compared
    assert_same(expected, found)
    ends = torch.stack([torch.stack([s.terminated, s.truncated, s.soft_reset]).any(-1) for s in expected]).any(0)
    assert ends.tolist() == ([True, True, False] if reset_memory == "episode" else [False, False, True])
    assert adapted.lifelong == (reset_memory == "life")


@served_modes
def test_no_filler_row_reaches_the_batch(mode: AutoresetMode) -> None:
    env = from_vector_env(SyncVectorEnv([Stamp] * LIVES, autoreset_mode=mode, copy=False), seed=0)
    env.reset()
    steps = run(env, actions(12))
    for t, step in enumerate(steps, 1):  # every row is a step of the world: none is skipped, none is paid 0
        assert step.reward.tolist() == [float(t)] * LIVES
        over = t % 3 == 0
        assert step.truncated.tolist() == [over] * LIVES
        assert step.observation["count"].flatten().tolist() == [-1.0 if over else float(t)] * LIVES
        if over:
            assert step.final_observation is not None
            assert step.final_observation["count"].flatten().tolist() == [float(t)] * LIVES


def test_next_step_mode_is_refused_in_one_line_that_says_what_to_build() -> None:
    message = r"restarts episodes in mode NEXT_STEP; served are SAME_STEP and DISABLED: build it with autoreset_mode="
    with pytest.raises(ValueError, match=message) as caught:
        from_vector_env(cartpoles(AutoresetMode.NEXT_STEP), seed=0)
    assert "\n" not in str(caught.value)


def test_an_unstated_mode_is_refused() -> None:
    vector_env = cartpoles(AutoresetMode.SAME_STEP)
    del vector_env.metadata["autoreset_mode"]
    with pytest.raises(ValueError, match="does not state its autoreset mode"):
        from_vector_env(vector_env, seed=0)


class Batched(VectorEnv):
    """A vector environment that computes all its lives at once, hands out its buffers, and batches ``final_obs``."""

    single_observation_space = observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    single_action_space = action_space = spaces.Box(-1, 1, (1,), np.float64)
    num_envs = LIVES

    def __init__(self) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.state = np.zeros((LIVES, 1), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state[:] = self.np_random.random((LIVES, 1))
        return self.state, {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.state += np.abs(actions)
        terminated = self.state[:, 0] > 2
        infos = {"final_obs": self.state.copy()} if terminated.any() else {}
        self.state[terminated] = self.np_random.random((int(terminated.sum()), 1))
        return self.state, self.state[:, 0], terminated, np.zeros(LIVES, np.bool_), infos


def test_a_vector_environment_of_another_make_is_served_and_its_buffers_are_copied() -> None:
    env = from_vector_env(Batched(), seed=3)
    first = env.reset()["observation"]
    kept = first.clone()
    steps = run(env, [torch.full((LIVES, 1), 0.6)] * 20)
    assert torch.equal(first, kept)
    seen = torch.stack([first, *(s.observation["observation"] for s in steps)])
    for t, step in enumerate(steps):
        over = step.terminated
        going_on = seen[t] + 0.6
        assert torch.allclose(seen[t + 1][~over], going_on[~over])
        assert bool((going_on[over] > 2).all())
        if step.final_observation is not None:
            assert torch.allclose(step.final_observation["observation"][over], going_on[over])
    assert any(bool(s.terminated.any()) for s in steps)


def test_a_fault_names_the_life_and_the_step() -> None:
    environments = [Stamp, partial(Stamp, bad=5), Stamp]
    env = from_vector_env(SyncVectorEnv(environments, autoreset_mode=AutoresetMode.SAME_STEP), seed=0)
    env.reset()
    plan = [torch.zeros(3, dtype=torch.int64)] * 5
    run(env, plan[:4])
    with pytest.raises(
        EnvironmentFault, match=r"environment 1 \(.*\) failed in step 2 of its life \(step 5 .*'count' is nan"
    ):
        env.step(plan[4])


class Dies(gymnasium.Env):
    """Takes its process with it in the third step."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, at: int | None) -> None:
        self.left = at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left = None if self.left is None else self.left - 1
        if self.left == 0:
            os._exit(1)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_a_worker_that_dies_is_named_with_its_index_and_nothing_hangs() -> None:
    makers = [partial(Dies, at) for at in (None, 3, None)]
    vector_env = AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, context="fork")  # quick to start
    env = from_vector_env(vector_env, seed=0)
    env.reset()
    env.step(torch.zeros(3, dtype=torch.int64))
    env.step(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(EnvironmentFault, match=r"environment 1 .*failed in step 3 of its life.*: its process is gone"):
        env.step(torch.zeros(3, dtype=torch.int64))
    vector_env.close(terminate=True)


def test_an_exception_inside_names_the_step() -> None:
    class Raises(Stamp):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            raise OSError("simulator gone")

    env = from_vector_env(SyncVectorEnv([Raises], autoreset_mode=AutoresetMode.SAME_STEP), seed=0)
    env.reset()
    with pytest.raises(EnvironmentFault, match=r"failed in step 1: OSError: simulator gone"):
        env.step(torch.zeros(1, dtype=torch.int64))


@served_modes
def test_a_saved_state_goes_on_bit_for_bit_in_a_new_object(mode: AutoresetMode) -> None:
    env = from_vector_env(cartpoles(mode), seed=1)
    env.reset()
    plan = actions(120)
    run(env, plan[:60])
    buffer = io.BytesIO()
    torch.save(env.state_dict(), buffer)
    expected = run(env, plan[60:])
    buffer.seek(0)
    other = from_vector_env(cartpoles(mode), seed=2)
    other.load_state_dict(torch.load(buffer, weights_only=False))
    assert_same(run(other, plan[60:]), expected)


def test_a_vector_environment_that_cannot_be_pickled_says_so() -> None:
    vector_env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")], autoreset_mode=AutoresetMode.SAME_STEP)
    env = from_vector_env(vector_env, seed=0)
    env.reset()
    with pytest.raises(RuntimeError, match="the vector environment cannot be pickled"):
        env.state_dict()
