"""``goal_relocate``: the goal of a MiniGrid world moves."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from minigrid.core.world_object import Goal
from minigrid.minigrid_env import MiniGridEnv

from lifelong.envs.life_wrapper import ScheduledWrapper, count_regimes
from lifelong.envs.random_streams import Stream
from lifelong.envs.schedules import Schedule

Cell = tuple[int, int]


class GoalRelocate(ScheduledWrapper):
    """The goal moves to a random empty cell whenever the schedule changes, and stays there through soft resets.

    A schedule that comes back to a value (constant, square, markov) brings that value's cell back; the cells of
    different values differ. Where a new episode has put something else in the goal's cell, or the agent, another cell
    is drawn. The goal moves before the next action is carried out, so it is first seen elsewhere a step after the
    change.

    Args:
        env: a MiniGrid environment with exactly one Goal.
        schedule: constant, square, hazard or markov.
    """

    name = "goal_relocate"

    def __init__(self, env: gymnasium.Env[Any, Any], schedule: Schedule | Mapping[str, Any]) -> None:
        super().__init__(env, schedule)
        self._recurs = count_regimes(self.name, self.schedule) is not None
        base = env.unwrapped
        if not isinstance(base, MiniGridEnv):
            raise ValueError(f"{self.name}: fits MiniGrid environments, not {type(base).__name__}")
        probe = copy.deepcopy(base)
        probe.reset(seed=0)
        goals = sum(isinstance(cell, Goal) for cell in probe.grid.grid)
        if goals != 1:
            raise ValueError(f"{self.name}: fits worlds with exactly one Goal; {type(base).__name__} has {goals}")
        base._gen_grid = GridWithMovedGoal(base, self)

    def begin_life(self) -> None:
        super().begin_life()
        self._world = self.streams.generator(Stream.WORLD)
        self._cells: dict[float, Cell] = {}
        self._moved = False

    def change(self) -> None:
        self._moved = True

    def act(self, action: Any) -> Any:
        if self._moved:
            self.place_goal()
        return action

    def place_goal(self) -> None:
        """Put the goal where the schedule's present value has it."""
        self._moved = False
        base = self.env.unwrapped
        grid = base.grid
        place = next(index for index, cell in enumerate(grid.grid) if isinstance(cell, Goal))
        goal, old = grid.grid[place], (place % grid.width, place // grid.width)
        cell = self._cells.get(self.clock.value)
        if cell != old:
            grid.set(*old, None)
            agent = (int(base.agent_pos[0]), int(base.agent_pos[1]))
            if cell is None or cell == agent or grid.get(*cell) is not None:
                empty = [(i % grid.width, i // grid.width) for i, thing in enumerate(grid.grid) if thing is None]
                free = [other for other in empty if other not in (agent, old, *self._cells.values())]
                if not free:
                    raise ValueError(f"{self.name}: there is no free cell for the goal")
                cell = free[int(self._world.integers(len(free)))]
            grid.set(*cell, goal)
            goal.cur_pos = np.array(cell)
        if not self._recurs:
            self._cells.clear()
        self._cells[self.clock.value] = cell

    def hidden(self) -> dict[str, Any]:
        return {**super().hidden(), "goal": np.array(self._goal_cell(), np.int64)}

    def _goal_cell(self) -> Cell:
        grid = self.env.unwrapped.grid
        place = next(index for index, cell in enumerate(grid.grid) if isinstance(cell, Goal))
        return place % grid.width, place // grid.width


class GridWithMovedGoal:
    """In the place of ``MiniGridEnv._gen_grid``, so that every first observation shows the goal where it belongs."""

    def __init__(self, environment: MiniGridEnv, wrapper: GoalRelocate) -> None:
        self.environment, self.wrapper = environment, wrapper

    def __call__(self, width: int, height: int) -> None:
        type(self.environment)._gen_grid(self.environment, width, height)
        self.wrapper.place_goal()
