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

from lifelong.kernels.one_hot import one_hot_product, planes

Observation = dict[str, Tensor]


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
        self.keys = sorted(spec.keys())
        if not self.keys:
            raise ValueError("the observation is empty: there is nothing to encode")
        readers = [_make_reader(key, spec[key], grid) for key in self.keys]
        self.readers = nn.ModuleList(readers)  # a ModuleDict would refuse entries called "keys" or "type"
        width = sum(reader.size for reader in readers)
        self.first = nn.Linear(width, dim)
        self.rest = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.hidden_norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers + 1)] if layer_norm else [])

    def forward(self, observation: Observation) -> Tensor:
        embedding: Tensor = self.norm(self.hidden(observation)[-1])
        return embedding

    def hidden(self, observation: Observation) -> list[Tensor]:
        """The activations of each hidden layer, [..., dim]; the output is the last of them, normalised."""
        values = self._first(observation)
        hidden = []
        for number in range(len(self.rest) + 1):
            if number:
                values = self.rest[number - 1](values)
            values = silu(self.hidden_norms[number](values) if self.hidden_norms else values)
            hidden.append(values)
        return hidden

    def _first(self, observation: Observation) -> Tensor:
        """``first`` of all features side by side. The zeros of one-hot planes are not multiplied: most of the work of
        an agent that sees a grid would go there.
        """
        values = self.first.bias
        weights = self.first.weight.split([reader.size for reader in self.readers], 1)
        for key, reader, weight in zip(self.keys, self.readers, weights, strict=True):
            values = values + reader.product(observation[key], weight)  # type: ignore[operator]
        return values


class _Reader(nn.Module):
    """Reads one entry of an observation into ``size`` floats."""

    size: int

    def product(self, value: Tensor, weight: Tensor) -> Tensor:
        """What the weights [dim, size] make of those floats: [..., dim]."""
        return linear(self(value).to(weight.dtype), weight)


class _Planes(_Reader):
    """Integers [..., *shape] -> one-hot planes side by side [..., sum of sizes]."""

    sizes: Tensor
    columns: Tensor

    def __init__(self, sizes: Tensor) -> None:
        super().__init__()
        self.event_dims = sizes.dim()
        sizes = sizes.flatten().long()
        self.size = int(sizes.sum())
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("columns", (sizes.cumsum(0) - sizes).unsqueeze(0), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        return planes(self._in_a_row(value), self.columns, self.size, torch.float32)

    def product(self, value: Tensor, weight: Tensor) -> Tensor:
        return one_hot_product(self._in_a_row(value), self.sizes, self.columns, weight.t())

    def _in_a_row(self, value: Tensor) -> Tensor:
        return value.reshape(*value.shape[: value.dim() - self.event_dims], -1).long()


class _Grid(_Planes):
    """Integers [..., height, width, channels] -> one-hot planes of each cell, and how often each value is in view.

    The counts are a linear function of the planes, but one that would have to be learned cell by cell: with them, "a
    key is in view" is known wherever it stands.
    """

    def __init__(self, sizes: Tensor) -> None:
        super().__init__(sizes)
        of_a_cell = _Planes(sizes[0, 0])
        counts = self.size + of_a_cell.columns.repeat(1, sizes[..., 0].numel())
        self.columns = torch.cat([self.columns, counts])
        self.size += of_a_cell.size


class _Vector(_Reader):
    """Numbers [..., *shape] of at most two dimensions -> [..., n] in a row, scaled by their bounds."""

    centre: Tensor
    half_range: Tensor
    bounded: Tensor

    def __init__(self, low: Tensor, high: Tensor, event_dims: int) -> None:
        super().__init__()
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

    def __init__(self, shape: tuple[int, int, int], scale: float, categories: Tensor | None = None) -> None:
        super().__init__()
        height, width, channels = shape
        self.scale = scale
        self.planes = None if categories is None else _Planes(categories)
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
            return _Convolution(tuple(spec.shape), 1.0, sizes[0, 0]) if grid == "convolution" else _Grid(sizes)
        return _Planes(sizes)
    if isinstance(spec, CategoricalSpec):
        return _Planes(torch.full(tuple(spec.shape), int(spec.n)))
    if isinstance(spec, (Bounded, Unbounded, Binary)):
        if len(spec.shape) == 3:
            return _Convolution(tuple(spec.shape), 1 / 255 if spec.dtype == torch.uint8 else 1.0)
        if len(spec.shape) <= 2:
            low, high = _bounds(spec)
            return _Vector(low, high, len(spec.shape))
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
