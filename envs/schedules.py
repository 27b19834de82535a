"""Schedules: how a hidden quantity of a world changes over a life, whatever the agent does.

A schedule is a pure function of its state, a float64 tensor [B, S] (whole numbers up to 2^53 are exact in it), and of
fresh uniform numbers: ``begin(uniform [B, births]) -> state``, ``advance(state, uniform [B, draws]) -> state`` and
``value(state) -> [B]`` float64. A step costs the same at life step 10 and 10^9; periodic schedules hold their phase, so
that nothing grows. Every life starts in the stationary law (a random phase, a random regime), unless it says otherwise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lifelong.envs.options import check_choice, check_count, check_list, check_number, check_probability, did_you_mean

_EXACT = 2**53  # whole numbers up to here are exact in float64


class Schedule(ABC):
    """One quantity per life that changes with time.

    Attributes:
        name: how configs call it.
        births: uniform numbers that ``begin`` takes per life.
        draws: uniform numbers that ``advance`` takes per life and step.
    """

    name: ClassVar[str]
    births: int = 0
    draws: int = 0

    @abstractmethod
    def begin(self, uniform: Tensor) -> Tensor:
        """States [B, S] float64 of new lives from uniform numbers [B, births] in [0, 1)."""

    @abstractmethod
    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        """The states one step later, from uniform numbers [B, draws] in [0, 1)."""

    @abstractmethod
    def value(self, state: Tensor) -> Tensor:
        """The present value [B] float64."""


@dataclass(frozen=True)
class Constant(Schedule):
    """``level`` for ever."""

    name = "constant"
    level: float = 0.0

    def __post_init__(self) -> None:
        check_number(self.name, "level", self.level)

    def begin(self, uniform: Tensor) -> Tensor:
        return uniform.new_empty(len(uniform), 0)

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        return state

    def value(self, state: Tensor) -> Tensor:
        return state.new_full((len(state),), self.level)


class _Periodic(Schedule):
    """Base of the schedules whose state is their phase, a whole number in 0..period-1."""

    period: int
    random_phase: bool
    births = 1

    def begin(self, uniform: Tensor) -> Tensor:
        return (uniform * self.period).floor() if self.random_phase else torch.zeros_like(uniform)

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        return (state + 1).remainder(self.period)


@dataclass(frozen=True)
class Square(_Periodic):
    """``high`` in the first half of each period (rounded up), ``low`` in the second."""

    name = "square"
    low: float
    high: float
    period: int
    random_phase: bool = True

    def __post_init__(self) -> None:
        check_range(self.name, self.low, self.high)
        check_count(self.name, "period", self.period, low=2, high=_EXACT)

    def value(self, state: Tensor) -> Tensor:
        low = torch.full_like(state[:, 0], self.low)
        return low.masked_fill(state[:, 0] * 2 < self.period, self.high)


@dataclass(frozen=True)
class Sine(_Periodic):
    """``mean + amplitude sin(2 pi t / period)``."""

    name = "sine"
    mean: float
    amplitude: float
    period: int
    random_phase: bool = True

    def __post_init__(self) -> None:
        check_number(self.name, "mean", self.mean)
        check_number(self.name, "amplitude", self.amplitude)
        check_count(self.name, "period", self.period, low=2, high=_EXACT)

    def value(self, state: Tensor) -> Tensor:
        return self.mean + self.amplitude * torch.sin(state[:, 0] * (2 * math.pi / self.period))


@dataclass(frozen=True)
class PiecewiseLinear(_Periodic):
    """Linear between the points (times[i], values[i]); times start at 0 and rise.

    ``cycle``: after the last point it starts again from the first (which then takes its place); else it stays there.
    """

    name = "piecewise_linear"
    times: Sequence[int]
    values: Sequence[float]
    cycle: bool = False
    random_phase: bool = False

    def __post_init__(self) -> None:
        for option, given in (("times", self.times), ("values", self.values)):
            check_list(self.name, option, given)
        times, values = tuple(self.times), tuple(self.values)
        if len(times) < 2 or len(times) != len(values):
            raise ValueError(f"{self.name}: {len(times)} times and {len(values)} values; wanted: as many, at least two")
        rising = all(earlier < later for earlier, later in pairwise(times))
        if times[0] != 0 or not rising:
            raise ValueError(f"{self.name}: times={list(times)} are not allowed; allowed: rising, the first is 0")
        for time, value in zip(times, values, strict=True):
            check_count(self.name, "times", time, low=0, high=_EXACT)
            check_number(self.name, "values", value)
        object.__setattr__(self, "period", times[-1])

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        return super().advance(state, uniform) if self.cycle else (state + 1).clamp(max=self.period)

    def value(self, state: Tensor) -> Tensor:
        times = torch.tensor(self.times, dtype=torch.float64, device=state.device)
        values = torch.tensor(self.values, dtype=torch.float64, device=state.device)
        time = state[:, 0].contiguous()
        segment = torch.searchsorted(times, time, right=True).clamp(1, len(times) - 1)
        share = (time - times[segment - 1]) / (times[segment] - times[segment - 1])
        return torch.lerp(values[segment - 1], values[segment], share)


@dataclass(frozen=True)
class Hazard(Schedule):
    """Redrawn uniformly from [low, high) with probability ``hazard`` per step: intervals are geometric, mean 1 /
    hazard."""

    name = "hazard"
    low: float
    high: float
    hazard: float
    births = 1
    draws = 2

    def __post_init__(self) -> None:
        check_range(self.name, self.low, self.high)
        check_probability(self.name, "hazard", self.hazard)

    def begin(self, uniform: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * uniform

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        return torch.where(uniform[:, :1] < self.hazard, self.begin(uniform[:, 1:]), state)

    def value(self, state: Tensor) -> Tensor:
        return state[:, 0]


@dataclass(frozen=True)
class Markov(Schedule):
    """Recurring regimes 0..M-1: with probability ``hazard`` per step, the regime changes to another one, uniformly."""

    name = "markov"
    regimes: int
    hazard: float
    births = 1
    draws = 2

    def __post_init__(self) -> None:
        check_count(self.name, "regimes", self.regimes, low=2, high=2**31)
        check_probability(self.name, "hazard", self.hazard)

    def begin(self, uniform: Tensor) -> Tensor:
        return (uniform * self.regimes).floor()

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        return (state + self.shift(uniform)).remainder(self.regimes)

    def shift(self, uniform: Tensor) -> Tensor:
        """What is added to the regime, modulo M: 0, or with probability ``hazard`` a number in 1..M-1; [B, 1]
        float64."""
        other = 1 + (uniform[:, 1:] * (self.regimes - 1)).floor()
        return other.masked_fill(uniform[:, :1] >= self.hazard, 0.0)

    def value(self, state: Tensor) -> Tensor:
        return state[:, 0]

    def regime(self, state: Tensor) -> Tensor:
        """The present regime [B] int64."""
        return state[:, 0].to(torch.int64)


@dataclass(frozen=True)
class OrnsteinUhlenbeck(Schedule):
    """Mean-reverting noise dx = theta (mean - x) dt + sigma dW, sampled exactly once per step.

    x' = mean + e^-theta (x - mean) + s sqrt(1 - e^(-2 theta)) N(0, 1), with the stationary deviation s = sigma / sqrt(2
    theta).
    """

    name = "ornstein_uhlenbeck"
    mean: float
    theta: float
    sigma: float
    births = 2
    draws = 2

    def __post_init__(self) -> None:
        check_number(self.name, "mean", self.mean)
        check_number(self.name, "theta", self.theta, above=0.0)
        check_number(self.name, "sigma", self.sigma, above=0.0)

    @property
    def deviation(self) -> float:
        """Standard deviation of the stationary law."""
        return self.sigma / math.sqrt(2 * self.theta)

    def begin(self, uniform: Tensor) -> Tensor:
        return self.mean + self.deviation * standard_normal(uniform)

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        # expm1 keeps the step's deviation exact where theta is so small that e^(-2 theta) rounds to 1.
        step = self.deviation * math.sqrt(-math.expm1(-2 * self.theta))
        return self.mean + math.exp(-self.theta) * (state - self.mean) + step * standard_normal(uniform)

    def value(self, state: Tensor) -> Tensor:
        return state[:, 0]


@dataclass(frozen=True)
class ReflectedWalk(Schedule):
    """A random walk with steps ``deviation`` N(0, 1), reflected at ``low`` and ``high`` (not clipped: no mass at the
    ends)."""

    name = "reflected_walk"
    low: float
    high: float
    deviation: float
    births = 1
    draws = 2

    def __post_init__(self) -> None:
        check_range(self.name, self.low, self.high)
        check_number(self.name, "deviation", self.deviation, above=0.0)

    def begin(self, uniform: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * uniform

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        width = self.high - self.low
        position = (state - self.low + self.deviation * standard_normal(uniform)).remainder(2 * width)
        return self.low + torch.where(position > width, 2 * width - position, position)

    def value(self, state: Tensor) -> Tensor:
        return state[:, 0]


class Combined(Schedule):
    """The sum or the product of other schedules, each with random numbers of its own."""

    name = "composite"

    def __init__(
        self, parts: Sequence[Schedule | Mapping[str, Any]], combine: Literal["sum", "product"] = "sum"
    ) -> None:
        if not check_list(self.name, "parts", parts):
            raise ValueError(f"{self.name}: parts=[] is not allowed; allowed: one schedule or more")
        self.parts = [part if isinstance(part, Schedule) else make_schedule(part) for part in parts]
        self.combine = check_choice(self.name, "combine", combine, ("sum", "product"))
        self.births = sum(part.births for part in self.parts)
        self.draws = sum(part.draws for part in self.parts)
        probe = torch.zeros(1, self.births, dtype=torch.float64).split([part.births for part in self.parts], dim=1)
        self._widths = [part.begin(u).shape[1] for part, u in zip(self.parts, probe, strict=True)]

    def begin(self, uniform: Tensor) -> Tensor:
        uniforms = uniform.split([part.births for part in self.parts], dim=1)
        return torch.cat([part.begin(u) for part, u in zip(self.parts, uniforms, strict=True)], dim=1)

    def advance(self, state: Tensor, uniform: Tensor) -> Tensor:
        states = state.split(self._widths, dim=1)
        uniforms = uniform.split([part.draws for part in self.parts], dim=1)
        return torch.cat([part.advance(s, u) for part, s, u in zip(self.parts, states, uniforms, strict=True)], dim=1)

    def value(self, state: Tensor) -> Tensor:
        states = state.split(self._widths, dim=1)
        values = torch.stack([part.value(s) for part, s in zip(self.parts, states, strict=True)])
        return values.sum(0) if self.combine == "sum" else values.prod(0)


_SCHEDULES: dict[str, type[Schedule]] = {
    kind.name: kind
    for kind in (
        *(Constant, Square, Sine, PiecewiseLinear),
        *(Hazard, Markov, OrnsteinUhlenbeck, ReflectedWalk, Combined),
    )
}


def make_schedule(config: Mapping[str, Any]) -> Schedule:
    """A schedule from its ``name`` and options, as configs give them. Raises ValueError, with the nearest match."""
    options = dict(config)
    name = options.pop("name", None)
    if name not in _SCHEDULES:
        hint = did_you_mean(name, _SCHEDULES)
        raise ValueError(f"unknown schedule {name!r}; known: {', '.join(_SCHEDULES)}{hint}")
    kind = _SCHEDULES[name]
    allowed = ["parts", "combine"] if kind is Combined else [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for option in options:
        if option not in allowed:
            hint = did_you_mean(option, allowed)
            raise ValueError(f"schedule {name!r} has no option {option!r}; allowed: {', '.join(allowed)}{hint}")
    try:
        return kind(**options)
    except TypeError as error:  # an option without a default is missing
        raise ValueError(f"schedule {name!r}: {str(error).partition('() ')[2]}") from error


def standard_normal(uniform: Tensor) -> Tensor:
    """Standard normal numbers [B, n] from uniform numbers [B, 2 n] in [0, 1) (Box and Muller 1958)."""
    radius, angle = uniform.chunk(2, dim=1)
    return torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)


def check_range(schedule: str, low: float, high: float) -> None:
    """Both finite, and ``low`` below ``high``."""
    check_number(schedule, "low", low)
    check_number(schedule, "high", high, above=low)
