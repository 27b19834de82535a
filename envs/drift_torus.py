"""Walk to a visible goal with hidden controls, which are rewired now and then."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.drift_torus_learners import simulate_elimination_learner
from lifelong.envs.measurement import Estimate, measure, oracle_policy, random_policy
from lifelong.envs.options import check_count, check_number, check_probability
from lifelong.envs.random_streams import Channel, Stream, integers
from lifelong.envs.registry import register_env
from lifelong.envs.schedules import ReflectedWalk
from lifelong.envs.signalling import Signal

MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1))
_STRONGEST_WIND = 0.5
WIRINGS = tuple(itertools.permutations(range(4)))  # wiring -> action -> index of its move


class DriftTorusWorld(NamedTuple):
    """Where the goal is, seen from the agent, and what the controls do."""

    goal: Tensor  # [B, 2] int64: goal minus agent, modulo n
    gear: Tensor  # [B] int64: the gear of this step, visible
    wiring: Tensor  # [B, gears] int64: which of the 24 permutations each gear has; hidden
    wind: Tensor  # [B, 1] float64: in [0, 4), rounded down it is the move that a gust makes; hidden
    steps_since_change: Tensor  # [B] int64: 0 at the first step under a wiring
    changed: Tensor  # [B] bool: the wiring was redrawn just before this step


@register_env("drift_torus")
class DriftTorus(TensorEnv[DriftTorusWorld]):
    """What each control does must be found by trying, remembered, and found again after each change.

    The agent walks on an n x n torus to a goal that it sees. Four actions make the four moves, in a hidden order, which
    depends on the gear of the step; the gear is drawn uniformly at every step and seen. With probability ``hazard`` per
    step the order of every gear is redrawn, uniformly. Reaching the goal earns 1, and the next goal is any other cell,
    uniformly.

    With one gear a policy without memory scores 0.33 and more, because the torus remembers for it ("on with this action
    as long as the column is not the goal's" arrives, whichever way it goes). With two gears, drawn anew at every step,
    it does not.

    ``wind``: with that probability a gust makes another move before the agent's own. Its direction wanders as a
    reflected random walk over the four moves, 0.01 per step.

    Observation: ``observation`` [B, 2 n + gears + width of the signal] float32, one-hot codes side by side: the goal's
    column and row relative to the agent, and the gear.
    Actions: 0..3.
    Privileged: ``oracle_action`` int64, ``steps_since_change`` int64, ``changed`` bool (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        size: n, at least 3.
        gears: number of gears.
        hazard: probability per step that the wirings are redrawn.
        wind: probability of a gust at a step, at most 0.5.
        signal: what is told of the wirings, see ``Signal``; its code is the move of each gear and action, one-hot.
    """

    name = "drift_torus"
    world_type = DriftTorusWorld
    num_actions = 4

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        size: int = 5,
        gears: int = 2,
        hazard: float = 0.001,
        wind: float = 0.0,
        signal: str = "hidden",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = check_count(self.name, "size", size, low=3, high=10_000)
        self.gears = check_count(self.name, "gears", gears)
        self.hazard = check_probability(self.name, "hazard", hazard)
        self.wind = check_number(self.name, "wind", wind, low=0.0)
        if self.wind > _STRONGEST_WIND:
            raise ValueError(
                f"{self.name}: wind={wind!r} is not allowed; allowed: 0 to {_STRONGEST_WIND:g} (in more, the "
                "shortest way is no oracle)"
            )
        self._direction = ReflectedWalk(low=0.0, high=4.0, deviation=0.01)
        self.signal = Signal(self.name, signal, code_size=16 * self.gears)
        self.observation_size = 2 * self.size + self.gears + self.signal.width
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)
        self._move = torch.tensor(MOVES, device=self.device)  # [4, 2]
        self._wirings = torch.tensor(WIRINGS, device=self.device)  # [24, action] -> move
        self._action_of_move = self._wirings.argsort(dim=1)  # [24, move] -> action
        self._offsets = torch.tensor([0, self.size, 2 * self.size], device=self.device)

    @property
    def references(self) -> References:  # type: ignore[override]
        if self.wind > 0:
            random, oracle = simulate_windy_rates(self.size, self.gears, self.hazard, self.wind)
            windy = {
                "random": f"simulation, standard error {random.standard_error:.5f}",
                "oracle": f"shortest ways, gusts not foreseen: simulation, standard error {oracle.standard_error:.5f}",
            }
            return References(per="step", random=random.mean, oracle=oracle.mean, notes=windy)
        notes = {
            "oracle": "closed form: 1 / mean distance to a goal; 2 / n for odd n",
            "random": "closed form: 1 / mean hitting time of a random walk on the torus (Kemeny's constant)",
        }
        memoryless = (
            _BEST_MEMORYLESS.get((self.size, self.gears, self.hazard)) if self.signal.kind == "hidden" else None
        )
        if memoryless is not None:
            notes["memoryless"] = "the best that gradient ascent on the exact rate found, from several starts"
        ideal = None
        if self.signal.kind == "hidden" and self.life_steps is None:
            learner = elimination_rate(self.size, self.gears, self.hazard)
            ideal = learner.mean
            notes["ideal_learner"] = (
                "what a learner by elimination gets, so that the ideal is no less: simulation, "
                f"standard error {learner.standard_error:.5f}"
            )
        elif self.signal.kind in ("cue", "always"):
            ideal = oracle_rate(self.size)
        return References(
            per="step",
            random=random_rate(self.size),
            oracle=oracle_rate(self.size),
            memoryless=memoryless,
            ideal_learner=ideal,
            notes=notes,
        )

    def birth_channels(self) -> Mapping[str, Channel]:
        return {
            "wiring": Channel(Stream.SCHEDULE, self.gears),
            "wind": Channel(Stream.SCHEDULE),
            "goal": Channel(Stream.WORLD),
            "gear": Channel(Stream.WORLD),
        }

    def step_channels(self) -> Mapping[str, Channel]:
        channels = {
            "change": Channel(Stream.SCHEDULE),
            "wiring": Channel(Stream.SCHEDULE, self.gears),
            "goal": Channel(Stream.WORLD),
            "gear": Channel(Stream.WORLD),
        }
        if self.wind > 0:
            channels |= {"wind": Channel(Stream.SCHEDULE, self._direction.draws), "gust": Channel(Stream.NOISE)}
        return channels

    def begin(self, draws: Mapping[str, Tensor]) -> DriftTorusWorld:
        gear = integers(draws["gear"][:, 0], self.gears)
        age = torch.zeros_like(gear)
        wiring, wind = integers(draws["wiring"], len(WIRINGS)), self._direction.begin(draws["wind"])
        return DriftTorusWorld(self._new_goal(draws), gear, wiring, wind, age, torch.zeros_like(age, dtype=torch.bool))

    def advance(self, world: DriftTorusWorld, action: Tensor, draws: Mapping[str, Tensor]) -> Change[DriftTorusWorld]:
        move = self._move[self._wirings[self._wiring_now(world), action]]  # [B, 2]
        wind = world.wind
        if self.wind > 0:
            gust = self._move[wind[:, 0].to(torch.int64).clamp(max=3)]
            move = move + gust * (draws["gust"] < self.wind)
            wind = self._direction.advance(wind, draws["wind"])
        goal = (world.goal - move).remainder(self.size)
        reached = (goal == 0).all(1)
        goal = torch.where(reached[:, None], self._new_goal(draws), goal)
        changed = draws["change"] < self.hazard  # [B, 1]
        wiring = torch.where(changed, integers(draws["wiring"], len(WIRINGS)), world.wiring)
        age = (world.steps_since_change + 1).masked_fill(changed[:, 0], 0)
        gear = integers(draws["gear"][:, 0], self.gears)
        return Change(DriftTorusWorld(goal, gear, wiring, wind, age, changed[:, 0]), reached.to(torch.float32))

    def observe(self, world: DriftTorusWorld) -> Observation:
        entries = torch.cat([world.goal, world.gear[:, None]], dim=1) + self._offsets
        shown = torch.zeros(self.num_lives, 2 * self.size + self.gears, device=self.device).scatter_(1, entries, 1.0)
        if self.signal.width:
            code = torch.nn.functional.one_hot(self._wirings[world.wiring], 4).flatten(1).to(torch.float32)
            shown = torch.cat([shown, self.signal.entries(world.steps_since_change == 0, code)], dim=1)
        return {"observation": shown}

    def describe(self, world: DriftTorusWorld) -> dict[str, Tensor]:
        column, row = world.goal[:, 0], world.goal[:, 1]
        axis = torch.where(column == 0, 2, 0)
        distance = torch.where(column == 0, row, column)
        move = axis + (2 * distance > self.size)  # the shorter way around
        return {
            "oracle_action": self._action_of_move[self._wiring_now(world), move],
            "steps_since_change": world.steps_since_change,
            "changed": world.changed,
        }

    def _wiring_now(self, world: DriftTorusWorld) -> Tensor:
        return world.wiring.gather(1, world.gear[:, None])[:, 0]

    def _new_goal(self, draws: Mapping[str, Tensor]) -> Tensor:
        cell = 1 + integers(draws["goal"][:, 0], self.size**2 - 1)  # any but the agent's own
        return torch.stack([cell // self.size, cell % self.size], dim=1)


def oracle_rate(size: int) -> float:
    """Goals per step along shortest ways: 2 / n for odd n, 2 (n^2 - 1) / n^3 for even n."""
    return 2 / size if size % 2 else 2 * (size**2 - 1) / size**3


@lru_cache(maxsize=64)
def random_rate(size: int) -> float:
    """Goals per step of a random walk: (n^2 - 1) / (n^2 kappa), with Kemeny's constant of the torus
    kappa = sum over (a, b) != 0 of 1 / (1 - (cos(2 pi a / n) + cos(2 pi b / n)) / 2).
    """
    cosine = [math.cos(2 * math.pi * a / size) for a in range(size)]
    kappa = sum(1 / (1 - (cosine[a] + cosine[b]) / 2) for a in range(size) for b in range(size) if a or b)
    return (size**2 - 1) / (size**2 * kappa)


# `python benchmarks/stored_references.py`, by (size, gears, hazard): the best policies without memory that were found.
_BEST_MEMORYLESS = {(5, 1, 0.001): 0.15384, (5, 2, 0.001): 0.09531}

# `python benchmarks/stored_references.py`: 2048 lives of 500 + 10000 steps.
_ELIMINATION_RATE_OF_DEFAULTS = Estimate(mean=0.39768, standard_error=0.00006)


@lru_cache(maxsize=64)
def elimination_rate(size: int, gears: int, hazard: float) -> Estimate:
    """Goals per step of the learner by elimination (stored for the default options, else about two seconds)."""
    if (size, gears, hazard) == (5, 2, 0.001):
        return _ELIMINATION_RATE_OF_DEFAULTS
    return simulate_elimination_rate(size, gears, hazard)


def simulate_elimination_rate(
    size: int, gears: int, hazard: float, lives: int = 256, steps: int = 1000, seed: int = 0
) -> Estimate:
    """Simulate the learner on ``lives`` lives, ``steps`` steps each after a burn-in of 500."""
    env = DriftTorus(lives, seed, size=size, gears=gears, hazard=hazard)
    return simulate_elimination_learner(env, size, gears, steps=steps, burn_in=500)


@lru_cache(maxsize=64)
def simulate_windy_rates(size: int, gears: int, hazard: float, wind: float) -> tuple[Estimate, Estimate]:
    """Goals per step of random actions and of the oracle under wind, on 256 lives of 1000 steps (about a second)."""

    def build() -> DriftTorus:
        return DriftTorus(256, 0, size=size, gears=gears, hazard=hazard, wind=wind)

    random = measure(build(), random_policy(4, seed=0), 1000, "step", burn_in=100)
    return random, measure(build(), oracle_policy, 1000, "step", burn_in=100)
