"""Base of the batched suite: environments that are pure functions of tensors, on any device.

An environment supplies four pure functions of its *world* (a NamedTuple of tensors, batch first): ``begin`` (birth of a
life), ``advance`` (one step), ``observe`` and ``describe`` (what the agent may, and may not, see). ``TensorEnv`` adds
what all have in common: the random streams, int64 clocks, float64 sums, the ends and restarts of lives, checks and
exact resume. ``transition(state, action) -> (state, Step)`` is the whole environment as one pure function; ``step``
only keeps the state.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torchrl.data import Categorical, Composite, Unbounded

from lifelong.envs.base import BatchedEnv, Observation, Step
from lifelong.envs.options import check_count, check_device
from lifelong.envs.privileged import Privileged
from lifelong.envs.random_streams import Channel, Channels

World = TypeVar("World", bound=tuple[Tensor, ...])
_OF_THE_BATCH = ("num_lives", "seed", "first_life", "device")  # options that a state may move between
_BIRTH, _STEP = 0, 1  # the events that random numbers are drawn for


class Change(NamedTuple, Generic[World]):
    """What one step does to the worlds of a batch, before any of them starts again."""

    world: World
    reward: Tensor  # [B] float32
    terminated: Tensor | None = None  # [B] bool; None: no life ended
    soft_reset: Tensor | None = None  # [B] bool: ``restart`` is to follow, unless the life ends; None: nowhere


class LifeState(NamedTuple, Generic[World]):
    """Everything that the future of a batch depends on; all tensors, batch first."""

    birth_keys: Tensor  # [B, 2, C] int64, the random streams for births
    step_keys: Tensor  # [B, 2, C] int64, the random streams for steps
    clock: Tensor  # [B] int64: steps and resets since the construction, the counter of the random streams
    life_step: Tensor  # [B] int64: steps in this life
    life_return: Tensor  # [B] float64: sum of rewards in this life
    world: World


class TensorEnv(BatchedEnv, Generic[World]):
    """A batch of lives of one environment, in plain tensor operations.

    Args:
        num_lives: B.
        seed: root of the random streams. Life i depends on (seed, first_life + i) and on its own actions alone.
        life_steps: cut (truncate) a life after this many steps; None: only ``advance`` can end one.
        first_life: index of the first life of the batch, to split a batch over processes or to replay one life alone.
        device: where the tensors live.

    ``Step.privileged`` holds what ``describe`` says about the situation that ``Step.observation`` shows (for the first
    observation: ``env.privileged``); for the situation in which the reward was earned, keep that of the step before.

    A subclass sets ``name``, ``world_type``, ``num_actions`` and ``observation_size`` (all before it calls this
    constructor), and ``references`` and ``lifelong`` as every ``BatchedEnv``; ``@register_env`` makes it known by name.
    """

    world_type: type[World]
    num_actions: int
    observation_size: int
    observation_bound: float = 1.0  # no entry of an observation is larger in magnitude
    _given: dict[str, Any]  # options by name
    can_terminate: bool = False  # whether ``advance`` can end a life; if not, lives have no end without ``life_steps``

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Notes the options, which ``state_dict`` holds beside the state."""
        env = super().__new__(cls)
        given = inspect.signature(cls).bind_partial(*arguments, **options)
        given.apply_defaults()
        env._given = {key: _plain(value) for key, value in given.arguments.items() if key not in _OF_THE_BATCH}
        return env

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_lives = check_count(self.name, "num_lives", num_lives)
        self.seed = check_count(self.name, "seed", seed, low=0)
        self.life_steps = None if life_steps is None else check_count(self.name, "life_steps", life_steps)
        self.device = check_device(self.name, device)
        self.action_spec = Categorical(self.num_actions, device=self.device)
        size = (self.observation_size,)
        self.observation_spec = Composite(observation=Unbounded(size, dtype=torch.float32, device=self.device))
        first = check_count(self.name, "first_life", first_life, low=0, high=2**62)
        self._lives = torch.arange(first, first + num_lives, dtype=torch.int64, device=self.device)
        self._births = Channels(self.birth_channels())
        self._steps = Channels(self.step_channels())
        self._can_end = self.can_terminate or life_steps is not None
        self._state: LifeState[World] | None = None

    @abstractmethod
    def birth_channels(self) -> Mapping[str, Channel]:
        """The random numbers that ``begin`` takes."""

    @abstractmethod
    def step_channels(self) -> Mapping[str, Channel]:
        """The random numbers that ``advance`` takes."""

    @abstractmethod
    def begin(self, draws: Mapping[str, Tensor]) -> World:
        """The worlds of new lives; ``draws`` [B, width] float64 in [0, 1) by channel."""

    @abstractmethod
    def advance(self, world: World, action: Tensor, draws: Mapping[str, Tensor]) -> Change[World]:
        """One step of every world under ``action`` [B] int64."""

    def restart(self, world: World, draws: Mapping[str, Tensor]) -> World:
        """The worlds after a soft reset, with the draws of a birth. By default nothing of the old ``world`` is left."""
        return self.begin(draws)

    @abstractmethod
    def observe(self, world: World) -> Observation:
        """What the agent sees."""

    @abstractmethod
    def describe(self, world: World) -> Mapping[str, Tensor]:
        """What the agent may not see (``Privileged``, where some of it is dear and seldom asked for)."""

    def initial_state(self) -> LifeState[World]:
        """New lives at clock 0."""
        birth_keys = self._births.keys(self.seed, self._lives, _BIRTH)
        zeros = torch.zeros(self.num_lives, dtype=torch.int64, device=self.device)
        return LifeState(
            birth_keys=birth_keys,
            step_keys=self._steps.keys(self.seed, self._lives, _STEP),
            clock=zeros + 1,
            life_step=zeros,
            life_return=zeros.to(torch.float64),
            world=self.begin(self._births.draw(birth_keys, zeros)),
        )

    def transition(self, state: LifeState[World], action: Tensor) -> tuple[LifeState[World], Step]:
        """One step as a pure function: neither argument, nor the environment, is changed. ``action`` is not checked."""
        change = self.advance(state.world, action, self._steps.draw(state.step_keys, state.clock))
        world = change.world
        life_step = state.life_step + 1
        life_return = state.life_return + change.reward
        terminated = self._no() if change.terminated is None else change.terminated
        truncated = self._no() if self.life_steps is None else (life_step >= self.life_steps) & ~terminated
        ended = terminated | truncated
        soft_reset = self._no() if change.soft_reset is None else change.soft_reset & ~ended
        final_observation = None
        # Births are rare and their draws many: worth a look at the flags, where there can be any.
        if change.soft_reset is not None and bool(soft_reset.any()):
            world = self._select(soft_reset, self.restart(world, self._draw_birth(state)), world)
        if self._can_end and bool(ended.any()):
            final_observation = self.observe(world)
            world = self._select(ended, self.begin(self._draw_birth(state)), world)
            life_step = life_step.masked_fill(ended, 0)
            life_return = life_return.masked_fill(ended, 0.0)
        after = state._replace(clock=state.clock + 1, life_step=life_step, life_return=life_return, world=world)
        observation, privileged = self.observe(world), self._tell(world)
        return after, Step(observation, change.reward, terminated, truncated, soft_reset, final_observation, privileged)

    def reset(self) -> Observation:
        if self._state is not None:  # the streams go on: new lives, not the first ones again
            return self.reset_lives(torch.ones(self.num_lives, dtype=torch.bool, device=self.device))
        self._state = self.initial_state()
        return self.observation

    def reset_lives(self, which: Tensor) -> Observation:
        """Begin new lives where ``which`` [B] bool, let the others go on, and return what all see."""
        state = self.state
        self._state = state._replace(
            clock=state.clock + which,  # the other lives are the same as without this reset
            life_step=state.life_step.masked_fill(which, 0),
            life_return=state.life_return.masked_fill(which, 0.0),
            world=self._select(which, self.begin(self._draw_birth(state)), state.world),
        )
        return self.observation

    def reseed(self, seed: int) -> None:
        """Start the random streams from another seed; the next call is ``reset``, or ``load_state_dict``."""
        self.seed = check_count(self.name, "seed", seed, low=0)
        self._state = None

    def step(self, action: Tensor) -> Step:
        self._check_action(action)
        self._state, step = self.transition(self.state, action)
        return step

    @property
    def state(self) -> LifeState[World]:
        """The present state. Raises RuntimeError before the first ``reset`` or ``load_state_dict``."""
        if self._state is None:
            raise RuntimeError(f"{self.name}: call reset() or load_state_dict() first")
        return self._state

    @property
    def begun(self) -> bool:
        """Whether there is a state: ``reset`` or ``load_state_dict`` was called."""
        return self._state is not None

    @property
    def observation(self) -> Observation:
        """What the agent sees at present."""
        return self.observe(self.state.world)

    @property
    def privileged(self) -> Mapping[str, Tensor]:
        """What ``describe`` says about the present situation."""
        return self._tell(self.state.world)

    def state_dict(self) -> dict[str, Any]:
        world = self.state.world
        fields = {f"world.{field}": value for field, value in zip(_fields(self.world_type), world, strict=True)}
        tensors = {**{k: v for k, v in self.state._asdict().items() if k != "world"}, **fields}
        return {"name": self.name, "options": self._given, **{key: value.clone() for key, value in tensors.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("name") != self.name:
            raise ValueError(f"{self.name}: this state belongs to the environment {state.get('name')!r}")
        saved = state.get("options", self._given)
        for option, value in self._given.items():
            if saved.get(option, value) != value:
                raise ValueError(f"{self.name}: this state was saved with {option}={saved[option]!r}, not {value!r}")
        expected = self.initial_state()

        def take(key: str, like: Tensor) -> Tensor:
            value = state.get(key)
            if not isinstance(value, Tensor) or value.shape != like.shape or value.dtype != like.dtype:
                found = f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)
                raise ValueError(f"{self.name}: {key} in the state is {found}, not {list(like.shape)} {like.dtype}")
            return value.detach().to(self.device, copy=True)

        own = {key: take(key, like) for key, like in expected._asdict().items() if key != "world"}
        names = _fields(self.world_type)
        world = self.world_type(*(take(f"world.{n}", like) for n, like in zip(names, expected.world, strict=True)))
        self._state = LifeState(**own, world=world)

    def _tell(self, world: World) -> Mapping[str, Tensor]:
        """``describe``, in tensors that are nobody's but the caller's."""
        hidden = self.describe(world)
        return hidden if isinstance(hidden, Privileged) else {key: value.clone() for key, value in hidden.items()}

    def _no(self) -> Tensor:
        return torch.zeros(self.num_lives, dtype=torch.bool, device=self.device)

    def _draw_birth(self, state: LifeState[World]) -> dict[str, Tensor]:
        return self._births.draw(state.birth_keys, state.clock)

    def _select(self, mask: Tensor, new: World, old: World) -> World:
        """``new`` where ``mask`` [B], else ``old``, field by field."""
        fields = (
            torch.where(mask.reshape(-1, *[1] * (before.ndim - 1)), after, before)
            for after, before in zip(new, old, strict=True)
        )
        return self.world_type(*fields)

    def _check_action(self, action: Tensor) -> None:
        if not isinstance(action, Tensor):
            raise ValueError(
                f"{self.name}: actions are a {type(action).__name__}; wanted: a tensor [{self.num_lives}] torch.int64"
            )
        if action.dtype != torch.int64 or action.shape != (self.num_lives,):
            found = f"{list(action.shape)} {action.dtype}"
            raise ValueError(f"{self.name}: actions are {found}; wanted: [{self.num_lives}] torch.int64")
        low, high = torch.aminmax(action)
        if bool(low < 0) or bool(high >= self.num_actions):
            life = int(((action < 0) | (action >= self.num_actions)).nonzero()[0])
            raise ValueError(
                f"{self.name}: action {int(action[life])} of life {life} at step {int(self.state.life_step[life])} "
                f"is out of range; allowed: 0 to {self.num_actions - 1}"
            )


def _plain(value: Any) -> Any:
    """An option as what loads with ``weights_only=True``."""
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def _fields(world_type: type[Any]) -> tuple[str, ...]:
    return tuple(world_type._fields)
