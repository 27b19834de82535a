"""What an agent without memory can do because it sees its last transition: observation, action and reward of the step
before.

Its own action is among what it sees, so that where actions cost nothing it can hand a value on from step to step: it
chooses the value as its action, reads it off the last transition, and chooses it again. Our agents' token holds the
last transition, those with ``memory=none`` included. The policies here earn ``References.last_transition``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from lifelong.envs.measurement import Estimate, play

if TYPE_CHECKING:
    from lifelong.envs.associative_recall import AssociativeRecall
    from lifelong.envs.batched import TensorEnv
    from lifelong.envs.recall_stream import RecallStream
    from lifelong.envs.switching_bandit import SwitchingBandit


class Transition(NamedTuple):
    """The step before; all zeros where a life has just begun."""

    observation: Tensor  # [B, D] float32
    action: Tensor  # [B] int64
    reward: Tensor  # [B] float32


LastTransitionPolicy = Callable[[Tensor, Transition], Tensor]  # (observation [B, D], the step before) -> action [B]


def measure_with_last_transition(
    env: TensorEnv[Any],
    policy: LastTransitionPolicy,
    steps: int,
    per: Literal["step", "episode"],
    burn_in: int = 0,
) -> Estimate:
    """What ``policy`` earns in ``env``; see ``measurement.measure``."""
    zeros = torch.zeros(env.num_lives, dtype=torch.int64, device=env.device)
    before = Transition(torch.zeros(env.num_lives, env.observation_size, device=env.device), zeros, zeros.float())

    def act(observation: dict[str, Tensor]) -> Tensor:
        nonlocal before
        seen = observation["observation"]
        action = policy(seen, before)
        before = Transition(seen, action, before.reward)
        return action

    def learn(reward: Tensor, ended: Tensor) -> None:
        nonlocal before
        seen = before.observation.masked_fill(ended[:, None], 0.0)
        before = Transition(seen, before.action.masked_fill(ended, 0), reward.masked_fill(ended, 0.0))

    return play(env, act, learn, steps, per, burn_in)


def echo_the_cue(observation: Tensor, before: Transition) -> Tensor:
    """``long_tmaze`` (auto): at the start the cue's turn, after that the action before."""
    cue_left, cue_right = observation[:, 0] > 0, observation[:, 1] > 0
    return torch.where(cue_left, 0, torch.where(cue_right, 1, before.action))


def answer_by_the_rule_of_the_payoff(hazard: float, delay: int) -> LastTransitionPolicy:
    """``delayed_credit``: hands on the rule that the answer followed until the payoff shows whether it was right."""
    kept = (1 - 2 * hazard) ** (delay + 2) >= 0  # more often than not the rule holds until the next choice

    def act(observation: Tensor, before: Transition) -> Tensor:
        choosing, cue = observation[:, :2].sum(1) > 0, observation[:, 1].long()
        chosen_before, cue_before = before.observation[:, :2].sum(1) > 0, before.observation[:, 1].long()
        followed = torch.where(chosen_before, before.action ^ cue_before, before.action)
        right = torch.where(before.reward > 0, before.action, 1 - before.action)
        return torch.where(choosing, cue ^ (right if kept else 1 - right), followed)

    return act


def win_stay_lose_shift(arms: int, seed: int) -> LastTransitionPolicy:
    """``drift_bandit``: the same arm after a reward, else any other."""
    generator = torch.Generator().manual_seed(seed)

    def act(observation: Tensor, before: Transition) -> Tensor:
        other = (before.action + torch.randint(1, arms, before.action.shape, generator=generator)) % arms
        return torch.where(before.reward > 0, before.action, other)

    return act


def echo_the_best_arm(observation: Tensor, before: Transition) -> Tensor:
    """``drift_bandit`` with ``signal`` cue or always: the arm that is told, else the action before."""
    told = observation[:, 1:]
    return torch.where(told.sum(1) > 0, told.argmax(1), before.action)


def win_stay_in_the_context(env: SwitchingBandit, seed: int) -> LastTransitionPolicy:
    """``switching_bandit``: where the context is that of the step before, the same action if it was right, else
    another."""
    generator = torch.Generator().manual_seed(seed)

    def act(observation: Tensor, before: Transition) -> Tensor:
        shape, shown = before.action.shape, slice(0, env.observation_size - env.signal.width)
        anything = torch.randint(env.actions, shape, generator=generator)
        other = (before.action + torch.randint(1, env.actions, shape, generator=generator)) % env.actions
        same = (observation[:, shown] == before.observation[:, shown]).all(1)
        return torch.where(same, torch.where(before.reward > 0, before.action, other), anything)

    return act


def echo_one_key(env: RecallStream) -> LastTransitionPolicy:
    """``recall_stream``: hands on the value of one key, of the group with the fewest, and answers everything with
    it."""
    groups = env.keys_per_group
    group = groups.index(min(groups))
    key = sum(groups[:group])
    codes = [key // env.side, env.side + key % env.side] if env.conjunctive else [key]

    def act(observation: Tensor, before: Transition) -> Tensor:
        written = observation[:, 0] > 0
        for code in codes:
            written = written & (observation[:, 3 + code] > 0)
        return torch.where(written, observation[:, 3 + env.key_size :].argmax(1), before.action)

    return act


def echo_one_value(env: AssociativeRecall) -> LastTransitionPolicy:
    """``associative_recall``: hands on one value, that which came twice in a row last, and answers with it; the key
    shown last, if it is asked for first, is answered with its own."""

    def act(observation: Tensor, before: Transition) -> Tensor:
        def parts(shown: Tensor) -> tuple[Tensor, Tensor]:
            _, key, value = shown.split([2, env.keys, env.values], dim=1)
            return key.argmax(1), value.argmax(1)

        (key, value), (key_before, value_before) = parts(observation), parts(before.observation)
        asked, after_show = observation[:, 1] > 0, before.observation[:, 0] > 0
        shown = torch.where(after_show & (value != value_before), before.action, value)
        return torch.where(asked, torch.where(after_show & (key == key_before), value_before, before.action), shown)

    return act
