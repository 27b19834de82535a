"""The batched suite for people who use TorchRL and nothing else of ours: an ``EnvBase`` around a batch of lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from lifelong.envs.base import Observation
from lifelong.envs.batched import TensorEnv
from lifelong.envs.registry import make_env


class TorchRLEnv(EnvBase):
    """A batch of B lives as a TorchRL environment of batch size [B].

    Keys: ``observation`` [B, D] float32, ``action`` [B] int64, ``reward`` [B, 1], ``done``, ``terminated``,
    ``truncated`` [B, 1], and ``soft_reset`` [B, 1] bool: the world started again inside the life, which is no ``done``
    (the memory is kept, and an episode's return ends). What is privileged stays in ``env.privileged`` and never enters
    a TensorDict.

    A life that ended has begun anew when ``step`` returns; ``next`` holds its last observation, and TorchRL's reset of
    the lives that are done hands out the first one of the new life. A reset of other lives begins new ones too.

    ``state_dict`` holds the whole state of the lives, so that collectors and checkpoints go on bit for bit.

    Args:
        env: an environment of the batched suite, or a config for ``make_env``.
    """

    def __init__(self, env: TensorEnv[Any] | Mapping[str, Any]) -> None:
        built = env if isinstance(env, TensorEnv) else make_env(env)
        if not isinstance(built, TensorEnv):
            raise ValueError(f"environment {built.name!r} is none of the batched suite, which alone has a TorchRL face")
        lives = built.num_lives
        super().__init__(device=built.device, batch_size=[lives])
        self.env = built
        shown = Unbounded((lives, built.observation_size), dtype=torch.float32, device=built.device)
        flag = Categorical(2, shape=(lives, 1), dtype=torch.bool, device=built.device)
        self.observation_spec = Composite(observation=shown, soft_reset=flag, shape=(lives,), device=built.device)
        self.action_spec = Categorical(built.num_actions, shape=(lives,), device=built.device)
        self.reward_spec = Unbounded((lives, 1), device=built.device)
        done = {key: flag.clone() for key in ("done", "terminated", "truncated")}
        self.full_done_spec = Composite(done, shape=(lives,), device=built.device)
        self._begun = torch.zeros(lives, dtype=torch.bool, device=built.device)  # new lives that nobody has seen yet

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        which = None if tensordict is None else tensordict.get("_reset", None)
        if which is None:
            observation = self.env.reset()
            self._begun = torch.zeros_like(self._begun)
        else:
            which = which.reshape(-1)
            others = which & ~self._begun
            observation = self.env.reset_lives(others) if bool(others.any()) else self.env.observation
            self._begun = self._begun & ~which
        return self._pack(observation, torch.zeros_like(self._begun))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step = self.env.step(tensordict.get("action"))
        self._begun = step.terminated | step.truncated
        observation = step.observation
        if step.final_observation is not None:
            ended = self._begun[:, None]
            observation = {
                key: torch.where(ended, last, observation[key]) for key, last in step.final_observation.items()
            }
        packed = self._pack(observation, step.soft_reset)
        packed.set("reward", step.reward[:, None])
        packed.set("terminated", step.terminated[:, None])
        packed.set("truncated", step.truncated[:, None])
        packed.set("done", self._begun[:, None])
        return packed

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.env.reseed(seed)

    def _pack(self, observation: Observation, soft_reset: Tensor) -> TensorDict:
        entries = {**observation, "soft_reset": soft_reset[:, None]}
        return TensorDict(entries, batch_size=self.batch_size, device=self.device)

    def get_extra_state(self) -> dict[str, Any]:
        """The state of the lives, as part of ``state_dict``; empty before the first reset."""
        if not self.env.begun:
            return {}
        return {"lives": self.env.state_dict(), "begun": self._begun.clone()}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; the next call is ``step`` (or the reset of the lives that are done)."""
        if not state:
            return
        self.env.load_state_dict(state["lives"])
        self._begun = state["begun"].to(self.env.device, copy=True)
