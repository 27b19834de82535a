"""A scripted environment in which every kind of end happens, at steps that the test chooses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchrl.data import Categorical as CategoricalSpec
from torchrl.data import Composite, Unbounded

from lifelong.agents import ActorCritic
from lifelong.envs import Step
from lifelong.memory import make_core


class ScriptedEnv:
    """Ends are read from tables [B, T]; observations and rewards are random numbers of a fixed seed."""

    def __init__(self, lives: int, steps: int, action_spec=None, ends: float = 0.15, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.num_lives = lives
        self.device = torch.device("cpu")
        self.observation_spec = Composite(observation=Unbounded((3,)), choice=CategoricalSpec(4, shape=()))
        self.action_spec = action_spec if action_spec is not None else CategoricalSpec(3, shape=())
        self.numbers = torch.randn(steps + 1, lives, 3, generator=draw)
        self.choices = torch.randint(4, (steps + 1, lives), generator=draw)
        self.final = torch.randn(steps, lives, 3, generator=draw)
        self.rewards = torch.randn(steps, lives, generator=draw)
        kind = torch.rand(steps, lives, generator=draw)
        self.terminated = kind < ends
        self.truncated = (kind >= ends) & (kind < 2 * ends) | (kind < ends / 4)  # some steps are both
        self.soft_reset = (kind >= 2 * ends) & (kind < 3 * ends)
        self.t = 0

    def _observe(self):
        return {"observation": self.numbers[self.t].clone(), "choice": self.choices[self.t].clone()}

    def reset(self):
        self.t = 0
        return self._observe()

    def step(self, action):
        t = self.t
        self.t += 1
        ended = self.terminated[t] | self.truncated[t]
        final = {"observation": self.final[t].clone(), "choice": self.choices[t].clone()} if ended.any() else None
        privileged = {"steps_since_change": torch.full((self.num_lives,), t)}
        return Step(
            self._observe(),
            self.rewards[t].clone(),
            self.terminated[t].clone(),
            self.truncated[t].clone(),
            self.soft_reset[t].clone(),
            final,
            privileged,
        )


@pytest.fixture
def scripted_env() -> type[ScriptedEnv]:
    return ScriptedEnv


@pytest.fixture
def make_agent() -> Callable[..., ActorCritic]:
    """An agent for an environment; its policy's last layer is large, so that log-probabilities depend on the memory."""

    def make(env, core: str = "gated_delta", seed: int = 0, **options) -> ActorCritic:
        torch.manual_seed(seed)
        agent = ActorCritic(env.observation_spec, env.action_spec, make_core(core, 16, **options), head_width=16)
        with torch.no_grad():
            agent.policy[-1].weight.mul_(100)
        return agent

    return make
