"""A choice that is paid many steps later, behind noise: credit over a delay, with or without a rule that changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.options import check_choice, check_count, check_number, check_probability
from lifelong.envs.random_streams import Channel, Stream, integers
from lifelong.envs.registry import register_env
from lifelong.envs.schedules import Markov, standard_normal


class DelayedCreditWorld(NamedTuple):
    """How far the cycle has come, what was asked, and the hidden rule."""

    position: Tensor  # [B] int64: 0 the choice, 1..N the delay, N + 1 the payoff
    cue: Tensor  # [B] int64: 0 or 1
    payoff: Tensor  # [B] float32: what the choice of this cycle has earned, -1 or +1
    rule: Tensor  # [B, 1] float64: 0 the action is to be the cue's, 1 the other one
    steps_since_change: Tensor  # [B] int64: 0 at the first step under a rule
    changed: Tensor  # [B] bool: the rule is another one than a step ago


@register_env("delayed_credit")
class DelayedCredit(TensorEnv[DelayedCreditWorld]):
    """Answer a cue; N noisy steps later comes the pay.

    A cycle has N + 2 steps. At the first a cue, 0 or 1, is shown, and the action, 0 or 1, is the answer. Then come N
    steps with rewards sigma N(0, 1), whatever is done, and at last a step that pays +1 if the answer was right, else
    -1. What one answer is worth stands out from the noise of its cycle by 2 / (sigma sqrt(N)) standard deviations.

    * ``fixed``: right is the cue itself. Nothing has to be recalled to answer; what is tested is learning over the
      delay. This variant is no memory task: its memoryless reference is the oracle's.
    * ``changing``: right is the cue, or its opposite; with probability ``hazard`` per step the rule is reversed. A
      payoff tells of the rule at the choice N + 1 steps before, which must be recalled to make use of it.

    Observation: ``observation`` [B, 4] float32: cue 0, cue 1 (at the choice only), delay, payoff.
    Actions: 0..1.
    Privileged: ``oracle_action`` int64, ``regime`` int64 (the rule), ``steps_since_change`` int64, ``changed`` bool,
    ``position`` int64 (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        delay: N.
        noise: sigma.
        rule: ``"changing"`` or ``"fixed"``.
        hazard: probability per step that a changing rule is reversed.
    """

    name = "delayed_credit"
    world_type = DelayedCreditWorld
    num_actions = 2
    observation_size = 4

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        delay: int = 10,
        noise: float = 0.1,
        rule: Literal["changing", "fixed"] = "changing",
        hazard: float = 0.001,
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.delay = check_count(self.name, "delay", delay, high=2**62)
        self.noise = check_number(self.name, "noise", noise, low=0.0)
        self.rule = check_choice(self.name, "rule", rule, ("changing", "fixed"))
        self.hazard = check_probability(self.name, "hazard", hazard)
        self._schedule = Markov(2, self.hazard)
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)

    @property
    def references(self) -> References:  # type: ignore[override]
        if self.rule == "fixed":
            notes = {"memoryless": "closed form: the cue is the answer; this variant is no memory task"}
            return References("episode", 0.0, 1.0, memoryless=1.0, last_transition=1.0, ideal_learner=1.0, notes=notes)
        ideal = abs(1 - 2 * self.hazard) ** (self.delay + 2)
        return References(
            per="episode",
            random=0.0,
            oracle=1.0,
            memoryless=0.0,
            last_transition=ideal,
            ideal_learner=ideal,
            notes={
                "memoryless": "closed form: either rule is as likely, and nothing that is seen at a choice tells which",
                "last_transition": "closed form: as the ideal learner; actions in the delay hand on the rule followed",
                "ideal_learner": "closed form: |1 - 2 h|^(N + 2), by the rule of the choice before, or its opposite",
            },
        )

    def birth_channels(self) -> Mapping[str, Channel]:
        return {"rule": Channel(Stream.SCHEDULE), "cue": Channel(Stream.WORLD)}

    def step_channels(self) -> Mapping[str, Channel]:
        return {
            "rule": Channel(Stream.SCHEDULE, 2),
            "cue": Channel(Stream.WORLD),
            "noise": Channel(Stream.NOISE, 2),
        }

    def begin(self, draws: Mapping[str, Tensor]) -> DelayedCreditWorld:
        cue = integers(draws["cue"][:, 0], 2)
        age = torch.zeros_like(cue)
        rule = self._schedule.begin(draws["rule"]) if self.rule == "changing" else torch.zeros_like(draws["rule"])
        payoff = torch.zeros_like(cue, dtype=torch.float32)
        return DelayedCreditWorld(age, cue, payoff, rule, age, torch.zeros_like(age, dtype=torch.bool))

    def restart(self, world: DelayedCreditWorld, draws: Mapping[str, Tensor]) -> DelayedCreditWorld:
        return world  # ``advance`` has moved on to the next cycle, under the same rule

    def advance(
        self, world: DelayedCreditWorld, action: Tensor, draws: Mapping[str, Tensor]
    ) -> Change[DelayedCreditWorld]:
        choosing, paying = world.position == 0, world.position == self.delay + 1
        right = torch.where(action == self._right_action(world), 1.0, -1.0)
        payoff = torch.where(choosing, right, world.payoff)
        noise = (self.noise * standard_normal(draws["noise"])[:, 0]).to(torch.float32)
        reward = torch.where(paying, world.payoff, noise.masked_fill(choosing, 0.0))
        rule = self._schedule.advance(world.rule, draws["rule"]) if self.rule == "changing" else world.rule
        changed = (rule != world.rule)[:, 0]
        after = DelayedCreditWorld(
            position=(world.position + 1).masked_fill(paying, 0),
            cue=torch.where(paying, integers(draws["cue"][:, 0], 2), world.cue),
            payoff=payoff,
            rule=rule,
            steps_since_change=(world.steps_since_change + 1).masked_fill(changed, 0),
            changed=changed,
        )
        return Change(after, reward, soft_reset=paying)

    def observe(self, world: DelayedCreditWorld) -> Observation:
        choosing, paying = world.position == 0, world.position == self.delay + 1
        shown = [choosing & (world.cue == 0), choosing & (world.cue == 1), ~(choosing | paying), paying]
        return {"observation": torch.stack(shown, dim=1).to(torch.float32)}

    def describe(self, world: DelayedCreditWorld) -> dict[str, Tensor]:
        return {
            "oracle_action": self._right_action(world),
            "regime": self._schedule.regime(world.rule),
            "steps_since_change": world.steps_since_change,
            "changed": world.changed,
            "position": world.position,
        }

    def _right_action(self, world: DelayedCreditWorld) -> Tensor:
        return world.cue ^ self._schedule.regime(world.rule)
