"""CartPole and Acrobot as pure functions of a batch of states, with Gymnasium's equations, constants and ends.

Everything is float64 and computed on contiguous rows, so that a life does not depend on its neighbours in the batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor


class ControlSystem(ABC):
    """A physical system whose state has four numbers: two positions and two velocities.

    Attributes:
        name: how configs call it.
        forces: what the actions do, in Gymnasium's order (newtons, or newton metres).
        bound: no entry of ``positions`` or ``velocities`` is larger in magnitude.
        num_positions: P.
    """

    name: ClassVar[str]
    forces: ClassVar[tuple[float, ...]]
    bound: ClassVar[float]
    num_positions: ClassVar[int]

    @abstractmethod
    def begin(self, uniform: Tensor) -> Tensor:
        """States [B, 4] at the start of an episode, from uniform numbers [B, 4] in [0, 1)."""

    @abstractmethod
    def move(self, state: Tensor, force: Tensor) -> Tensor:
        """The states one step later under ``force`` [B]."""

    @abstractmethod
    def over(self, state: Tensor) -> Tensor:
        """[B] bool: the pole has fallen; the goal is reached."""

    @abstractmethod
    def positions(self, state: Tensor) -> Tensor:
        """What is seen of the positions, [B, P] of about unit size."""

    @abstractmethod
    def velocities(self, state: Tensor) -> Tensor:
        """What is seen of the velocities, [B, 2] of about unit size."""

    @abstractmethod
    def wanted(self, state: Tensor) -> Tensor:
        """The index [B] int64 of the force that a good controller, who sees the state, applies."""


class CartPole(ControlSystem):
    """A pole on a cart that is pushed left or right (Barto, Sutton, Anderson 1983; Gymnasium's CartPole-v1).

    State: x, x', theta, theta' (metres, radians, seconds), one explicit Euler step of 0.02 s. It is over where
    |x| > 2.4 or |theta| > 12 degrees.
    """

    name = "cartpole"
    forces = (-10.0, 10.0)
    bound = 2.0
    num_positions = 2

    gravity, mass_cart, mass_pole, half_length, time_step = 9.8, 1.0, 0.1, 0.5, 0.02
    largest_x, largest_angle = 2.4, 12 * 2 * math.pi / 360

    def begin(self, uniform: Tensor) -> Tensor:
        return 0.1 * uniform - 0.05

    def move(self, state: Tensor, force: Tensor) -> Tensor:
        x, speed, angle, spin = _rows(state)
        acceleration, angular = self.accelerations(angle, spin, force)
        step = self.time_step
        return torch.stack(
            [x + step * speed, speed + step * acceleration, angle + step * spin, spin + step * angular]
        ).T

    def accelerations(self, angle: Tensor, spin: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
        """x'' and theta'' [B]."""
        mass, pole = self.mass_pole + self.mass_cart, self.mass_pole * self.half_length
        sine, cosine = angle.sin(), angle.cos()
        push = (force + pole * spin.square() * sine) / mass
        lever = self.half_length * (4 / 3 - self.mass_pole * cosine.square() / mass)
        angular = (self.gravity * sine - cosine * push) / lever
        return push - pole * angular * cosine / mass, angular

    def over(self, state: Tensor) -> Tensor:
        return (state[:, 0].abs() > self.largest_x) | (state[:, 2].abs() > self.largest_angle)

    def positions(self, state: Tensor) -> Tensor:
        return state[:, ::2] / state.new_tensor([self.largest_x, self.largest_angle])

    def velocities(self, state: Tensor) -> Tensor:
        return (state[:, 1::2] / 3.0).clamp(-self.bound, self.bound)

    def wanted(self, state: Tensor) -> Tensor:
        return (state @ state.new_tensor([0.6, 1.2, 18.0, 3.0]) > 0).to(torch.int64)


class Acrobot(ControlSystem):
    """Two links that hang from a point, with a motor between them: swing the tip up (Sutton 1996; Acrobot-v1).

    State: theta_1 (0: hanging), theta_2 (relative to the first link), both in [-pi, pi), and their velocities, bounded
    by 4 pi and 9 pi (radians per second); one Runge-Kutta step of order 4 over 0.2 s. It is over where the tip is a
    link's length above the point: -cos(theta_1) - cos(theta_1 + theta_2) > 1.
    """

    name = "acrobot"
    forces = (-1.0, 0.0, 1.0)
    bound = 1.0
    num_positions = 4

    gravity, time_step = 9.8, 0.2  # links of length 1, mass 1, moment of inertia 1, their centres of mass in the middle
    largest_velocities = (4 * math.pi, 9 * math.pi)

    def begin(self, uniform: Tensor) -> Tensor:
        return 0.2 * uniform - 0.1

    def move(self, state: Tensor, force: Tensor) -> Tensor:
        start, step = state.T.contiguous(), self.time_step
        slope_1 = self.derivative(start, force)
        slope_2 = self.derivative(start + (step / 2) * slope_1, force)
        slope_3 = self.derivative(start + (step / 2) * slope_2, force)
        slope_4 = self.derivative(start + step * slope_3, force)
        after = start + (step / 6) * (slope_1 + 2 * slope_2 + 2 * slope_3 + slope_4)
        angles = (after[:2] + math.pi).remainder(2 * math.pi) - math.pi
        largest = after.new_tensor(self.largest_velocities)[:, None]
        return torch.cat([angles, torch.minimum(torch.maximum(after[2:], -largest), largest)]).T

    def derivative(self, state: Tensor, torque: Tensor) -> Tensor:
        """Time derivative [4, B] of ``state`` [4, B] (the book's equations: Sutton, Barto 2018, section 11.2)."""
        angles, velocities = state[:2], state[2:]
        spin_1, spin_2 = velocities.unbind()
        sines = torch.stack([angles[0], angles[1], angles[0] + angles[1]]).sin()
        cosine = angles[1].cos()
        inertia_1 = 3.5 + cosine
        inertia_2 = 1.25 + 0.5 * cosine
        pull_2 = (0.5 * self.gravity) * sines[2]
        pull_1 = (1.5 * self.gravity) * sines[0] + pull_2 - (0.5 * spin_2 + spin_1) * spin_2 * sines[1]
        ratio = inertia_2 / inertia_1
        turn_2 = (torque + ratio * pull_1 - 0.5 * spin_1.square() * sines[1] - pull_2) / (1.25 - inertia_2 * ratio)
        turn_1 = -(inertia_2 * turn_2 + pull_1) / inertia_1
        return torch.stack([spin_1, spin_2, turn_1, turn_2])

    def over(self, state: Tensor) -> Tensor:
        angle_1, angle_2 = _rows(state)[:2]
        return -angle_1.cos() - (angle_1 + angle_2).cos() > 1.0

    def positions(self, state: Tensor) -> Tensor:
        angles = state[:, :2].contiguous()
        return torch.stack([angles.cos(), angles.sin()], dim=2).flatten(1)

    def velocities(self, state: Tensor) -> Tensor:
        return state[:, 2:] / state.new_tensor(self.largest_velocities)

    def wanted(self, state: Tensor) -> Tensor:
        angle_1, angle_2, spin_1, spin_2 = _rows(state)
        # Found by the cross-entropy method among linear functions of these terms; 12 % more goals than sign(spin_2).
        pump = 1.25 * spin_2 - (1.9 + 2.1 * angle_1.cos()) * spin_1
        return torch.where(pump > 0.5 * angle_1.sin() + 0.7 * angle_2.sin() + 1.7 * (angle_1 + angle_2).sin(), 2, 0)


SYSTEMS: dict[str, ControlSystem] = {system.name: system for system in (CartPole(), Acrobot())}


def _rows(state: Tensor) -> tuple[Tensor, ...]:
    """The columns of [B, 4], each contiguous: sine and cosine of a strided tensor may differ in the last bit."""
    return state.T.contiguous().unbind()
