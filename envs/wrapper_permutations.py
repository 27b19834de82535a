"""``action_remap`` and ``observation_permute``: hidden permutations of what is done and of what is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.minigrid_env import MiniGridEnv

from lifelong.envs.life_wrapper import PRIVILEGED, ScheduledWrapper, count_regimes
from lifelong.envs.options import check_list
from lifelong.envs.random_streams import Stream
from lifelong.envs.schedules import Schedule

_COLOURED = np.isin(np.arange(len(OBJECT_TO_IDX)), [OBJECT_TO_IDX[kind] for kind in ("door", "key", "ball", "box")])


class PermutationWrapper(ScheduledWrapper):
    """Holds a permutation of ``size`` things, drawn anew whenever the schedule changes, never the one before.

    A schedule that comes back to a value brings that value's permutation back: markov has ``regimes`` of them, all
    different, square two, constant one. With hazard every change draws one.

    Args:
        env: the environment to wrap.
        schedule: constant, square, hazard or markov; its values mean nothing beyond being different.
        size: how many things are permuted.
        options: the subclass's others.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], schedule: Schedule | Mapping[str, Any], size: int, **options: Any
    ) -> None:
        super().__init__(env, schedule, **options)
        self._regimes = count_regimes(self.name, self.schedule)
        if (self._regimes or 2) > math.factorial(min(size, 20)):
            raise ValueError(
                f"{self.name}: the schedule needs {self._regimes or 2} permutations, and {size} things have only "
                f"{math.factorial(size)}"
            )
        self._size = size

    def begin_life(self) -> None:
        super().begin_life()
        # A generator apart from the schedule's, but of the same stream: when and what depend on no action.
        self._draws = self.streams.generator(Stream.SCHEDULE).spawn(1)[0]
        self._known: dict[float, np.ndarray] = {}
        self.change()

    def change(self) -> None:
        value = self.clock.value
        if value not in self._known:
            taken = {other.tobytes() for other in self._known.values()}
            while (drawn := self._draws.permutation(self._size)).tobytes() in taken:
                pass
            if self._regimes is None:
                self._known.clear()
            self._known[value] = drawn
        self.permutation = self._known[value]


class ActionRemap(PermutationWrapper):
    """The agent's i-th action is carried out as the ``permutation[i]``-th.

    Args:
        env: an environment with a Discrete action space.
        schedule: see ``PermutationWrapper``.
        actions: the actions that are permuted among themselves; None: all. Others stay what they are.
    """

    name = "action_remap"

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        schedule: Schedule | Mapping[str, Any],
        actions: Sequence[int] | None = None,
    ) -> None:
        space = env.action_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"{self.name}: fits Discrete action spaces, not {space}")
        low, high = int(space.start), int(space.start + space.n) - 1
        chosen = list(range(low, high + 1)) if actions is None else list(check_list(self.name, "actions", actions))
        if len(set(chosen)) < len(chosen) or not all(_is_action(space, action) for action in chosen):
            raise ValueError(f"{self.name}: actions={chosen} are not allowed; allowed: {low} to {high}, each once")
        super().__init__(env, schedule, len(chosen), actions=actions)
        self._actions = chosen
        self._place = {action: place for place, action in enumerate(chosen)}

    def act(self, action: Any) -> Any:
        place = self._place.get(int(action))
        return action if place is None else self._actions[self.permutation[place]]

    def hidden(self) -> dict[str, Any]:
        return {**super().hidden(), "action_permutation": self.permutation.copy()}

    def _tell(self, info: dict[str, Any]) -> dict[str, Any]:
        told = super()._tell(info)
        best = told[PRIVILEGED].get("oracle_action")
        place = None if best is None else self._place.get(int(best))
        if place is not None:  # the agent has to ask for what is carried out as the best action
            told[PRIVILEGED]["oracle_action"] = self._actions[int(np.flatnonzero(self.permutation == place)[0])]
        return told


class ObservationPermute(PermutationWrapper):
    """What the agent sees is permuted: entries of a vector, names of states, or in MiniGrid the colours of objects.

    Args:
        env: an environment whose observation is a Box of one dimension, a Discrete, or MiniGrid's.
        schedule: see ``PermutationWrapper``.
    """

    name = "observation_permute"

    def __init__(self, env: gymnasium.Env[Any, Any], schedule: Schedule | Mapping[str, Any]) -> None:
        space = env.observation_space
        self._grid = (
            isinstance(env.unwrapped, MiniGridEnv) and isinstance(space, spaces.Dict) and "image" in space.spaces
        )
        self._vector = isinstance(space, spaces.Box) and len(space.shape) == 1
        if self._grid:
            size = len(COLOR_TO_IDX)
        elif self._vector:
            size = space.shape[0]
        elif isinstance(space, spaces.Discrete):
            size, self._start = int(space.n), int(space.start)
        else:
            raise ValueError(
                f"{self.name}: fits a Box of one dimension, a Discrete, or MiniGrid's observation, not {space}"
            )
        super().__init__(env, schedule, size)
        if self._vector:  # any entry may now show any other
            low, high = np.full_like(space.low, space.low.min()), np.full_like(space.high, space.high.max())
            self.observation_space = spaces.Box(low, high, dtype=space.dtype)

    def show(self, observation: Any) -> Any:
        if self._vector:
            return observation[self.permutation]
        if self._grid:
            image = observation["image"].copy()
            colours = image[..., 1]
            coloured = _COLOURED[image[..., 0]]
            colours[coloured] = self.permutation[colours[coloured]]
            return {**observation, "image": image}
        return self._start + int(self.permutation[int(observation) - self._start])

    def hidden(self) -> dict[str, Any]:
        return {**super().hidden(), "observation_permutation": self.permutation.copy()}


def _is_action(space: spaces.Discrete, action: Any) -> bool:
    return isinstance(action, int) and not isinstance(action, bool) and action in space
