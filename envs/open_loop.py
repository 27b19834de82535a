"""Environments whose observations do not depend on the actions: a long stretch of life can be had in one call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation
from lifelong.envs.batched import TensorEnv, World
from lifelong.envs.options import check_count


class Stretch(NamedTuple):
    """T steps of B lives, beginning with the present one."""

    observation: Observation  # [T, B, ...]
    privileged: dict[str, Tensor]  # [T, B]


class OpenLoopEnv(TensorEnv[World]):
    """A batched environment whose worlds do not depend on the actions, so that a stretch of them is had at once."""

    @property
    def closed_loop(self) -> str | None:
        """The option that makes ``stream`` impossible, if one is set: a stretch may not depend on actions or cross an
        end."""
        return None if self.life_steps is None else f"life_steps={self.life_steps}"

    @abstractmethod
    def unroll(self, world: World, time: Tensor, draws: Mapping[str, Tensor]) -> World:
        """The worlds that follow ``world``, bit-equal to stepping.

        Args:
            world: fields [B, ...].
            time: [T, B] int64, the life steps of the T worlds to come.
            draws: of the T steps that lead there, [T B, width] by channel, time first.

        Returns:
            Fields [T B, ...], time first.
        """

    def stream(self, steps: int) -> Stretch:
        """The present observation and the ``steps - 1`` that follow, bit-equal to stepping; then moves on by ``steps``.

        All steps are computed at once, so that memories which update in parallel over time can be fed in parallel.
        Without actions there are no rewards: the sum of rewards in this life stays what it was.

        Raises:
            ValueError: ``steps`` < 1, or lives end, or (in some environments) what is seen depends on the actions.
        """
        check_count(self.name, "steps", steps)
        if self.closed_loop:
            raise ValueError(f"{self.name}: stream() is for lives without end or choice; {self.closed_loop} is set")
        state = self.state
        ahead = torch.arange(1, steps + 1, dtype=torch.int64, device=self.device)[:, None]  # [T, 1]
        draws = self._steps.draw(repeat_in_time(state.step_keys, steps), (state.clock + ahead - 1).flatten())
        later = self.unroll(state.world, state.life_step + ahead, draws)
        last = self.world_type(*(field[-self.num_lives :] for field in later))
        self._state = state._replace(clock=state.clock + steps, life_step=state.life_step + steps, world=last)

        def from_now(now: Mapping[str, Tensor], then: Mapping[str, Tensor]) -> dict[str, Tensor]:
            shape = (steps, self.num_lives)
            return {
                key: torch.cat([now[key][None], then[key].reshape(*shape, *now[key].shape[1:])[:-1]]) for key in now
            }

        observation = from_now(self.observe(state.world), self.observe(later))
        return Stretch(observation, from_now(self.describe(state.world), self.describe(later)))


class TimeIndexedEnv(OpenLoopEnv[World]):
    """An open-loop environment whose world at a time is a function of the birth, the time and that step's random
    numbers."""

    @abstractmethod
    def at_time(self, world: World, time: Tensor, draws: Mapping[str, Tensor]) -> World:
        """``world`` as it is at life step ``time`` [B] int64; everything but the birth's part of it is set anew."""

    def unroll(self, world: World, time: Tensor, draws: Mapping[str, Tensor]) -> World:
        repeated = self.world_type(*(repeat_in_time(field, len(time)) for field in world))
        return self.at_time(repeated, time.flatten(), draws)


def repeat_in_time(value: Tensor, steps: int) -> Tensor:
    """[B, ...] -> [T B, ...], time first."""
    return value.expand(steps, *value.shape).flatten(0, 1)
