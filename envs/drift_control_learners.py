"""What can be reached in ``drift_control`` without memory (by search), and by a learner who knows the physics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lifelong.envs.control_systems import CartPole
from lifelong.envs.measurement import Estimate, estimate

if TYPE_CHECKING:
    from lifelong.envs.drift_control import DriftControl

Build = Callable[[int, int], "DriftControl"]
KINDS = ("linear", "quadratic", "network")
_HIDDEN = 16


class MemorylessPolicy:
    """Policies without memory: an action is drawn from softmax(preferences of the token), or the largest is taken.

    The token is the present observation, or with ``last_transition`` what every agent of this project sees: the
    observation, action and reward of the step before beside it.

    Args:
        env: gives the sizes.
        kind: preferences are linear or quadratic functions of the token, or a network of 16 tanh units of it.
        last_transition: see above.
        greedy: take the largest preference.
    """

    def __init__(self, env: DriftControl, kind: str, last_transition: bool, greedy: bool) -> None:
        self.kind, self.last_transition, self.greedy = kind, last_transition, greedy
        self.actions, self.seen = env.num_actions, env.observation_size
        size = self.seen + last_transition * (self.seen + self.actions + 1) + 1
        self._pairs = torch.triu_indices(size, size)
        self.num_inputs = self._pairs.shape[1] if kind == "quadratic" else size
        outputs = self.num_inputs * self.actions
        self.num_weights = _HIDDEN * (size + self.actions) if kind == "network" else outputs

    def token(self, before: Tensor, action: Tensor, reward: Tensor, now: Tensor) -> Tensor:
        """[B, size] float32, its last entry 1."""
        parts = [now]
        if self.last_transition:
            chosen = torch.nn.functional.one_hot(action, self.actions).to(now.dtype)
            parts += [10 * (now - before), chosen, reward[:, None]]  # differences of a step are small
        return torch.cat([*parts, torch.ones_like(now[:, :1])], dim=1)

    def act(self, weights: Tensor, token: Tensor, generator: torch.Generator) -> Tensor:
        """Actions [P E] of P policies, ``weights`` [P, num_weights], each in E lives, from ``token`` [P E, size]."""
        policies, size = len(weights), token.shape[1]
        inputs = token.reshape(policies, -1, size)
        if self.kind == "quadratic":
            inputs = inputs[..., self._pairs[0]] * inputs[..., self._pairs[1]]
        if self.kind == "network":
            first, second = weights.split([_HIDDEN * size, _HIDDEN * self.actions], dim=1)
            inputs = torch.bmm(inputs, first.reshape(policies, size, _HIDDEN)).tanh()
            weights = second
        preferences = torch.bmm(inputs, weights.reshape(policies, -1, self.actions)).flatten(0, 1)
        if not self.greedy:
            preferences = preferences - torch.empty_like(preferences).exponential_(generator=generator).log()
        return preferences.argmax(1)


def play(env: DriftControl, policy: MemorylessPolicy, weights: Tensor, steps: int, burn_in: int, seed: int) -> Tensor:
    """Play policies in all lives of ``env``, shared out equally among ``weights`` [P, num_weights], in order.

    Returns:
        [2, B] float64: the sum of rewards and the number of soft resets of each life, after ``burn_in`` steps.
    """
    generator = torch.Generator().manual_seed(seed)
    now = env.reset()["observation"]
    before, action, reward = now, torch.zeros(env.num_lives, dtype=torch.int64), torch.zeros(env.num_lives)
    sums = torch.zeros(2, env.num_lives, dtype=torch.float64)
    for t in range(burn_in + steps):
        action = policy.act(weights, policy.token(before, action, reward, now), generator)
        step = env.step(action)
        before, now, reward = now, step.observation["observation"], step.reward
        if t >= burn_in:
            sums += torch.stack([reward, step.soft_reset.float()])
    return sums


def search_memoryless(
    build: Build,
    kind: str,
    last_transition: bool,
    *,
    greedy: bool = False,
    generations: int = 60,
    policies: int = 64,
    lives: int = 16,
    steps: int = 400,
    seed: int = 0,
) -> tuple[MemorylessPolicy, Tensor]:
    """The cross-entropy method over the weights of a policy without memory, by the reward of a step.

    Each generation draws ``policies`` weight vectors, lets each play ``lives`` lives, and fits a normal law with
    independent entries to the best eighth (Rubinstein 1999; with a floor under the deviations, Szita and Lorincz 2006).

    Args:
        build: makes the environment from a number of lives and a seed.
        kind, last_transition, greedy: see ``MemorylessPolicy``.

    Returns:
        The policy, and the mean weights [1, num_weights] of the last generation.
    """
    policy = MemorylessPolicy(build(1, 0), kind, last_transition, greedy)
    generator = torch.Generator().manual_seed(seed)
    mean, deviation = torch.zeros(policy.num_weights), torch.full((policy.num_weights,), 3.0)
    for generation in range(generations):
        noise = torch.randn(policies, policy.num_weights, generator=generator)
        weights = mean + deviation * noise
        env = build(policies * lives, generation)
        rewards, _ = play(env, policy, weights, steps, burn_in=50, seed=generation)
        value = rewards.reshape(policies, lives).sum(1)
        best = weights[value.topk(policies // 8).indices]
        mean = best.mean(0)
        deviation = best.std(0) + max(0.0, 0.5 - generation / generations)
    return policy, mean[None]


def level(
    build: Build,
    policy: MemorylessPolicy,
    weights: Tensor,
    *,
    lives: int = 512,
    steps: int = 2000,
    seed: int = 10**6,
) -> Estimate:
    """What one policy earns on lives that it was not chosen on, in the unit of the environment's references."""
    env = build(lives, seed)
    rewards, ends = play(env, policy, weights, steps, burn_in=500, seed=1)
    return estimate(rewards / steps) if env.system.name == "acrobot" else mean_return(torch.stack([rewards, ends]))


def mean_return(sums: Tensor) -> Estimate:
    """Mean return of an episode from the rewards and the ends of episodes of each life, ``sums`` [2, B].

    A ratio of two sums over lives, with the standard error of the linearised ratio.
    """
    rewards, ends = sums
    ratio = float(rewards.sum() / ends.sum())
    return Estimate(ratio, estimate((rewards - ratio * ends) / ends.mean()).standard_error)


def simulate_cartpole_learner(env: DriftControl, steps: int, burn_in: int) -> Estimate:
    """Mean return of an episode of a learner who knows CartPole's equations, but sees positions only.

    Positions give the velocities of a step ago exactly (explicit Euler), and two of those the acceleration that a force
    caused: from it the learner reads the wiring that was in force when this force was chosen, and holds on to it until
    it reads the other one. It acts on the state that it predicts for the time when its force will act.
    """
    system = env.system
    assert isinstance(system, CartPole)
    shown = env.reset()["observation"].double()
    scale = shown.new_tensor([system.largest_x, system.largest_angle])
    sign = torch.ones(env.num_lives, dtype=torch.float64)  # of the push of action 1, as believed
    zeros = torch.zeros_like(sign)
    seen = [shown * scale] * 3  # the last three positions [B, 2], the newest last
    age = torch.zeros(env.num_lives, dtype=torch.int64)  # observations of this episode before the newest
    asked = [zeros] * (env.delay + 2)  # what was asked for, -1 or +1 (0: before the episode), the newest last
    sums = torch.zeros(2, env.num_lives, dtype=torch.float64)
    for t in range(burn_in + steps):
        step_time, size = system.time_step, system.forces[1]
        velocity = (seen[-1] - seen[-2]) / step_time  # a step ago
        older = (seen[-2] - seen[-3]) / step_time  # two steps ago
        cause = asked[0]  # acted two steps ago
        angle, spin = seen[-3][:, 1].contiguous(), older[:, 1].contiguous()
        pushed = system.accelerations(angle, spin, size * cause)[1]
        pulled = system.accelerations(angle, spin, -size * cause)[1]
        measured = (velocity[:, 1] - spin) / step_time
        read = torch.where((measured - pushed).abs() < (measured - pulled).abs(), 1.0, -1.0).double()
        sign = torch.where((age >= 2) & (cause != 0), read, sign)
        before = torch.stack([seen[-2][:, 0], velocity[:, 0], seen[-2][:, 1], velocity[:, 1]], dim=1)
        at_rest = torch.stack([seen[-1][:, 0], zeros, seen[-1][:, 1], zeros], dim=1)
        state = torch.where((age >= 1)[:, None], system.move(before, size * sign * asked[1]), at_rest)
        for under_way in asked[2:]:
            state = system.move(state, size * sign * under_way)
        wanted = system.wanted(state)  # 1: push to the right
        action = torch.where(sign > 0, wanted, 1 - wanted)
        step = env.step(action)
        fresh = step.soft_reset
        shown = step.observation["observation"].double() * scale
        seen = [*seen[1:], shown]
        age = (age + 1).masked_fill(fresh, 0)
        asked = [one.masked_fill(fresh, 0.0) for one in (*asked[1:], 2.0 * action - 1.0)]
        if t >= burn_in:
            sums += torch.stack([step.reward, fresh.float()])
    return mean_return(sums)
