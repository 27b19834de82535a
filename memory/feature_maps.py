"""Feature maps: what is done to the keys, and where need be the queries, of a fast-weight memory before it sees them.

| map | phi(x), x of width d | width | source |
|---|---|---|---|
| identity | x | d | |
| silu | x sigmoid(x) | d | Yang et al. 2025 (keys) |
| elu_plus_one | elu(x) + 1 > 0 | d | Katharopoulos et al. 2020 |
| squared_relu | max(x, 0)^2 | d | So et al. 2021 |
| dpfp | r_i r_{(i - j) mod 2d}, j = 1 .. order, with r = max([x, -x], 0) | 2 d order | Schlag et al. 2021 |
| polynomial | the monomials of degree <= order, weighted | C(d + order, order) | |
| random_fourier | [cos(W x), sin(W x)] / sqrt(m), W ~ N(0, 1) of m = d order rows | 2 m | Rahimi and Recht 2007 |

The weights of the polynomial are such that phi(x) . phi(y) = (1 + x . y)^order; random_fourier has
E phi(x) . phi(y) = exp(-|x - y|^2 / 2), and |phi(x)| = 1.

``order`` is the map's own size: nu of DPFP, the degree of the polynomial, random frequencies per entry of x.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn

_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "silu": nn.functional.silu,
    "elu_plus_one": lambda x: nn.functional.elu(x) + 1.0,
    "squared_relu": lambda x: nn.functional.relu(x).square(),
}


class FeatureMap(nn.Module):
    """[..., d] -> [..., ``width``]."""

    width: int

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class _Elementwise(FeatureMap):
    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        self.width, self.name = width, name

    def forward(self, x: Tensor) -> Tensor:
        return _ELEMENTWISE[self.name](x)  # by name, so that a core can be pickled


class _DPFP(FeatureMap):
    def __init__(self, width: int, order: int) -> None:
        super().__init__()
        self.width, self.order = 2 * width * order, order

    def forward(self, x: Tensor) -> Tensor:
        rectified = torch.cat([x, -x], -1).relu()
        return torch.cat([rectified * rectified.roll(shift, -1) for shift in range(1, self.order + 1)], -1)


class _Polynomial(FeatureMap):
    _factors: Tensor
    _weights: Tensor

    def __init__(self, width: int, order: int) -> None:
        super().__init__()
        # Entry `width` is the constant 1, so that a product of `order` factors may be of any lower degree.
        factors = list(combinations_with_replacement(range(width + 1), order))
        ways = [math.factorial(order) / math.prod(map(math.factorial, Counter(each).values())) for each in factors]
        self.width = len(factors)
        self.register_buffer("_factors", torch.tensor(factors).T.contiguous(), persistent=False)
        self._weights = torch.tensor(ways, dtype=torch.float64).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        extended = nn.functional.pad(x, (0, 1), value=1.0)
        products = extended[..., self._factors[0]]
        for factor in self._factors[1:]:
            products = products * extended[..., factor]
        return products * self._weights.to(products)


class _RandomFourier(FeatureMap):
    frequencies: Tensor

    def __init__(self, width: int, order: int) -> None:
        super().__init__()
        self.width = 2 * width * order
        self.register_buffer("frequencies", torch.randn(width, width * order))

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1) * (2.0 / self.width) ** 0.5


FEATURE_MAPS = [*_ELEMENTWISE, "dpfp", "polynomial", "random_fourier"]


def make_feature_map(name: str, width: int, order: int) -> FeatureMap:
    """The map of that name, one of ``FEATURE_MAPS``, for vectors of the given width."""
    if name == "dpfp":
        return _DPFP(width, order)
    if name == "polynomial":
        return _Polynomial(width, order)
    if name == "random_fourier":
        return _RandomFourier(width, order)
    return _Elementwise(name, width)


def feature_width(name: str, width: int, order: int) -> int:
    """How wide that map makes vectors of the given width."""
    if name == "polynomial":
        return math.comb(width + order, order)
    return 2 * width * order if name in ("dpfp", "random_fourier") else width


def default_query_map(key_map: str) -> str:
    """The map that queries get unless one is asked for: that of the keys, but for silu, which is for keys only."""
    return "identity" if key_map == "silu" else key_map
