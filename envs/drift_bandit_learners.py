"""What can be reached on the switching kind of the drift bandit by learning which arm is best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifelong.envs.measurement import Estimate, estimate

if TYPE_CHECKING:
    from lifelong.envs.batched import TensorEnv


def win_stay_lose_shift_rate(arms: int, high: float, low: float, hazard: float) -> float:
    """Mean reward per step of the policy that stays after a reward and else moves to another arm, uniformly.

    Whether the arm pulled is the best one is a Markov chain with P(best -> best) = high (1 - h) + (1 - high) h / (K -
    1) and P(other -> best) = low h / (K - 1) + (1 - low) [(1 - h) / (K - 1) + h (K - 2) / (K - 1)^2].
    """
    others = arms - 1
    stays_best = high * (1 - hazard) + (1 - high) * hazard / others
    becomes_best = low * hazard / others
    becomes_best += (1 - low) * ((1 - hazard) / others + hazard * (arms - 2) / others**2)
    share = becomes_best / (1 - stays_best + becomes_best)
    return share * high + (1 - share) * low


def filter_update(
    belief: Tensor, arm: Tensor, reward: Tensor, high: float, low: float, hazard: Tensor | float
) -> Tensor:
    """Posterior [B, K] that each arm is the best at the next step, after ``reward`` [B] for ``arm`` [B].

    Bayes' rule, then one step of the Markov chain: b' = (1 - h) b + h (1 - b) / (K - 1); ``hazard`` [B, 1] or a number.
    """
    arms = belief.shape[1]
    pulled = torch.nn.functional.one_hot(arm, arms).bool()
    won = (reward > 0.5)[:, None].double()
    if_best = won * high + (1 - won) * (1 - high)  # [B, 1], were the arm pulled the best
    if_other = won * low + (1 - won) * (1 - low)
    belief = belief * torch.where(pulled, if_best, if_other)
    belief = belief / belief.sum(1, keepdim=True)
    return (1 - hazard) * belief + hazard * (1 - belief) / (arms - 1)


def simulate_filter(
    env: TensorEnv[Any],
    arms: int,
    high: float,
    low: float,
    hazard: float,
    told: bool,
    steps: int,
    burn_in: int,
) -> Estimate:
    """Mean reward per step of the policy that pulls the arm which is most probably the best, by the exact filter.

    Args:
        env: a new drift bandit of the switching kind, without ``life_steps``, with these options.
        arms, high, low, hazard: its options.
        told: whether the learner is told that (not to which arm) the best arm has changed.
        steps, burn_in: steps that count, after steps that do not.
    """
    belief = torch.full((env.num_lives, arms), 1 / arms, dtype=torch.float64, device=env.device)
    env.reset()
    total = torch.zeros(env.num_lives, dtype=torch.float64, device=env.device)
    for t in range(burn_in + steps):
        arm = belief.argmax(1)
        step = env.step(arm)
        chance = step.privileged["changed"][:, None].double() if told else hazard
        belief = filter_update(belief, arm, step.reward, high, low, chance)
        if t >= burn_in:
            total += step.reward
    return estimate(total / steps)
