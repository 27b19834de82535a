"""The batched suite for people who use Gymnasium and nothing else of ours: ``gymnasium.make`` and
``gymnasium.make_vec``.

    import gymnasium, lifelong.envs
    envs = gymnasium.make_vec("lifelong/RecallStream-v0", num_envs=64, values=4)

Options of an environment are keyword arguments. Ended lives are restarted in the same step
(``AutoresetMode.SAME_STEP``, the last observation in ``info["final_obs"]``). ``info`` also holds ``soft_reset`` and
``privileged``; neither is for the policy.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from lifelong.envs.base import Step
from lifelong.envs.batched import TensorEnv
from lifelong.envs.batched_suite import BATCHED_ENVS
from lifelong.envs.registry import make_env

Array = NDArray[Any]


def gymnasium_id(kind: type[TensorEnv[Any]]) -> str:
    """The id that an environment of the suite is registered under."""
    return f"lifelong/{kind.__name__}-v0"


def register_ids() -> None:
    """Register the whole batched suite with Gymnasium."""
    for kind in BATCHED_ENVS:
        gymnasium.register(
            gymnasium_id(kind),
            entry_point="lifelong.envs.gymnasium_face:LifelongEnv",
            vector_entry_point="lifelong.envs.gymnasium_face:LifelongVectorEnv",
            kwargs={"name": kind.name},
        )


def _build(name: str, num_lives: int, seed: int | None, options: dict[str, Any]) -> TensorEnv[Any]:
    if "num_lives" in options:
        raise ValueError(f"{name}: num_lives={options['num_lives']!r} is no option here; give num_envs to make_vec")
    env = make_env({"name": name, "num_lives": num_lives, "seed": 0 if seed is None else seed, **options})
    if not isinstance(env, TensorEnv):
        raise ValueError(f"environment {name!r} is none of the batched suite, which alone has a Gymnasium face")
    return env


def _spaces(env: TensorEnv[Any]) -> tuple[Box, Discrete]:
    bound = env.observation_bound
    return Box(-bound, bound, (env.observation_size,), np.float32), Discrete(env.num_actions)


class LifelongVectorEnv(gymnasium.vector.VectorEnv):
    """A batch of lives as a Gymnasium ``VectorEnv``.

    Args:
        name: registered name of an environment of the batched suite.
        num_envs: B.
        seed: of the random streams until ``reset`` gives another; None: the first reset takes a random one.
        options: options of that environment, but for ``num_lives``.
    """

    def __init__(
        self, name: str, num_envs: int = 1, render_mode: None = None, seed: int | None = None, **options: Any
    ) -> None:
        self.env = _build(name, num_envs, seed, options)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = _spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seeded = seed is not None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin new lives; ``seed`` starts the random streams anew (without one, the first reset takes a random
        seed)."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self.env.reseed(int(self.np_random.integers(2**62)) if seed is None else seed)
            self._seeded = True
        observation = self.env.reset()["observation"].numpy(force=True)
        return observation, self._info(torch.zeros(self.num_envs, dtype=torch.bool), self.env.privileged)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Act in all lives; ``actions`` [B] integers."""
        chosen = torch.as_tensor(np.asarray(actions, dtype=np.int64), device=self.env.device)
        step = self.env.step(chosen)
        info = self._info(step.soft_reset, step.privileged)
        if step.final_observation is not None:
            ended = (step.terminated | step.truncated).numpy(force=True)
            last = np.full(self.num_envs, None, dtype=object)
            for life in ended.nonzero()[0]:
                last[life] = step.final_observation["observation"][life].numpy(force=True)
            info.update(final_obs=last, _final_obs=ended)
        return *_arrays(step), info

    def _info(self, soft_reset: torch.Tensor, privileged: Any) -> dict[str, Any]:
        every = np.ones(self.num_envs, dtype=bool)
        hidden = {key: value.numpy(force=True) for key, value in privileged.items()}
        hidden |= {f"_{key}": every for key in privileged}
        soft = soft_reset.numpy(force=True)
        return {"soft_reset": soft, "_soft_reset": every, "privileged": hidden, "_privileged": every}


class LifelongEnv(gymnasium.Env):
    """One life as a Gymnasium ``Env``. Slow, as one life is; ``make_vec`` is what the suite is for.

    Args:
        name: registered name of an environment of the batched suite.
        seed: of the random streams until ``reset`` gives another; None: the first reset takes a random one.
        options: options of that environment, but for ``num_lives``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  the base class declares it so

    def __init__(self, name: str, render_mode: None = None, seed: int | None = None, **options: Any) -> None:
        self.env = _build(name, 1, seed, options)
        self.render_mode = render_mode
        self.observation_space, self.action_space = _spaces(self.env)
        self._seeded = seed is not None
        self._next_life: Array | None = None  # its first observation, when the last life ended and this one has begun

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin a new life; ``seed`` starts the random streams anew (without one, the first reset takes a random
        seed)."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self.env.reseed(int(self.np_random.integers(2**62)) if seed is None else seed)
            self._seeded, self._next_life = True, None
        if self._next_life is None:
            self._next_life = self.env.reset()["observation"].numpy(force=True)[0]
        observation, self._next_life = self._next_life, None
        return observation, self._info(False)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Act; after the end of a life, the next call is ``reset``."""
        step = self.env.step(torch.tensor([int(action)], device=self.env.device))
        observation, reward, terminated, truncated = (array[0] for array in _arrays(step))
        info = self._info(bool(step.soft_reset[0]))
        if step.final_observation is not None:
            self._next_life = observation
            observation = step.final_observation["observation"].numpy(force=True)[0]
        return observation, float(reward), bool(terminated), bool(truncated), info

    def _info(self, soft_reset: bool) -> dict[str, Any]:
        hidden = {key: value.numpy(force=True)[0] for key, value in self.env.privileged.items()}
        return {"soft_reset": soft_reset, "privileged": hidden}


def _arrays(step: Step) -> tuple[Array, Array, Array, Array]:
    tensors = (step.observation["observation"], step.reward, step.terminated, step.truncated)
    observation, reward, terminated, truncated = (tensor.numpy(force=True) for tensor in tensors)
    return observation, reward.astype(np.float64), terminated, truncated
