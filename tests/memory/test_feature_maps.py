"""Feature maps against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lifelong.memory.feature_maps import FEATURE_MAPS, default_query_map, feature_width, make_feature_map


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_a_map_says_how_wide_it_is(name: str) -> None:
    for order in (1, 2, 3):
        made = make_feature_map(name, 4, order).double()
        assert made(vectors(2, 5, 4)).shape == (2, 5, made.width)
        assert made.width == feature_width(name, 4, order)


def test_elementwise_maps_by_hand() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    wanted = {
        "identity": [-1.0, 0.0, 2.0],
        "silu": [-1.0 / (1.0 + math.e), 0.0, 2.0 / (1.0 + math.exp(-2.0))],
        "elu_plus_one": [math.exp(-1.0), 1.0, 3.0],
        "squared_relu": [0.0, 0.0, 4.0],
    }
    for name, values in wanted.items():
        torch.testing.assert_close(make_feature_map(name, 3, 1)(x), torch.tensor(values, dtype=torch.float64))


def test_dpfp_by_its_definition() -> None:
    x, nu = vectors(3), 2
    rectified = [max(value, 0.0) for value in [*x.tolist(), *(-x).tolist()]]
    wanted = [rectified[i] * rectified[(i - j) % 6] for j in (1, 2) for i in range(6)]
    torch.testing.assert_close(make_feature_map("dpfp", 3, nu)(x), torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_inner_products_of_polynomial_features_are_powers(degree: int) -> None:
    x, y = vectors(2, 7, 4)
    phi = make_feature_map("polynomial", 4, degree).double()
    assert phi.width == math.comb(4 + degree, degree)
    torch.testing.assert_close((phi(x) * phi(y)).sum(-1), (1.0 + (x * y).sum(-1)) ** degree, rtol=0.0, atol=1e-10)


def test_inner_products_of_random_fourier_features_approach_a_gaussian_of_the_distance() -> None:
    torch.manual_seed(0)
    phi = make_feature_map("random_fourier", 4, 5000).double()
    x, y = 0.5 * vectors(2, 20, 4)
    wanted = torch.exp(-(x - y).square().sum(-1) / 2.0)
    torch.testing.assert_close((phi(x) * phi(y)).sum(-1), wanted, rtol=0.0, atol=5.0 / math.sqrt(20000))
    torch.testing.assert_close(phi(x).norm(dim=-1), torch.ones(20).double())


def test_random_frequencies_are_saved_with_the_weights() -> None:
    torch.manual_seed(0)
    one, other = make_feature_map("random_fourier", 3, 1), make_feature_map("random_fourier", 3, 1)
    x = torch.randn(3)
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


def test_queries_get_the_map_of_the_keys_except_beside_silu() -> None:
    assert {name: default_query_map(name) for name in FEATURE_MAPS} == {
        name: "identity" if name == "silu" else name for name in FEATURE_MAPS
    }
