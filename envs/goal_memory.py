"""Walk to goals that are not seen: where each one is must be found, remembered, and found again when it has moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.drift_torus import MOVES, oracle_rate, random_rate
from lifelong.envs.goal_memory_learners import approach_action, revisiting_rate
from lifelong.envs.options import check_count, check_probability
from lifelong.envs.random_streams import Channel, Stream, hashed_uniform, integers
from lifelong.envs.registry import register_env
from lifelong.envs.signalling import Signal


class GoalMemoryWorld(NamedTuple):
    """Where everything is, and which goal is asked for."""

    agent: Tensor  # [B, 2] int64: column and row
    cells: Tensor  # [B, K] int64: the cell n column + row of each goal; hidden
    unknown: Tensor  # [B, K] bool: the goal has not been reached since it came to its cell
    goal: Tensor  # [B] int64: the one that is asked for, seen
    trip: Tensor  # [B] int64: goals reached in this life
    first: Tensor  # [B] bool: this is the first step of the trip
    trip_key: Tensor  # [B] int64: what is drawn for trip j is a hash of (trip_key, j)


@register_env("goal_memory")
class GoalMemory(TensorEnv[GoalMemoryWorld]):
    """Recall with control: the agent makes its own writes by finding, and its own queries by being sent again.

    On an n x n torus there are K goals in hidden cells. A cue says which one is asked for; when the agent comes to its
    cell, it earns 1. Then the goal moves to another cell with probability ``relocation`` (uniformly), the agent is put
    into a cell other than that of the next goal (uniformly), and the next goal is any of the K (uniformly). Trip j of a
    life asks for the same goal in the same cell from the same start, whatever the agent did on the trips before.

    A policy without memory can do no better than to walk through all n^2 cells in turn, which takes n^2 / 2 steps to a
    goal; the way to a known one takes n / 2.

    Observation: ``observation`` [B, 2 n + K + width of the signal] float32, one-hot codes side by side: the agent's
    column and row, the goal asked for.
    Actions: 0..3, the moves +column, -column, +row, -row.
    Privileged: ``oracle_action`` int64, ``goal_cell`` int64, ``unknown`` bool (the goal asked for has not been reached
    since it came to its cell), ``trip`` int64 (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        size: n, at least 3.
        goals: K.
        relocation: probability that a goal moves when it was reached; it stays for 1 / relocation visits on average.
        signal: what is told of the goals' cells, see ``Signal``. A cell's code is its column and row, one-hot; it is
            shown (or flagged) at the first step of a trip to a goal that has not been reached since it came there.
    """

    name = "goal_memory"
    world_type = GoalMemoryWorld
    num_actions = 4

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        size: int = 5,
        goals: int = 4,
        relocation: float = 0.01,
        signal: str = "hidden",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = check_count(self.name, "size", size, low=3, high=10_000)
        self.goals = check_count(self.name, "goals", goals)
        self.relocation = check_probability(self.name, "relocation", relocation)
        self.signal = Signal(self.name, signal, code_size=2 * self.size)
        self.observation_size = 2 * self.size + self.goals + self.signal.width
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)
        self._move = torch.tensor(MOVES, device=self.device)  # [4, 2]
        self._offsets = torch.tensor([0, self.size, 2 * self.size], device=self.device)
        self._lanes = torch.arange(4, device=self.device)  # the random numbers of a trip

    @property
    def references(self) -> References:  # type: ignore[override]
        notes = {
            "oracle": "closed form: 1 / mean distance to a goal; 2 / n for odd n",
            "random": "closed form: 1 / mean hitting time of a random walk on the torus (Kemeny's constant)",
        }
        told = self.signal.kind in ("cue", "always")
        memoryless = ideal = None
        if not told:
            memoryless = 2 / self.size**2
            notes["memoryless"] = "closed form: a walk through all cells in turn, 2 / n^2; no way sees new cells faster"
        elif self.signal.kind == "always":
            memoryless = oracle_rate(self.size)
            notes["memoryless"] = "closed form: the goal is seen; with this signal it is no memory task"
        if told:
            ideal = oracle_rate(self.size)
        elif self.size <= _LARGEST_OF_EXACT_LEARNER and self.life_steps is None:
            ideal = max(revisiting_rate(self.size, self.relocation), 2 / self.size**2)
            notes["ideal_learner"] = (
                "closed form: what is earned by going where the goal was last, then through all cells in turn (or at "
                "once so), so that the ideal is no less"
            )
        return References(
            per="step",
            random=random_rate(self.size),
            oracle=oracle_rate(self.size),
            memoryless=memoryless,
            ideal_learner=ideal,
            notes=notes,
        )

    def capacity_rate(self, capacity: int) -> float:
        """Goals per step with a memory of the ``capacity`` goals reached last, where goals do not move: a known goal
        takes the mean distance (n / 2 for odd n), an unknown one n^2 / 2."""
        known = min(1.0, check_count(self.name, "capacity", capacity, low=0) / self.goals)
        return 1 / (known / oracle_rate(self.size) + (1 - known) * self.size**2 / 2)

    def birth_channels(self) -> Mapping[str, Channel]:
        return {"cells": Channel(Stream.SCHEDULE, self.goals), "trip_key": Channel(Stream.SCHEDULE)}

    def step_channels(self) -> Mapping[str, Channel]:
        return {}  # all that is random in a trip is a function of the trip's number

    def begin(self, draws: Mapping[str, Tensor]) -> GoalMemoryWorld:
        cells = integers(draws["cells"], self.size**2)
        trip_key = (draws["trip_key"][:, 0] * 2.0**53).to(torch.int64)
        trip = torch.zeros_like(trip_key)
        goal, agent = self._set_out(cells, self._draw(trip_key, trip))
        unknown = torch.ones_like(cells, dtype=torch.bool)
        return GoalMemoryWorld(agent, cells, unknown, goal, trip, torch.ones_like(trip, dtype=torch.bool), trip_key)

    def advance(self, world: GoalMemoryWorld, action: Tensor, draws: Mapping[str, Tensor]) -> Change[GoalMemoryWorld]:
        agent = (world.agent + self._move[action]).remainder(self.size)
        goal = world.goal[:, None]
        cell = world.cells.gather(1, goal)
        reached = (agent[:, 0] * self.size + agent[:, 1] == cell[:, 0])[:, None]
        trip = world.trip + reached[:, 0]
        drawn = self._draw(world.trip_key, trip)
        moved = drawn[:, 2:3] < self.relocation
        other = (cell + 1 + integers(drawn[:, 3:4], self.size**2 - 1)).remainder(self.size**2)
        cells = world.cells.scatter(1, goal, torch.where(reached & moved, other, cell))
        unknown = world.unknown.scatter(1, goal, torch.where(reached, moved, world.unknown.gather(1, goal)))
        next_goal, start = self._set_out(cells, drawn)
        after = GoalMemoryWorld(
            agent=torch.where(reached, start, agent),
            cells=cells,
            unknown=unknown,
            goal=torch.where(reached[:, 0], next_goal, world.goal),
            trip=trip,
            first=reached[:, 0],
            trip_key=world.trip_key,
        )
        return Change(after, reached[:, 0].to(torch.float32))

    def observe(self, world: GoalMemoryWorld) -> Observation:
        entries = torch.cat([world.agent, world.goal[:, None]], dim=1) + self._offsets
        shown = torch.zeros(self.num_lives, 2 * self.size + self.goals, device=self.device).scatter_(1, entries, 1.0)
        if self.signal.width:
            code = torch.nn.functional.one_hot(self._place(world), self.size).flatten(1).to(torch.float32)
            shown = torch.cat([shown, self.signal.entries(world.first & self._unknown(world), code)], dim=1)
        return {"observation": shown}

    def describe(self, world: GoalMemoryWorld) -> dict[str, Tensor]:
        return {
            "oracle_action": approach_action(self._place(world) - world.agent, self.size),
            "goal_cell": world.cells.gather(1, world.goal[:, None])[:, 0],
            "unknown": self._unknown(world),
            "trip": world.trip,
        }

    def _draw(self, trip_key: Tensor, trip: Tensor) -> Tensor:
        """Uniform numbers [B, 4] for a trip: which goal, from where, whether the last goal moved away, and to where."""
        return hashed_uniform(trip_key[:, None], trip[:, None], self._lanes)

    def _set_out(self, cells: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The goal [B] of a trip and the cell [B, 2] where it begins, any but the goal's."""
        goal = integers(drawn[:, 0], self.goals)
        start = cells.gather(1, goal[:, None])[:, 0] + 1 + integers(drawn[:, 1], self.size**2 - 1)
        start = start.remainder(self.size**2)
        return goal, torch.stack([start // self.size, start % self.size], dim=1)

    def _place(self, world: GoalMemoryWorld) -> Tensor:
        """Column and row [B, 2] of the goal that is asked for."""
        cell = world.cells.gather(1, world.goal[:, None])
        return torch.cat([cell // self.size, cell % self.size], dim=1)

    def _unknown(self, world: GoalMemoryWorld) -> Tensor:
        return world.unknown.gather(1, world.goal[:, None])[:, 0]


_LARGEST_OF_EXACT_LEARNER = 32  # the enumeration takes n^4 numbers
