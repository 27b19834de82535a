"""``continuing``: a world whose episodes end becomes one that never does."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit
from minigrid.minigrid_env import MiniGridEnv

from lifelong.envs.life_wrapper import SOFT_RESET, LifeWrapper, soft_reset
from lifelong.envs.options import check_number

NO_STEP_LIMIT = 2**62  # MiniGrid has no infinity: it asserts a Python integer


class Continuing(LifeWrapper):
    """Ends of episodes, successes and failures alike, are soft resets inside a life without end or time limit.

    A step that ends an episode shows the first observation of the next one, and says ``info["soft_reset"]``. In
    MiniGrid success pays a constant: the stock ``1 - 0.9 t / max_steps`` would fall with time, which the agent cannot
    see.

    Args:
        env: any environment without a ``TimeLimit`` (``gymnasium.make(..., max_episode_steps=-1)``).
        success_reward: what success pays in MiniGrid; None: 1 there. Other environments pay what they pay.
        failure_reward: what the end of an episode pays instead of the environment's own reward; None: that one. In
            MiniGrid for ends without success only, elsewhere for every termination (a pole that fell).
    """

    name = "continuing"

    def __init__(
        self, env: gymnasium.Env[Any, Any], success_reward: float | None = None, failure_reward: float | None = None
    ) -> None:
        super().__init__(env, success_reward=success_reward, failure_reward=failure_reward)
        self._grid = isinstance(env.unwrapped, MiniGridEnv)
        if success_reward is not None and not self._grid:
            raise ValueError(
                f"{self.name}: success_reward is for MiniGrid, and {type(env.unwrapped).__name__} is none of it; "
                "leave it out"
            )
        inner: Any = env
        while isinstance(inner, gymnasium.Wrapper):
            if isinstance(inner, TimeLimit):
                raise ValueError(f"{self.name}: the environment has a TimeLimit; make it with max_episode_steps=-1")
            inner = inner.env
        if self._grid:
            amount = 1.0 if success_reward is None else success_reward
            env.unwrapped._reward = ConstantReward(check_number(self.name, "success_reward", amount, above=0.0))
        self._failure = None if failure_reward is None else check_number(self.name, "failure_reward", failure_reward)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._lift_limit()
        return result

    def soft_reset(self) -> tuple[Any, dict[str, Any]]:
        result = super().soft_reset()
        self._lift_limit()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            return observation, reward, False, False, info
        if self._failure is not None and terminated and not (self._grid and reward > 0):
            reward = self._failure
        observation, info = soft_reset(self.env)
        self._lift_limit()
        return observation, reward, False, False, {**info, SOFT_RESET: True}

    def _lift_limit(self) -> None:
        if self._grid:  # each time, because BabyAI's levels set a limit of their own whenever they are drawn
            self.env.unwrapped.max_steps = NO_STEP_LIMIT


class ConstantReward:
    """In the place of ``MiniGridEnv._reward``: success pays ``amount`` at any time. Pickles, unlike a lambda."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self) -> float:
        return self.amount
