"""A bandit with noisy rewards whose best arm changes, for ever."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.drift_bandit_learners import simulate_filter, win_stay_lose_shift_rate
from lifelong.envs.measurement import Estimate
from lifelong.envs.options import check_choice, check_count, check_number, check_probability
from lifelong.envs.random_streams import Channel, Stream
from lifelong.envs.registry import register_env
from lifelong.envs.schedules import Markov, ReflectedWalk
from lifelong.envs.signalling import Signal


class DriftBanditWorld(NamedTuple):
    """The hidden state of the arms."""

    schedule: Tensor  # [B, 1] float64, the best arm (switching), or [B, K] float64, the arms' probabilities (restless)
    steps_since_change: Tensor  # [B] int64: 0 at the first step under a best arm
    changed: Tensor  # [B] bool: the best arm is another one than a step ago


@register_env("drift_bandit")
class DriftBandit(TensorEnv[DriftBanditWorld]):
    """Which arm pays most must be inferred from noisy rewards, and again when it changes.

    Pulling arm a earns 1 with probability p_a, else 0.

    * ``switching``: one arm pays with probability ``high``, the others with ``low``; with probability ``hazard`` per
      step another arm, uniformly, becomes the best.
    * ``restless``: each p_a is a random walk with steps ``deviation`` N(0, 1), reflected at ``low`` and ``high``.

    Observation: ``observation`` [B, 1 + width of the signal] float32; the first entry is always 1 (there is nothing to
        see).
    Actions: 0..K-1.
    Privileged: ``oracle_action`` int64, ``regime`` int64 (the best arm), ``steps_since_change`` int64, ``changed``
    bool, ``oracle_rate`` float64 (the best arm's probability) (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        arms: K.
        kind: ``"switching"`` or ``"restless"``.
        high, low: see above, with low < high.
        hazard: of switching.
        deviation: of restless.
        signal: what is told of the best arm, see ``Signal``; its code is the best arm, one-hot.
    """

    name = "drift_bandit"
    world_type = DriftBanditWorld

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        arms: int = 5,
        kind: Literal["switching", "restless"] = "switching",
        high: float = 0.9,
        low: float = 0.1,
        hazard: float = 0.01,
        deviation: float = 0.02,
        signal: str = "hidden",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.arms = self.num_actions = check_count(self.name, "arms", arms, low=2)
        self.kind = check_choice(self.name, "kind", kind, ("switching", "restless"))
        self.low = check_probability(self.name, "low", low)
        self.high = check_number(self.name, "high", check_probability(self.name, "high", high), above=low)
        self.hazard = check_probability(self.name, "hazard", hazard)
        self.signal = Signal(self.name, signal, code_size=self.arms)
        self._best_arm = Markov(self.arms, self.hazard)
        self._walk = ReflectedWalk(self.low, self.high, check_number(self.name, "deviation", deviation, above=0.0))
        self.observation_size = 1 + self.signal.width
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)
        self._arm_codes = torch.eye(self.arms, device=self.device)

    @property
    def references(self) -> References:  # type: ignore[override]
        notes = {"memoryless": "closed form: each arm is as often the best one"}
        if self.kind == "restless":
            span = self.high - self.low
            random, oracle = self.low + span / 2, self.low + span * self.arms / (self.arms + 1)
            notes["oracle"] = "closed form: the largest of K uniform probabilities, low + (high - low) K / (K + 1)"
            told = self.signal.kind in ("cue", "always")
            memoryless = {"always": oracle, "cue": None}.get(self.signal.kind, random)
            return References(
                per="step",
                random=random,
                oracle=oracle,
                memoryless=memoryless,
                last_transition=oracle if told else None,
                notes=notes,
            )
        random = (self.high + (self.arms - 1) * self.low) / self.arms
        last_transition: float | None = None
        if self.signal.kind in ("cue", "always"):
            last_transition = self.high
            notes["last_transition"] = "closed form: the arm that is told, again and again"
        elif self.life_steps is None:
            shift = win_stay_lose_shift_rate(self.arms, self.high, self.low, self.hazard)
            last_transition = max(random, shift)
            notes["last_transition"] = "closed form: stay after a reward, else any other arm"
        memoryless = random
        ideal: float | None = self.high
        if self.signal.kind in ("hidden", "flag") and self.life_steps is not None:
            ideal = None  # the filter is simulated for lives without end
        elif self.signal.kind in ("hidden", "flag"):
            simulated = filter_rate(self.arms, self.high, self.low, self.hazard, self.signal.kind == "flag")
            ideal = simulated.mean
            notes["ideal_learner"] = (
                f"exact filter of the best arm, greedy: simulation, standard error {simulated.standard_error:.5f}"
            )
        elif self.signal.kind == "cue":
            told_steps = self.hazard + (1 - self.hazard) / (self.life_steps or math.inf)
            memoryless = random + told_steps * (self.high - random)
        else:
            memoryless = self.high
        return References(
            per="step",
            random=random,
            oracle=self.high,
            memoryless=memoryless,
            last_transition=last_transition,
            ideal_learner=ideal,
            notes=notes,
        )

    def birth_channels(self) -> Mapping[str, Channel]:
        return {"schedule": Channel(Stream.SCHEDULE, 1 if self.kind == "switching" else self.arms)}

    def step_channels(self) -> Mapping[str, Channel]:
        width = 2 if self.kind == "switching" else 2 * self.arms
        return {"schedule": Channel(Stream.SCHEDULE, width), "reward": Channel(Stream.NOISE)}

    def begin(self, draws: Mapping[str, Tensor]) -> DriftBanditWorld:
        schedule = (self._best_arm if self.kind == "switching" else self._walk).begin(draws["schedule"])
        age = torch.zeros(self.num_lives, dtype=torch.int64, device=self.device)
        return DriftBanditWorld(schedule, age, torch.zeros_like(age, dtype=torch.bool))

    def advance(self, world: DriftBanditWorld, action: Tensor, draws: Mapping[str, Tensor]) -> Change[DriftBanditWorld]:
        chance = self._probability(world, action)
        reward = (draws["reward"][:, 0] < chance).to(torch.float32)
        if self.kind == "switching":
            schedule = self._best_arm.advance(world.schedule, draws["schedule"])
        else:  # one walk per arm
            uniform = draws["schedule"].reshape(-1, 2)
            schedule = self._walk.advance(world.schedule.reshape(-1, 1), uniform).reshape(world.schedule.shape)
        after = world._replace(schedule=schedule)
        changed = self._best(after) != self._best(world)
        age = (world.steps_since_change + 1).masked_fill(changed, 0)
        return Change(after._replace(steps_since_change=age, changed=changed), reward)

    def observe(self, world: DriftBanditWorld) -> Observation:
        blank = torch.ones(self.num_lives, 1, device=self.device)
        if not self.signal.width:
            return {"observation": blank}
        told = self.signal.entries(world.steps_since_change == 0, self._arm_codes[self._best(world)])
        return {"observation": torch.cat([blank, told], dim=1)}

    def describe(self, world: DriftBanditWorld) -> dict[str, Tensor]:
        best = self._best(world)
        return {
            "oracle_action": best,
            "regime": best,
            "steps_since_change": world.steps_since_change,
            "changed": world.changed,
            "oracle_rate": self._probability(world, best),
        }

    def _best(self, world: DriftBanditWorld) -> Tensor:
        if self.kind == "switching":
            return self._best_arm.regime(world.schedule)
        return world.schedule.argmax(1)

    def _probability(self, world: DriftBanditWorld, arm: Tensor) -> Tensor:
        """Chance [B] float64 that ``arm`` [B] pays."""
        if self.kind == "restless":
            return world.schedule.gather(1, arm[:, None])[:, 0]
        low = torch.full_like(world.schedule[:, 0], self.low)
        return low.masked_fill(arm == self._best(world), self.high)


# `python benchmarks/stored_references.py`: 8192 lives of 500 + 5000 steps.
_FILTER_RATE_OF_DEFAULTS = Estimate(mean=0.85165, standard_error=0.00009)


@lru_cache(maxsize=64)
def filter_rate(arms: int, high: float, low: float, hazard: float, told: bool) -> Estimate:
    """Mean reward per step of the filter (stored for the default options, else a second of simulation)."""
    if (arms, high, low, hazard, told) == (5, 0.9, 0.1, 0.01, False):
        return _FILTER_RATE_OF_DEFAULTS
    return simulate_filter_rate(arms, high, low, hazard, told)


def simulate_filter_rate(
    arms: int, high: float, low: float, hazard: float, told: bool, lives: int = 512, steps: int = 1000, seed: int = 0
) -> Estimate:
    """Simulate the filter on ``lives`` lives, ``steps`` steps each after a burn-in of 500."""
    env = DriftBandit(lives, seed, arms=arms, high=high, low=low, hazard=hazard)
    return simulate_filter(env, arms, high, low, hazard, told, steps=steps, burn_in=500)
