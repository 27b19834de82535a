"""``lifetime``: a life is a fixed number of episodes of the same world (the trials of RL^2; Duan et al. 2016)."""

from __future__ import annotations

from typing import Any

import gymnasium

from lifelong.envs.life_wrapper import SOFT_RESET, LifeWrapper, soft_reset
from lifelong.envs.options import check_count


class Lifetime(LifeWrapper):
    """The memory is kept over ``episodes`` episodes; the life is truncated at the end of the last.

    The ends before are soft resets. As wherever a life is cut from outside, the observation of the last step is the
    first of the episode that would have followed, for its value is what the life went on to.

    Privileged: ``episode_in_life``, the episodes of this life that have ended: ``episodes`` at its last step.

    Args:
        env: any environment.
        episodes: episodes per life.
    """

    name = "lifetime"

    def __init__(self, env: gymnasium.Env[Any, Any], episodes: int) -> None:
        super().__init__(env, episodes=episodes)
        self.episodes = check_count(self.name, "episodes", episodes)
        self._ended = 0

    def begin_life(self) -> None:
        self._ended = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            return observation, reward, False, False, self._tell(info)
        self._ended += 1
        observation, info = soft_reset(self.env)
        over = self._ended == self.episodes
        return observation, reward, False, over, self._tell({**info, SOFT_RESET: not over})

    def hidden(self) -> dict[str, Any]:
        return {"episode_in_life": self._ended}
