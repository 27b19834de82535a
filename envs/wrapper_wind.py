"""``wind``: now and then, something else acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from minigrid.core.constants import DIR_TO_VEC
from minigrid.minigrid_env import MiniGridEnv

from lifelong.envs.life_wrapper import ScheduledWrapper
from lifelong.envs.options import check_probability
from lifelong.envs.random_streams import Stream
from lifelong.envs.schedules import Schedule


class Wind(ScheduledWrapper):
    """With a probability, a gust blows before a step, in the direction that the schedule says.

    In MiniGrid it carries the agent into the next cell, where that is empty, before the agent's own action is carried
    out. In another environment with discrete actions, it acts in the agent's place.

    Args:
        env: a MiniGrid environment, or one with a Discrete action space.
        schedule: its value, rounded down, modulo 4 (east, south, west, north), or modulo the number of actions.
        probability: of a gust at a step.
    """

    name = "wind"

    def __init__(
        self, env: gymnasium.Env[Any, Any], schedule: Schedule | Mapping[str, Any], probability: float = 0.2
    ) -> None:
        super().__init__(env, schedule, probability=probability)
        self.probability = check_probability(self.name, "probability", probability)
        self._grid = isinstance(env.unwrapped, MiniGridEnv)
        if not self._grid and not isinstance(env.action_space, spaces.Discrete):
            raise ValueError(f"{self.name}: fits MiniGrid and Discrete action spaces, not {env.action_space}")
        self._directions = 4 if self._grid else int(env.action_space.n)

    @property
    def direction(self) -> int:
        """Where the wind blows now."""
        return int(self.clock.value // 1) % self._directions

    def begin_life(self) -> None:
        super().begin_life()
        self._noise = self.streams.generator(Stream.NOISE)

    def act(self, action: Any) -> Any:
        if self._noise.random() >= self.probability:
            return action
        if not self._grid:
            return int(self.env.action_space.start) + self.direction
        base = self.env.unwrapped
        step = DIR_TO_VEC[self.direction]
        cell = (int(base.agent_pos[0] + step[0]), int(base.agent_pos[1] + step[1]))
        if base.grid.get(*cell) is None:
            base.agent_pos = cell
        return action

    def hidden(self) -> dict[str, Any]:
        return {**super().hidden(), "wind_direction": self.direction}
