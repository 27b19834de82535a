"""A contextual bandit whose hidden mapping from context to action is redrawn now and then, in a life without end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.measurement import Estimate
from lifelong.envs.options import check_count, check_probability
from lifelong.envs.random_streams import Channel, Stream, integers
from lifelong.envs.registry import register_env
from lifelong.envs.signalling import Signal
from lifelong.envs.switching_bandit_learners import BayesLearner, simulate_bayes_learner, told_rate


class SwitchingBanditWorld(NamedTuple):
    """The hidden and the visible part of the bandit."""

    mapping: Tensor  # [B, K] int64: the right action of each context; hidden
    context: Tensor  # [B] int64: the context shown
    steps_since_change: Tensor  # [B] int64: 0 at the first step under a mapping
    changed: Tensor  # [B] bool: the mapping was redrawn just before this step


@register_env("switching_bandit")
class SwitchingBandit(TensorEnv[SwitchingBanditWorld]):
    """Which action is right in which context must be found by trial, remembered, and found again after each change.

    At every step a context c_t, uniform over K, is shown; the reward is 1 if a_t = m_t[c_t], else 0. After each step,
    with probability ``hazard``, the whole mapping m is redrawn, uniformly and independently for each context. Lives do
    not end, unless ``life_steps`` cuts them. The observation does not hold the last action and reward: the agent's
    token does.

    Observation: ``observation`` [B, K + width of the signal] float32, the context one-hot. Actions: 0..A-1.
    Privileged: ``steps_since_change`` int64, ``oracle_action`` int64, ``changed`` bool (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        contexts: K.
        actions: A.
        hazard: probability per step that the mapping is redrawn.
        signal: what is told of the mapping, see ``Signal``; its code is the mapping, one-hot per context (K A entries).
    """

    name = "switching_bandit"
    world_type = SwitchingBanditWorld

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        contexts: int = 6,
        actions: int = 4,
        hazard: float = 1 / 300,
        signal: str = "hidden",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.contexts = check_count(self.name, "contexts", contexts)
        self.actions = self.num_actions = check_count(self.name, "actions", actions, low=2)
        self.hazard = check_probability(self.name, "hazard", hazard)
        self.signal = Signal(self.name, signal, code_size=self.contexts * self.actions)
        self.observation_size = self.contexts + self.signal.width
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)
        self._context_codes = torch.eye(self.contexts, device=self.device)
        self._action_codes = torch.eye(self.actions, device=self.device)

    @property
    def references(self) -> References:  # type: ignore[override]
        chance, told = 1 / self.actions, told_rate(self.contexts, self.actions, self.hazard, self.life_steps)
        memoryless, ideal, source = chance, 1.0, "closed form: the mapping is told, and need only be remembered"
        if self.signal.kind == "hidden":
            simulated = ideal_rate(self.contexts, self.actions, self.hazard, self.life_steps)
            ideal = simulated.mean
            source = f"exact Bayes filter, greedy: simulation, standard error {simulated.standard_error:.5f}"
        elif self.signal.kind == "flag":
            ideal, source = told, "closed form: elimination, starting over at each flag"
        elif self.signal.kind == "cue":
            told_steps = self.hazard if self.life_steps is None else self.hazard + (1 - self.hazard) / self.life_steps
            memoryless = chance + told_steps * (1 - chance)
        else:
            memoryless = 1.0
        last_transition = 1.0 if self.signal.kind == "always" else None
        if self.signal.kind in ("hidden", "flag") and self.life_steps is None:
            last_transition = win_stay_in_the_context_rate(self.contexts, self.actions, self.hazard)
        return References(
            per="step",
            random=chance,
            oracle=1.0,
            memoryless=memoryless,
            last_transition=last_transition,
            ideal_learner=ideal,
            notes={
                "memoryless": "closed form: without memory, an action is right with probability 1/A unless it is told",
                "last_transition": "closed form: in the context of the step before stay if right, else any other",
                "ideal_learner": source,
                "told_of_changes": f"{told:.5f}, closed form: the ideal learner if told when the mapping changes",
            },
        )

    def birth_channels(self) -> Mapping[str, Channel]:
        return {"mapping": Channel(Stream.SCHEDULE, self.contexts), "context": Channel(Stream.WORLD)}

    def step_channels(self) -> Mapping[str, Channel]:
        return {"change": Channel(Stream.SCHEDULE), **self.birth_channels()}

    def begin(self, draws: Mapping[str, Tensor]) -> SwitchingBanditWorld:
        context = integers(draws["context"][:, 0], self.contexts)
        mapping = integers(draws["mapping"], self.actions)
        age = torch.zeros_like(context)
        return SwitchingBanditWorld(mapping, context, age, torch.zeros_like(age, dtype=torch.bool))

    def advance(
        self, world: SwitchingBanditWorld, action: Tensor, draws: Mapping[str, Tensor]
    ) -> Change[SwitchingBanditWorld]:
        reward = (action == self._right_action(world)).to(torch.float32)
        changed = draws["change"] < self.hazard  # [B, 1]
        mapping = torch.where(changed, integers(draws["mapping"], self.actions), world.mapping)
        changed = changed[:, 0]
        age = (world.steps_since_change + 1).masked_fill(changed, 0)
        context = integers(draws["context"][:, 0], self.contexts)
        return Change(SwitchingBanditWorld(mapping, context, age, changed), reward)

    def observe(self, world: SwitchingBanditWorld) -> Observation:
        shown = self._context_codes[world.context]
        if self.signal.width:
            code = self._action_codes[world.mapping].flatten(1)
            shown = torch.cat([shown, self.signal.entries(world.steps_since_change == 0, code)], dim=1)
        return {"observation": shown}

    def describe(self, world: SwitchingBanditWorld) -> dict[str, Tensor]:
        return {
            "steps_since_change": world.steps_since_change,
            "oracle_action": self._right_action(world),
            "changed": world.changed,
        }

    @staticmethod
    def _right_action(world: SwitchingBanditWorld) -> Tensor:
        return world.mapping.gather(1, world.context[:, None])[:, 0]


def win_stay_in_the_context_rate(contexts: int, actions: int, hazard: float) -> float:
    """Mean reward per step of the policy that, where the context is that of the step before, repeats an action that was
    right and replaces one that was wrong by any other.

    p = (1 / K) [p (1 - h + h / A) + (1 - p) ((1 - h) / (A - 1) + h / A)] + (1 - 1 / K) / A.
    """
    stays = 1 - hazard + hazard / actions
    found = (1 - hazard) / (actions - 1) + hazard / actions
    return (found + (contexts - 1) / actions) / (contexts - stays + found)


# `python benchmarks/stored_references.py`: 8192 lives of 192 + 2000 steps.
_IDEAL_RATE_OF_DEFAULTS = Estimate(mean=0.97097, standard_error=0.00013)


@lru_cache(maxsize=64)
def ideal_rate(contexts: int, actions: int, hazard: float, life_steps: int | None) -> Estimate:
    """Mean reward per step of the exact Bayes learner (stored for the default options, else about a second of
    simulation)."""
    if (contexts, actions, hazard, life_steps) == (6, 4, 1 / 300, None):
        return _IDEAL_RATE_OF_DEFAULTS
    return simulate_ideal_rate(contexts, actions, hazard, life_steps)


def simulate_ideal_rate(
    contexts: int,
    actions: int,
    hazard: float,
    life_steps: int | None,
    lives: int = 128,
    steps: int = 500,
    seed: int = 0,
) -> Estimate:
    """Simulate the exact Bayes learner on ``lives`` lives, ``steps`` steps each after a burn-in of 8 K A."""
    env = SwitchingBandit(lives, seed, contexts=contexts, actions=actions, hazard=hazard)
    learner = BayesLearner(contexts, actions, hazard)
    return simulate_bayes_learner(env, learner, steps, burn_in=8 * contexts * actions, life_steps=life_steps)
