"""Base of our Gymnasium wrappers: what they hide belongs to a life, which may hold many episodes of the world.

``reset`` starts a new life, ``soft_reset`` starts the world again inside it. Random numbers come from (seed, wrapper,
life, stream) and from nothing else, so the changes of a life are the same under every policy, in every batch, and
whatever the generators of numpy do. Wrappers pickle with all they hold.

What is hidden is told in ``info["privileged"]``, never in the observation: it describes the situation that the
observation shows. ``info["soft_reset"]`` is True at a step in which the world started again inside the life.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.utils import RecordConstructorArgs

from lifelong.envs.random_streams import Stream
from lifelong.envs.schedules import Constant, Hazard, Markov, Schedule, Square, make_schedule

SOFT_RESET, PRIVILEGED = "soft_reset", "privileged"
_SINCE = "steps_since_change"


class LifeStreams:
    """The random streams of the lives of one environment, one after the other.

    Args:
        depth: sets apart the wrappers around one environment, which all get the same seed.
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._root: Any = None
        self._life = -1

    def begin_life(self, seed: int | None) -> None:
        """The next life; with ``seed``, lives are counted from that seed anew."""
        if seed is not None:
            self._root, self._life = seed, -1
        elif self._root is None:
            self._root = np.random.SeedSequence().entropy
        self._life += 1

    def generator(self, stream: Stream) -> np.random.Generator:
        """The random numbers of the present life for one purpose, from their beginning."""
        key = (self._depth, self._life, int(stream))
        return np.random.default_rng(np.random.SeedSequence(self._root, spawn_key=key))


class LifeWrapper(gymnasium.Wrapper, RecordConstructorArgs):
    """A wrapper with something hidden in it. Subclasses fill in the hooks below.

    Args:
        env: the environment to wrap. A ValueError in one line says when the wrapper does not fit it.
        options: the subclass's own, so that Gymnasium can write down how to build the wrapper again (``env.spec``).

    Attributes:
        name: how configs and messages call the wrapper.
    """

    name: ClassVar[str]

    def __init__(self, env: gymnasium.Env[Any, Any], **options: Any) -> None:
        RecordConstructorArgs.__init__(self, **options)
        gymnasium.Wrapper.__init__(self, env)
        check_nesting(self.name, env)
        self._depth: int = env._depth + 1 if isinstance(env, LifeWrapper) else 0
        self.streams = LifeStreams(self._depth)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new life. With ``seed``, the lives of this environment are counted from that seed anew."""
        self.streams.begin_life(seed)
        self.begin_life()
        observation, info = self.env.reset(seed=seed, options=options)
        return self.show(observation), self._tell(info)

    def soft_reset(self) -> tuple[Any, dict[str, Any]]:
        """Start the world again, and nothing else: what is hidden stays as it is."""
        observation, info = soft_reset(self.env)
        return self.show(observation), self._tell(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(self.act(action))
        self.advance()
        return self.show(observation), reward, terminated, truncated, self._tell(info)

    def begin_life(self) -> None:
        """Hook: draw what is hidden, before the world of the new life starts."""

    def act(self, action: Any) -> Any:
        """Hook: what the world gets when the agent does ``action``."""
        return action

    def advance(self) -> None:
        """Hook: a step has passed."""

    def show(self, observation: Any) -> Any:
        """Hook: what the agent sees when the world shows ``observation``."""
        return observation

    def hidden(self) -> dict[str, Any]:
        """Hook: what the agent may not see: numbers and arrays by name, of shapes that never change."""
        return {}

    def _tell(self, info: dict[str, Any]) -> dict[str, Any]:
        own, inner = self.hidden(), info.get(PRIVILEGED, {})
        if not own:
            return info
        if _SINCE in own and _SINCE in inner:  # since the last change of anything
            own[_SINCE] = min(own[_SINCE], inner[_SINCE])
        return {**info, PRIVILEGED: {**inner, **own}}


def soft_reset(environment: gymnasium.Env[Any, Any]) -> tuple[Any, dict[str, Any]]:
    """Start the world again inside the life; for an environment without a ``LifeWrapper``, that is its ``reset``."""
    return environment.soft_reset() if isinstance(environment, LifeWrapper) else environment.reset()


def check_nesting(owner: str, environment: gymnasium.Env[Any, Any]) -> None:
    """ValueError: another wrapper hides a ``LifeWrapper``, whose life would begin anew at each soft reset."""
    outermost = type(environment).__name__
    if isinstance(environment, LifeWrapper):
        return  # which was checked when it was built
    while isinstance(environment, gymnasium.Wrapper):
        environment = environment.env
        if isinstance(environment, LifeWrapper):
            raise ValueError(
                f"{owner}: {outermost} stands around the wrapper {environment.name}, whose life would begin anew at "
                f"each soft reset; allowed: {outermost} inside it"
            )


class ScheduleClock:
    """A schedule in one life.

    Attributes:
        value: the present value.
        steps_since_change: steps since the value last changed (since birth, if it never has).
    """

    def __init__(self, schedule: Schedule, generator: np.random.Generator) -> None:
        self._schedule, self._generator = schedule, generator
        self._state = schedule.begin(self._uniform(schedule.births))
        self.value = float(schedule.value(self._state))
        self.steps_since_change = 0

    def advance(self) -> bool:
        """Go one step on; whether the value changed."""
        self._state = self._schedule.advance(self._state, self._uniform(self._schedule.draws))
        before, self.value = self.value, float(self._schedule.value(self._state))
        changed = self.value != before
        self.steps_since_change = 0 if changed else self.steps_since_change + 1
        return changed

    def _uniform(self, count: int) -> torch.Tensor:
        return torch.from_numpy(self._generator.random((1, count)))


class ScheduledWrapper(LifeWrapper):
    """A wrapper that follows a schedule, one step of it per step of the world.

    Args:
        env: the environment to wrap.
        schedule: a ``Schedule``, or its ``name`` and options.
        options: the subclass's others.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], schedule: Schedule | Mapping[str, Any], **options: Any) -> None:
        super().__init__(env, schedule=schedule, **options)
        self.schedule = schedule if isinstance(schedule, Schedule) else _schedule_of(self.name, schedule)

    def begin_life(self) -> None:
        self.clock = ScheduleClock(self.schedule, self.streams.generator(Stream.SCHEDULE))

    def advance(self) -> None:
        if self.clock.advance():
            self.change()

    def change(self) -> None:
        """Hook: the schedule's value has changed."""

    def hidden(self) -> dict[str, Any]:
        return {_SINCE: self.clock.steps_since_change} if isinstance(self.schedule, _STEPWISE) else {}


_STEPWISE = (Constant, Square, Hazard, Markov)


def count_regimes(wrapper: str, schedule: Schedule) -> int | None:
    """How many values a schedule comes back to; None where every change brings a new one (hazard).

    Raises:
        ValueError: the schedule changes at every step, so there is nothing to adapt to.
    """
    if isinstance(schedule, Hazard):
        return None
    if isinstance(schedule, Markov):
        return schedule.regimes
    if isinstance(schedule, Constant | Square):
        return 1 if isinstance(schedule, Constant) else 2
    allowed = ", ".join(kind.name for kind in _STEPWISE)
    raise ValueError(f"{wrapper}: schedule {schedule.name!r} does not stay at a value; allowed: {allowed}")


def _schedule_of(wrapper: str, config: Any) -> Schedule:
    if not isinstance(config, Mapping):
        raise ValueError(
            f"{wrapper}: schedule={config!r} is not allowed; allowed: a mapping such as {{name: constant}}"
        )
    try:
        return make_schedule(config)
    except ValueError as error:
        raise ValueError(f"{wrapper}: {error}") from error
