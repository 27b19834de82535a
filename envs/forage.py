"""Gather objects on an endless grid; which kinds are good is hidden, and is reversed now and then, for ever."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.drift_torus import MOVES
from lifelong.envs.measurement import Estimate, measure, oracle_policy
from lifelong.envs.options import check_count
from lifelong.envs.random_streams import Channel, Stream, integers
from lifelong.envs.registry import register_env
from lifelong.envs.schedules import Square
from lifelong.envs.signalling import Signal


class ForageWorld(NamedTuple):
    """Where the objects are, and what they are worth."""

    objects: Tensor  # [B, N, 2] int64: column and row of each object minus the agent's, modulo n
    phase: Tensor  # [B, K] float64: of the square wave of each kind's value
    steps_since_change: Tensor  # [B] int64: 0 at the first step under these values
    changed: Tensor  # [B] bool: a value is another one than a step ago


@register_env("forage")
class Forage(TensorEnv[ForageWorld]):
    """Which objects to seek and which to avoid must be tasted, remembered, and tasted again after each change.

    The agent walks on an n x n torus without landmarks. There are ``objects_per_kind`` objects of each of K kinds in
    view or beyond it. Whoever comes to an object's cell takes it, and it comes back in another cell (any but the
    agent's, uniformly), so that neither the world nor its state ever grows. An object of kind k is worth +1 in one half
    of each ``period`` and -1 in the other; each kind has a phase of its own, uniformly random.

    The values are independent of all that is seen: whatever a policy without memory does, it earns 0 on average.

    Observation: ``observation`` [B, K (2 r + 1)^2 + width of the signal] float32: for each kind, 1 where an object of
    it lies in the square of radius r around the agent.
    Actions: 0..3, the moves +column, -column, +row, -row.
    Privileged: ``oracle_action`` int64, ``regime`` int64 (bit k: kind k is worth +1), ``steps_since_change`` int64,
    ``changed`` bool (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        size: n, at least 3.
        kinds: K, at most 32.
        objects_per_kind: number of objects of each kind.
        radius: r of the view; 2 r + 1 is at most n.
        period: steps after which a kind's values repeat, at least 2; they are reversed twice in it.
        signal: what is told of the values, see ``Signal``; its code is 1 for each kind that is worth +1.
    """

    name = "forage"
    world_type = ForageWorld
    num_actions = 4

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        size: int = 15,
        kinds: int = 2,
        objects_per_kind: int = 8,
        radius: int = 3,
        period: int = 2000,
        signal: str = "hidden",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = check_count(self.name, "size", size, low=3, high=10_000)
        self.kinds = check_count(self.name, "kinds", kinds, high=32)
        self.objects_per_kind = check_count(self.name, "objects_per_kind", objects_per_kind)
        self.radius = check_count(self.name, "radius", radius, high=(self.size - 1) // 2)
        self._value = Square(low=-1.0, high=1.0, period=check_count(self.name, "period", period, low=2, high=2**52))
        self.signal = Signal(self.name, signal, code_size=self.kinds)
        self._view = 2 * self.radius + 1
        self.observation_size = self.kinds * self._view**2 + self.signal.width
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)
        self._options = (self.size, self.kinds, self.objects_per_kind, self._value.period)
        self._move = torch.tensor(MOVES, device=self.device)  # [4, 2]
        self._kind = torch.arange(self.kinds, device=self.device).repeat_interleave(self.objects_per_kind)  # [N]

    @property
    def references(self) -> References:  # type: ignore[override]
        greedy = greedy_rate(*self._options)
        told = self.signal.kind == "always"
        notes = {
            "random": "closed form: either value is as likely for each kind",
            "oracle": f"simulation of going to the nearest good object around bad, s.e. {greedy.standard_error:.5f}",
        }
        if not told:
            notes["memoryless"] = "closed form: the values are independent of all that is seen"
        return References(per="step", random=0.0, oracle=greedy.mean, memoryless=None if told else 0.0, notes=notes)

    def birth_channels(self) -> Mapping[str, Channel]:
        return {
            "phase": Channel(Stream.SCHEDULE, self.kinds),
            "objects": Channel(Stream.WORLD, self.kinds * self.objects_per_kind),
        }

    def step_channels(self) -> Mapping[str, Channel]:
        return {"objects": Channel(Stream.WORLD, self.kinds * self.objects_per_kind)}

    def begin(self, draws: Mapping[str, Tensor]) -> ForageWorld:
        age = torch.zeros(len(draws["phase"]), dtype=torch.int64, device=self.device)
        phase = self._value.begin(draws["phase"])
        return ForageWorld(self._cells(draws["objects"]), phase, age, torch.zeros_like(age, dtype=torch.bool))

    def advance(self, world: ForageWorld, action: Tensor, draws: Mapping[str, Tensor]) -> Change[ForageWorld]:
        objects = (world.objects - self._move[action][:, None]).remainder(self.size)
        taken = (objects == 0).all(2)  # [B, N]
        reward = (taken * self._values(world)).sum(1)
        phase = self._value.advance(world.phase, draws["objects"])
        after = world._replace(
            objects=torch.where(taken[..., None], self._cells(draws["objects"]), objects), phase=phase
        )
        changed = (self._good(after) != self._good(world)).any(1)
        age = (world.steps_since_change + 1).masked_fill(changed, 0)
        return Change(after._replace(steps_since_change=age, changed=changed), reward.to(torch.float32))

    def observe(self, world: ForageWorld) -> Observation:
        place = (world.objects + self.radius).remainder(self.size)  # [B, N, 2], the view is 0..2 r
        seen = (place < self._view).all(2)
        entry = (self._kind * self._view + place[..., 0]) * self._view + place[..., 1]
        shown = torch.zeros(self.num_lives, self.kinds * self._view**2 + 1, device=self.device)
        shown = shown.scatter_(1, torch.where(seen, entry, shown.shape[1] - 1), 1.0)[:, :-1]
        told = self.signal.entries(world.steps_since_change == 0, self._good(world).to(torch.float32))
        return {"observation": torch.cat([shown, told], dim=1)}

    def describe(self, world: ForageWorld) -> dict[str, Tensor]:
        good = self._good(world)
        after = (world.objects[:, None] - self._move[:, None]).remainder(self.size)  # [B, move, N, 2]
        distance = torch.minimum(after, self.size - after).sum(3)
        wanted = good[:, self._kind][:, None]  # [B, 1, N]
        nearest = distance.masked_fill(~wanted, 2 * self.size).amin(2)
        bad = ((distance == 0) & ~wanted).sum(2) - ((distance == 0) & wanted).sum(2)  # what the step itself costs
        bits = 2 ** torch.arange(self.kinds, device=self.device)
        return {
            "oracle_action": (nearest + 4 * self.size * bad.clamp(min=0)).argmin(1),
            "regime": (good * bits).sum(1),
            "steps_since_change": world.steps_since_change,
            "changed": world.changed,
        }

    def _good(self, world: ForageWorld) -> Tensor:
        """[B, K] bool: which kinds are worth +1."""
        columns = world.phase.split(1, dim=1)
        return torch.stack([self._value.value(column) > 0 for column in columns], dim=1)

    def _values(self, world: ForageWorld) -> Tensor:
        """[B, N] float64: what each object is worth."""
        return (2.0 * self._good(world).double() - 1.0)[:, self._kind]

    def _cells(self, uniform: Tensor) -> Tensor:
        """Cells [B, N, 2] seen from the agent, any but its own."""
        cell = 1 + integers(uniform, self.size**2 - 1)
        return torch.stack([cell // self.size, cell % self.size], dim=2)


# `python benchmarks/stored_references.py`, by (size, kinds, objects_per_kind, period): 2048 lives of 100 + 500 steps.
_STORED_GREEDY_RATES = {(15, 2, 8, 2000): Estimate(mean=0.14688, standard_error=0.00326)}


@lru_cache(maxsize=64)
def greedy_rate(size: int, kinds: int, objects_per_kind: int, period: int) -> Estimate:
    """Reward per step of going to the nearest good object (stored for the default options, else a few seconds)."""
    stored = _STORED_GREEDY_RATES.get((size, kinds, objects_per_kind, period))
    return stored if stored is not None else simulate_greedy_rate(size, kinds, objects_per_kind, period)


def simulate_greedy_rate(
    size: int, kinds: int, objects_per_kind: int, period: int, lives: int = 256, steps: int = 500, seed: int = 0
) -> Estimate:
    """Simulate the oracle on ``lives`` lives, ``steps`` steps each after a burn-in of 100."""
    env = Forage(lives, seed, size=size, kinds=kinds, objects_per_kind=objects_per_kind, period=period)
    return measure(env, oracle_policy, steps, "step", burn_in=100)
