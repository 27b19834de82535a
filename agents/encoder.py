"""From an observation (a dict of tensors, described by specs) to one normalised vector per step.

What each kind of entry becomes:

* integers with known sizes (Categorical, MultiCategorical, any shape): one-hot planes, side by side;
* numbers of two dimensions, one, or none (read in a row): finite bounds are mapped to [-1, 1], unbounded ones go
  through symlog(x) = sign(x) log(1 + |x|);
* images (uint8 or float, [height, width, channels]): a small convolution. Grids of integers (MiniGrid) take it too with
  ``grid="convolution"``; the default reads them as planes, which for a view of 7 x 7 costs a twelfth and knows the
  place of each cell.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from torchrl.data import Binary, Bounded, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.data import Categorical as CategoricalSpec

from lifelong.kernels.one_hot import one_hot_product, planes, serves

Observation = dict[str, Tensor]

# In batches of fewer rows it is quicker to write the planes out than to bring the rows of a table together.
_FEW = 32


class ObservationEncoder(nn.Module):
    """observation -> [..., dim].

    Args:
        spec: per-life specs, one entry per key of an observation.
        dim: width of the output.
        layers: hidden layers after the first (linear) reading of all entries.
        grid: how grids of integers are read: "planes" or "convolution".
        layer_norm: normalise each hidden layer before its nonlinearity.

    Raises:
        ValueError: an entry that cannot be read; the message names it.
    """

    def __init__(
        self, spec: Composite, dim: int, layers: int = 1, grid: str = "planes", layer_norm: bool = False
    ) -> None:
        super().__init__()
        if grid not in ("planes", "convolution"):
            raise ValueError(f"encoder grid={grid!r}: allowed are 'planes' and 'convolution'")
        if not spec.keys():
            raise ValueError("the observation is empty: there is nothing to encode")
        readers = [_make_reader(key, spec[key], grid) for key in sorted(spec.keys())]
        dense = [reader for reader in readers if not isinstance(reader, _Planes)]
        discrete = [reader for reader in readers if isinstance(reader, _Planes)]
        self.dense, self.planes = nn.ModuleList(dense), nn.ModuleList(discrete)
        self._widths = [sum(reader.size for reader in dense), *(reader.size for reader in discrete)]
        self.first = nn.Linear(sum(self._widths), dim)
        self.rest = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.hidden_norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers + 1)] if layer_norm else [])

    def forward(self, observation: Observation) -> Tensor:
        embedding: Tensor = self.norm(self.hidden(observation)[-1])
        return embedding

    def hidden(self, observation: Observation) -> list[Tensor]:
        """The activations of each hidden layer, [..., dim]; the output is the last of them, normalised."""
        hidden = [self._activated(0, self._first(observation))]
        for number, layer in enumerate(self.rest, start=1):
            hidden.append(self._activated(number, layer(hidden[-1])))
        return hidden

    def _activated(self, number: int, values: Tensor) -> Tensor:
        return silu(self.hidden_norms[number](values) if self.hidden_norms else values)

    def _first(self, observation: Observation) -> Tensor:
        """``first`` of all features side by side, one-hot planes last. In a batch the planes are not written out and
        multiplied: most of the work of an agent that sees a grid would go there.
        """
        weight = self.first.weight
        dense: list[_Reader] = list(self.dense)  # type: ignore[arg-type]
        discrete: list[_Planes] = list(self.planes)  # type: ignore[arg-type]
        features = [reader(observation[reader.key]) for reader in dense]
        integers = [reader.in_a_row(observation[reader.key]) for reader in discrete]
        _check_batches([*features, *integers])
        if not integers or integers[0].shape[:-1].numel() < _FEW or not all(serves(each, weight) for each in integers):
            features += [reader.written(each) for reader, each in zip(discrete, integers, strict=True)]
            return self._whole(features)
        dense_weight, *tables = weight.split(self._widths, 1)
        values: Tensor = self.first.bias
        if features:
            values = linear(torch.cat(features, -1).to(weight.dtype), dense_weight, values)
        for reader, each, table in zip(discrete, integers, tables, strict=True):
            values = values + reader.product(each, table)
        return values

    def _whole(self, features: list[Tensor]) -> Tensor:
        joined = features[0] if len(features) == 1 else torch.cat(features, -1)
        values: Tensor = self.first(joined.to(self.first.weight.dtype))
        return values


def _check_batches(parts: list[Tensor]) -> None:
    if any(part.shape[:-1] != parts[0].shape[:-1] for part in parts[1:]):
        batches = ", ".join(str(list(part.shape[:-1])) for part in parts)
        raise ValueError(f"the entries of an observation are batches of different shapes: {batches}")


class _Reader(nn.Module):
    """Reads the entry ``key`` of an observation into ``size`` floats."""

    size: int

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class _Planes(_Reader):
    """Integers [..., *shape] -> one-hot planes side by side [..., sum of sizes].

    ``columns`` [R, J] says where the plane of each of the J integers begins; a second row of it, where it begins in
    planes that integers share.
    """

    sizes: Tensor
    columns: Tensor

    def __init__(self, key: str, sizes: Tensor, shared: Tensor | None = None) -> None:
        super().__init__(key)
        self.shape = tuple(sizes.shape)
        flat = sizes.flatten().long()
        columns = (flat.cumsum(0) - flat).unsqueeze(0)
        self.size = int(flat.sum())
        if shared is not None:
            columns = torch.cat([columns, self.size + shared.flatten().unsqueeze(0)])
            self.size = int((columns[1] + flat).max())
        self.register_buffer("sizes", flat, persistent=False)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        return self.written(self.in_a_row(value))

    def in_a_row(self, value: Tensor) -> Tensor:
        """[..., *shape] -> [..., J]."""
        batch = value.shape[: value.dim() - len(self.shape)]
        if value.shape[len(batch) :] != self.shape:
            raise ValueError(f"observation {self.key!r} ends in {list(value.shape)}, and must in {list(self.shape)}")
        return value.reshape(*batch, len(self.sizes))

    def written(self, integers: Tensor) -> Tensor:
        """[..., J] -> the planes."""
        return planes(integers, self.columns, self.size)

    def product(self, integers: Tensor, weight: Tensor) -> Tensor:
        """What the weights [dim, size] make of the planes of integers [..., J]: [..., dim]."""
        try:
            return one_hot_product(integers, self.sizes, self.columns, weight.t())
        except IndexError as error:
            raise ValueError(f"observation {self.key!r}: {error}") from None


def _grid(key: str, sizes: Tensor) -> _Planes:
    """Integers [height, width, channels] as planes of each cell, and how often each value is in view.

    The counts are a linear function of the planes, but one that would have to be learned cell by cell: with them, "a
    key is in view" is known wherever it stands.
    """
    of_a_cell = sizes[0, 0].long()
    return _Planes(key, sizes, shared=(of_a_cell.cumsum(0) - of_a_cell).expand(sizes.shape))


class _Vector(_Reader):
    """Numbers [..., *shape] of at most two dimensions -> [..., n] in a row, scaled by their bounds."""

    centre: Tensor
    half_range: Tensor
    bounded: Tensor

    def __init__(self, key: str, low: Tensor, high: Tensor, event_dims: int) -> None:
        super().__init__(key)
        self.event_dims = event_dims
        bounded = torch.isfinite(low) & torch.isfinite(high) & (high > low) & (high - low < 1e6)
        self.size = low.numel()
        self.all_bounded, self.none_bounded = bool(bounded.all()), not bool(bounded.any())
        self.register_buffer("bounded", bounded, persistent=False)
        centre = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
        half_range = torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        self.register_buffer("centre", centre.float(), persistent=False)
        self.register_buffer("half_range", half_range.float(), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        value = value.float().reshape(*value.shape[: value.dim() - self.event_dims], self.size)
        scaled = (value - self.centre) / self.half_range
        if self.all_bounded:
            return scaled
        squashed = value.sign() * value.abs().log1p()
        return squashed if self.none_bounded else torch.where(self.bounded, scaled, squashed)


class _Convolution(_Reader):
    """Images [..., height, width, channels] -> [..., size]: two convolutions, or one where the image is smaller than
    8.
    """

    def __init__(self, key: str, shape: tuple[int, int, int], scale: float, categories: Tensor | None = None) -> None:
        super().__init__(key)
        height, width, channels = shape
        self.scale = scale
        self.planes = None if categories is None else _Planes(key, categories)
        if self.planes is not None:
            channels = self.planes.size
        if min(height, width) >= 8:
            self.layers = nn.Sequential(
                nn.Conv2d(channels, 16, 5, stride=2), nn.SiLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.SiLU()
            )
        else:
            self.layers = nn.Sequential(nn.Conv2d(channels, 32, min(3, height, width)), nn.SiLU())
        with torch.no_grad():
            self.size = self.layers(torch.zeros(1, channels, height, width)).numel()

    def forward(self, value: Tensor) -> Tensor:
        batch = value.shape[:-3]
        image = self.planes(value) if self.planes is not None else value.float() * self.scale
        image = image.reshape(-1, *image.shape[-3:]).movedim(-1, 1).to(next(self.layers.parameters()).dtype)
        return self.layers(image).reshape(*batch, self.size)


def _make_reader(key: str, spec: TensorSpec, grid: str) -> _Reader:
    if isinstance(spec, MultiCategorical):
        sizes = torch.as_tensor(spec.nvec)
        # A grid is what has the same sizes in every cell; other boxes of integers are read as they come.
        if len(spec.shape) == 3 and bool((sizes == sizes[0, 0]).all()):
            return (
                _Convolution(key, tuple(spec.shape), 1.0, sizes[0, 0]) if grid == "convolution" else _grid(key, sizes)
            )
        return _Planes(key, sizes)
    if isinstance(spec, CategoricalSpec):
        return _Planes(key, torch.full(tuple(spec.shape), int(spec.n)))
    if isinstance(spec, (Bounded, Unbounded, Binary)):
        if len(spec.shape) == 3:
            return _Convolution(key, tuple(spec.shape), 1 / 255 if spec.dtype == torch.uint8 else 1.0)
        if len(spec.shape) <= 2:
            low, high = _bounds(spec)
            return _Vector(key, low, high, len(spec.shape))
    raise ValueError(
        f"observation {key!r}: {type(spec).__name__} of shape {list(spec.shape)} and type {spec.dtype} cannot be read; "
        "served are integers with known sizes, numbers of at most two dimensions, and images [height, width, channels]"
    )


def _bounds(spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """Low and high of every number, in a row."""
    size = spec.shape.numel()
    if isinstance(spec, Bounded):
        return spec.low.float().reshape(size), spec.high.float().reshape(size)
    if isinstance(spec, Binary):
        return torch.zeros(size), torch.ones(size)
    return torch.full((size,), -torch.inf), torch.full((size,), torch.inf)
