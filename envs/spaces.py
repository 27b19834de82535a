"""From Gymnasium spaces to specs and batches: what an environment shows and takes, as flat dicts of arrays.

Served as observations: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of those (entries are named by
their path, ``camera/left``, ``0``; a lone space is ``observation``). Served as actions: Discrete, MultiDiscrete, Box of
floats.

=================  =========================================  ====================================================
space              tensor of one life                         spec
=================  =========================================  ====================================================
Box of uint8       uint8, the space's shape                   Bounded
other Box          float32, the space's shape                 Bounded where all bounds are finite, else Unbounded
Discrete           int64 [], counted from 0                   Categorical(n)
MultiDiscrete      int64, the space's shape, from 0           MultiCategorical(nvec)
MultiBinary        int8, the space's shape                    Binary
=================  =========================================  ====================================================

A Box of three dimensions is an image [height, width, channels]. One that has 1, 3 or 4 channels first, and not last, is
turned around: [channels, height, width] becomes [height, width, channels].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

from lifelong.envs.base import Observation, UnsupportedSpace

OBSERVATIONS_SERVED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of those"
ACTIONS_SERVED = "Discrete, MultiDiscrete, and Box of floats"

_CHANNELS = (1, 3, 4)  # of an image: grey, colours, colours with transparency (or four frames)

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Entry:
    """One entry of an observation: where it lies in what the environment returns, and what it becomes.

    Attributes:
        key: its name in the observation.
        path: the keys and indices that lead to it in the environment's own observation.
        shape: shape for one life.
        dtype: numpy type that it is stored as.
        spec: per-life spec.
        start: what is taken off, so that counting starts at 0; None for nothing.
        sizes: number of categories, broadcastable to ``shape``; None where the entry is no category.
        convert: applied to the environment's value first; None for nothing.
        channels_first: the environment's value is an image [channels, height, width], ``shape`` says it the other way.
    """

    key: str
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spec: TensorSpec
    start: np.ndarray | int | None = None
    sizes: np.ndarray | int | None = None
    convert: Callable[[Any], Any] | None = None
    channels_first: bool = False


class ObservationLayout:
    """Writes the observations of B environments side by side into one array per entry."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        keys = [entry.key for entry in entries]
        for key in keys:
            if keys.count(key) > 1:
                raise UnsupportedSpace(
                    f"two entries of the observation are both named {key!r} once flattened; rename one of them"
                )
        self.entries = tuple(entries)
        self.spec = Composite({entry.key: entry.spec for entry in entries})

    def allocate(self, num_lives: int) -> list[np.ndarray]:
        """One zeroed array [B, *shape] per entry."""
        return [np.zeros((num_lives, *entry.shape), entry.dtype) for entry in self.entries]

    def write(self, arrays: Sequence[np.ndarray], row: int, observation: Any) -> None:
        """Copy one environment's observation into row ``row``. ValueError: a shape that is not the space's."""
        for entry, array in zip(self.entries, arrays, strict=True):
            value = observation
            for part in entry.path:
                value = value[part]
            if entry.convert is not None:
                value = entry.convert(value)
            if entry.channels_first:
                value = np.moveaxis(value, 0, -1)
            if np.shape(value) != entry.shape:
                found, wanted = list(np.shape(value)), list(entry.shape)
                raise ValueError(f"observation {entry.key!r} has shape {found}, where its space says {wanted}")
            array[row] = value if entry.start is None else np.subtract(value, entry.start)

    def write_batch(self, arrays: Sequence[np.ndarray], observation: Any) -> None:
        """Copy a batch of observations, entry by entry. ValueError: a shape that is not [B, *shape of the space]."""
        for entry, array in zip(self.entries, arrays, strict=True):
            value = observation
            for part in entry.path:
                value = value[part]
            if entry.channels_first:
                value = np.moveaxis(value, 1, -1)
            if np.shape(value) != array.shape:
                found, wanted = list(np.shape(value)), list(array.shape)
                raise ValueError(f"observation {entry.key!r} has shape {found}, where its space says {wanted}")
            array[:] = value if entry.start is None else np.subtract(value, entry.start)

    def finish(self, arrays: Sequence[np.ndarray]) -> Observation:
        """The filled arrays as tensors that share their memory (each array belongs to one step only).

        Raises:
            ObservationFault: a number that is not finite, or a category that does not exist.
        """
        for entry, array in zip(self.entries, arrays, strict=True):
            if array.dtype == np.float32:
                if not np.isfinite(array).all():
                    bad = ~np.isfinite(array)
                    raise ObservationFault(
                        _first_row(bad), f"observation {entry.key!r} is {array[bad][0]}, not a finite number"
                    )
            elif entry.sizes is not None:
                outside = array >= entry.sizes
                if array.dtype.kind == "i":
                    outside |= array < 0
                if outside.any():
                    raise ObservationFault(
                        _first_row(outside), f"observation {entry.key!r} holds a value outside its space"
                    )
        return {entry.key: torch.from_numpy(array) for entry, array in zip(self.entries, arrays, strict=True)}


class ObservationFault(ValueError):
    """Row ``row`` of a batch of observations cannot be used."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def _first_row(bad: np.ndarray) -> int:
    return int(np.flatnonzero(bad.reshape(len(bad), -1).any(1))[0])


def observation_layout(space: spaces.Space[Any], owner: str) -> ObservationLayout:
    """The layout of a Gymnasium observation space.

    Args:
        space: of one environment.
        owner: the environment's name, for messages.

    Raises:
        UnsupportedSpace: names the entry, its space and what is served.
    """
    return ObservationLayout([_entry(path, leaf, owner) for path, leaf in _leaves(space, (), owner)])


def _leaves(space: spaces.Space[Any], path: Path, owner: str) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            if not isinstance(name, str):
                raise UnsupportedSpace(f"{owner}: the observation has an entry named {name!r}; names must be strings")
            yield from _leaves(part, (*path, name), owner)
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, index), owner)
    else:
        yield path, space


def _entry(path: Path, space: spaces.Space[Any], owner: str) -> Entry:
    key = "/".join(str(part).replace(".", "/") for part in path) or "observation"  # a module's name holds no dot
    if isinstance(space, spaces.Box):
        dtype = np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
        low, high, first = space.low.astype(dtype), space.high.astype(dtype), _channels_first(space.shape)
        if first:
            low, high = np.moveaxis(low, 0, -1), np.moveaxis(high, 0, -1)
        return Entry(key, path, tuple(low.shape), dtype, _box_spec(low, high), channels_first=first)
    if isinstance(space, spaces.Discrete):
        start = int(space.start) or None
        return Entry(key, path, (), np.dtype(np.int64), Categorical(int(space.n)), start, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.astype(np.int64)
        spec = MultiCategorical(torch.from_numpy(sizes), remove_singleton=False)
        return Entry(key, path, tuple(sizes.shape), np.dtype(np.int64), spec, _start(space), sizes)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape)
        return Entry(key, path, shape, np.dtype(np.int8), Binary(shape=torch.Size(shape), dtype=torch.int8), None, 2)
    raise UnsupportedSpace(f"{owner}: observation {key!r} is {_describe(space)}; served are {OBSERVATIONS_SERVED}")


def _start(space: spaces.MultiDiscrete) -> np.ndarray | None:
    start = np.asarray(space.start, np.int64)
    return start if start.any() else None


def _channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] in _CHANNELS and shape[2] not in _CHANNELS


def _box_spec(low: np.ndarray, high: np.ndarray) -> TensorSpec:
    dtype = torch.uint8 if low.dtype == np.uint8 else torch.float32
    if np.isfinite(low).all() and np.isfinite(high).all():
        bounds = torch.from_numpy(low.copy()), torch.from_numpy(high.copy())
        return Bounded(*bounds, torch.Size(low.shape), dtype=dtype)
    return Unbounded(torch.Size(low.shape), dtype=dtype)


def _describe(space: spaces.Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"a {type(space).__name__} space"


class ActionLayout(Protocol):
    """Turns a batch of actions into what each environment takes."""

    spec: TensorSpec

    def decode(self, action: Tensor) -> Sequence[Any]:
        """The environments' own actions, one per life, from [B, ...]. ValueError: wrong shape, or not finite."""


def action_layout(space: spaces.Space[Any], owner: str) -> ActionLayout:
    """The layout of a Gymnasium action space. Raises UnsupportedSpace, naming the space and what is served."""
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteActions(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return BoxActions(space)
    raise UnsupportedSpace(f"{owner}: the action is {_describe(space)}; served are {ACTIONS_SERVED}")


class DiscreteActions:
    """int64 [B] -> Python integers: ``start + a``, or ``choices[a]``."""

    def __init__(self, count: int, start: int = 0, choices: Sequence[int] | None = None) -> None:
        self.spec = Categorical(count)
        self._choices = list(choices) if choices is not None else list(range(start, start + count))

    def decode(self, action: Tensor) -> Sequence[int]:
        indices = _checked(action, ()).tolist()
        count = len(self._choices)
        for life, index in enumerate(indices):
            if not 0 <= index < count:
                raise ValueError(f"action {index} of life {life} is out of range; allowed: 0 to {count - 1}")
        return [self._choices[index] for index in indices]


class MultiDiscreteActions:
    """int64 [B, n] -> integers of the space's own shape, type and start (a space of more dimensions is flattened)."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self._space, self._start = space, _start(space)
        self._sizes = space.nvec.astype(np.int64).reshape(-1)
        self.spec = MultiCategorical(torch.from_numpy(self._sizes), remove_singleton=False)

    def decode(self, action: Tensor) -> Sequence[np.ndarray]:
        indices = _checked(action, (len(self._sizes),)).numpy()
        wrong = (indices < 0) | (indices >= self._sizes)
        if wrong.any():
            raise ValueError(
                f"the action of life {_first_row(wrong)} is out of range; there are {self._sizes.tolist()} choices"
            )
        indices = indices.reshape(-1, *self._space.nvec.shape)
        return list((indices if self._start is None else indices + self._start).astype(self._space.dtype))


class BoxActions:
    """float32 [B, n] -> floats of the space's own shape (flattened to n) and type, clipped to its bounds."""

    def __init__(self, space: spaces.Box) -> None:
        self._space = space
        low, high = (torch.from_numpy(bound.astype(np.float32).reshape(-1)) for bound in (space.low, space.high))
        self.spec = Bounded(low, high, torch.Size([low.numel()]), dtype=torch.float32)

    def decode(self, action: Tensor) -> Sequence[np.ndarray]:
        values = _checked(action, (int(np.prod(self._space.shape)),)).numpy()
        if not np.isfinite(values).all():
            raise ValueError(f"the action of life {_first_row(~np.isfinite(values))} is not a finite number")
        values = values.reshape(-1, *self._space.shape).astype(self._space.dtype)
        return list(np.clip(values, self._space.low, self._space.high))


def _checked(action: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    if tuple(action.shape[1:]) != event_shape or action.dim() != len(event_shape) + 1:
        wanted = ", ".join(["B", *map(str, event_shape)])
        raise ValueError(f"actions have shape {list(action.shape)}; wanted: [{wanted}]")
    return action.detach().cpu()
