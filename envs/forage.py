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
from lifelong.envs.privileged import Privileged
from lifelong.envs.random_streams import Channel, Stream, integers
from lifelong.envs.registry import register_env
from lifelong.envs.schedules import Square
from lifelong.envs.signalling import Signal


class ForageWorld(NamedTuple):
    """Where the objects are, and what they are worth."""

    agent: Tensor  # [B, 2] int64: column and row
    objects: Tensor  # [B, N] int64: the cell n column + row of each object
    phase: Tensor  # [B, K] float64: of the square wave of each kind's value
    good: Tensor  # [B, K] bool: which kinds are worth +1
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
        period: steps after which a kind's values repeat, even; they are reversed twice in it.
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
        if check_count(self.name, "period", period, low=2, high=2**52) % 2:
            raise ValueError(f"{self.name}: period={period} is not allowed; allowed: even integers from 2 to {2**52}")
        self._value = Square(low=-1.0, high=1.0, period=period)
        self.signal = Signal(self.name, signal, code_size=self.kinds)
        self._view = 2 * self.radius + 1
        self.observation_size = self.kinds * self._view**2 + self.signal.width
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)
        self._options = (self.size, self.kinds, self.objects_per_kind, self._value.period)
        self._move = torch.tensor(MOVES, device=self.device)  # [4, 2]
        kind = torch.arange(self.kinds, device=self.device)
        self._bits = 2**kind
        self._kind_offset = (kind * self._view**2).repeat_interleave(self.objects_per_kind)  # [N]

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
        phase = self._value.begin(draws["phase"])
        agent = torch.zeros(len(phase), 2, dtype=torch.int64, device=self.device)
        age = torch.zeros_like(agent[:, 0])
        objects = self._new_cells(age, draws["objects"])
        return ForageWorld(agent, objects, phase, self._good(phase), age, torch.zeros_like(age, dtype=torch.bool))

    def advance(self, world: ForageWorld, action: Tensor, draws: Mapping[str, Tensor]) -> Change[ForageWorld]:
        agent = (world.agent + self._move[action]).remainder(self.size)
        cell = agent[:, 0] * self.size + agent[:, 1]
        taken = world.objects == cell[:, None]  # [B, N]
        by_kind = taken.reshape(-1, self.kinds, self.objects_per_kind).sum(2)
        reward = torch.where(world.good, by_kind, -by_kind).sum(1)
        phase = self._value.advance(world.phase, draws["objects"])
        good = self._good(phase)
        changed = (good != world.good).any(1)
        after = ForageWorld(
            agent=agent,
            objects=torch.where(taken, self._new_cells(cell, draws["objects"]), world.objects),
            phase=phase,
            good=good,
            steps_since_change=(world.steps_since_change + 1).masked_fill(changed, 0),
            changed=changed,
        )
        return Change(after, reward.to(torch.float32))

    def observe(self, world: ForageWorld) -> Observation:
        column, row = self._from(world, world.agent - self.radius)  # the view is 0..2 r
        entry = self._kind_offset + column * self._view + row
        seen = (column < self._view) & (row < self._view)
        beyond = self.kinds * self._view**2  # one entry more, for all that is not in view
        shown = torch.zeros(len(entry), beyond + 1, device=self.device)
        shown = shown.scatter_(1, torch.where(seen, entry, beyond), 1.0)[:, :-1]
        told = self.signal.entries(world.steps_since_change == 0, world.good.to(torch.float32))
        return {"observation": torch.cat([shown, told], dim=1)}

    def describe(self, world: ForageWorld) -> Mapping[str, Tensor]:
        return Privileged(
            {
                "oracle_action": lambda: self._oracle_action(world),
                "regime": (world.good * self._bits).sum(1),
                "steps_since_change": world.steps_since_change,
                "changed": world.changed,
            }
        )

    def _oracle_action(self, world: ForageWorld) -> Tensor:
        """The move [B] that leads nearest to a good object, bad ones on its cell avoided."""
        objects = torch.stack(self._from(world, world.agent), dim=2)
        after = (objects[:, None] - self._move[:, None]).remainder(self.size)  # [B, move, N, 2]
        distance = torch.minimum(after, self.size - after).sum(3)
        wanted = world.good.repeat_interleave(self.objects_per_kind, dim=1)[:, None]  # [B, 1, N]
        nearest = distance.masked_fill(~wanted, 2 * self.size).amin(2)
        bad = ((distance == 0) & ~wanted).sum(2) - ((distance == 0) & wanted).sum(2)  # what the step itself costs
        return (nearest + 4 * self.size * bad.clamp(min=0)).argmin(1)

    def _from(self, world: ForageWorld, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Column and row [B, N] of every object, counted from ``origin`` [B, 2] on, modulo n."""
        column = world.objects // self.size
        row = world.objects - column * self.size
        return (column - origin[:, :1]).remainder(self.size), (row - origin[:, 1:]).remainder(self.size)

    def _good(self, phase: Tensor) -> Tensor:
        """[B, K] bool: which kinds are worth +1."""
        return (self._value.value(phase.reshape(-1, 1)) > 0).reshape(phase.shape)

    def _new_cells(self, agent: Tensor, uniform: Tensor) -> Tensor:
        """Cells [B, N], any but the agent's [B]."""
        return ((agent + 1)[:, None] + integers(uniform, self.size**2 - 1)).remainder(self.size**2)


# `python benchmarks/stored_references.py`, by (size, kinds, objects_per_kind, period): 2048 lives of 100 + 500 steps.
_STORED_GREEDY_RATES = {(15, 2, 8, 2000): Estimate(mean=0.14726, standard_error=0.00327)}


@lru_cache(maxsize=64)
def greedy_rate(size: int, kinds: int, objects_per_kind: int, period: int) -> Estimate:
    """Reward per step of going to the nearest good object (stored for the default options, else a few seconds)."""
    stored = _STORED_GREEDY_RATES.get((size, kinds, objects_per_kind, period))
    return stored if stored is not None else simulate_greedy_rate(size, kinds, objects_per_kind, period)


def simulate_greedy_rate(
    size: int, kinds: int, objects_per_kind: int, period: int, lives: int = 256, steps: int = 500, seed: int = 0
) -> Estimate:
    """Simulate the oracle on ``lives`` lives, ``steps`` steps each after a burn-in of 100."""
    env = Forage(lives, seed, size=size, kinds=kinds, objects_per_kind=objects_per_kind, period=period, radius=1)
    return measure(env, oracle_policy, steps, "step", burn_in=100)
