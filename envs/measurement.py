"""What a policy earns in a batched environment, with its standard error: to check references, and to find new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation

if TYPE_CHECKING:
    from lifelong.envs.batched import TensorEnv

Policy = Callable[[Observation, Mapping[str, Tensor]], Tensor]  # (observation, privileged) -> action [B] int64


class Estimate(NamedTuple):
    """A figure from simulation."""

    mean: float
    standard_error: float

    def agrees_with(self, figure: float, standard_errors: float = 3.0) -> bool:
        """Whether ``figure`` is within so many standard errors (or float32 rounding, where the error is zero)."""
        return abs(self.mean - figure) <= standard_errors * self.standard_error + 1e-6


def estimate(samples: Tensor) -> Estimate:
    """Mean of independent samples [N], with the standard error of the mean."""
    samples = samples.double()
    return Estimate(float(samples.mean()), float(samples.std() / len(samples) ** 0.5))


def measure(
    env: TensorEnv[Any], policy: Policy, steps: int, per: Literal["step", "episode"], burn_in: int = 0
) -> Estimate:
    """Run ``policy`` in all lives of a new batch, for ``burn_in`` steps that do not count and then ``steps`` that do.

    ``per="step"``: mean reward of a step; lives are the samples. ``per="episode"``: mean return of the episodes that
    ended (terminated, truncated, or soft reset); they are the samples, taken as independent.
    """
    return play(
        env, lambda observation: policy(observation, env.privileged), lambda reward, ended: None, steps, per, burn_in
    )


def play(
    env: TensorEnv[Any],
    act: Callable[[Observation], Tensor],
    learn: Callable[[Tensor, Tensor], None],
    steps: int,
    per: Literal["step", "episode"],
    burn_in: int = 0,
) -> Estimate:
    """``measure`` for a policy that keeps something: ``act`` gives the actions [B], ``learn`` is told the rewards [B]
    and where [B] a life ended."""
    observation = env.reset()
    total = torch.zeros(env.num_lives, dtype=torch.float64, device=env.device)
    returns: list[Tensor] = []
    for t in range(burn_in + steps):
        step = env.step(act(observation))
        learn(step.reward, step.terminated | step.truncated)
        observation = step.observation
        if per == "episode" or t >= burn_in:
            total += step.reward
        if per == "episode":
            over = step.terminated | step.truncated | step.soft_reset
            if t >= burn_in:
                returns.append(total[over])
            total = total.masked_fill(over, 0.0)
    return estimate(total / steps if per == "step" else torch.cat(returns))


def random_policy(num_actions: int, seed: int) -> Policy:
    """Uniform random actions."""
    generator = torch.Generator().manual_seed(seed)

    def act(observation: Observation, privileged: Mapping[str, Tensor]) -> Tensor:
        first = next(iter(observation.values()))
        return torch.randint(num_actions, (len(first),), generator=generator).to(first.device)

    return act


def oracle_policy(observation: Observation, privileged: Mapping[str, Tensor]) -> Tensor:
    """What the environment itself says is best."""
    return privileged["oracle_action"]
