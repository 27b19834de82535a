"""``drift_physics``: a physical parameter of CartPole or Acrobot changes.

By itself this asks for no memory: one fixed linear feedback balances CartPole whatever gravity, masses, length and
force are (no fall in 8e6 steps with all five drifting). Together with ``action_remap``, adaptation is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv

from lifelong.envs.life_wrapper import ScheduledWrapper
from lifelong.envs.options import did_you_mean
from lifelong.envs.schedules import Schedule

_CARTPOLE = ("gravity", "masscart", "masspole", "length", "force_mag", "tau")
_ACROBOT = ("link_length_1", "link_length_2", "link_mass_1", "link_mass_2", "link_moi")


class DriftPhysics(ScheduledWrapper):
    """The parameter has the schedule's value; what the environment derives from it is derived again.

    CartPole keeps ``total_mass = masspole + masscart`` and ``polemass_length = masspole * length`` from its
    construction; in Acrobot the centre of mass of a link stays in its middle.

    Args:
        env: CartPole or Acrobot.
        schedule: any; its values must be positive.
        parameter: CartPole: gravity, masscart, masspole, length (half the pole's), force_mag or tau; Acrobot:
            link_length_1, link_length_2, link_mass_1, link_mass_2 or link_moi.
    """

    name = "drift_physics"

    def __init__(self, env: gymnasium.Env[Any, Any], schedule: Schedule | Mapping[str, Any], parameter: str) -> None:
        super().__init__(env, schedule, parameter=parameter)
        base = env.unwrapped
        if not isinstance(base, CartPoleEnv | AcrobotEnv):
            raise ValueError(f"{self.name}: fits CartPole and Acrobot, not {type(base).__name__}")
        allowed = _CARTPOLE if isinstance(base, CartPoleEnv) else _ACROBOT
        if parameter not in allowed:
            raise ValueError(
                f"{self.name}: unknown parameter {parameter!r}; {type(base).__name__} has {', '.join(allowed)}"
                f"{did_you_mean(parameter, allowed)}"
            )
        self.parameter = parameter

    def begin_life(self) -> None:
        super().begin_life()
        self.change()

    def change(self) -> None:
        value = self.clock.value
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{self.name}: the schedule sets {self.parameter} to {value:g}; it must be positive")
        base = self.env.unwrapped
        if isinstance(base, CartPoleEnv):
            setattr(base, self.parameter, value)
            base.total_mass = base.masspole + base.masscart
            base.polemass_length = base.masspole * base.length
        else:
            setattr(base, self.parameter.upper(), value)
            base.LINK_COM_POS_1, base.LINK_COM_POS_2 = base.LINK_LENGTH_1 / 2, base.LINK_LENGTH_2 / 2

    def hidden(self) -> dict[str, Any]:
        return {**super().hidden(), self.parameter: self.clock.value}
