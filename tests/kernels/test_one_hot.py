"""Products with one-hot vectors, against the planes written out and multiplied in float64."""

from __future__ import annotations

import pytest
import torch

from lifelong.kernels import one_hot
from lifelong.kernels.native_library import loading_problem
from lifelong.kernels.one_hot import one_hot_product, planes

SIZES = torch.tensor([3, 1, 5, 2])
FIRST = SIZES.cumsum(0) - SIZES
# Read twice: each entry in a plane of its own, and all of them in one plane of five.
COLUMNS = torch.stack([FIRST, torch.full((4,), 11)])
ROWS = 16

needs_compiler = pytest.mark.skipif(loading_problem() is not None, reason=f"no native kernels: {loading_problem()}")


def values(*batch: int) -> torch.Tensor:
    return torch.stack([torch.randint(int(size), batch) for size in SIZES], -1)


@pytest.fixture(params=[pytest.param("native", marks=needs_compiler), "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(one_hot, "loading_problem", lambda: "asked not to")
    return str(request.param)


def test_planes_by_hand() -> None:
    written = planes(torch.tensor([2, 0, 4, 0]), COLUMNS, ROWS, torch.float32)
    #                        entry 0  1  entry 2        3     in all: two 0s, a 2, a 4
    assert written.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 2, 0, 1, 0, 1]


@pytest.mark.parametrize("width", [1, 7, 16, 64, 100])
@pytest.mark.parametrize("batch", [(), (1,), (5, 6), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_the_planes(
    implementation: str, width: int, batch: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    integers, table = values(*batch), torch.randn(ROWS, width, dtype=torch.float64)
    exact, fast = table.clone().requires_grad_(), table.to(dtype).requires_grad_()
    expected = planes(integers, COLUMNS, ROWS, torch.float64) @ exact
    found = one_hot_product(integers, SIZES, COLUMNS, fast)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (found * weights.to(dtype)).sum().backward()
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-12}
    torch.testing.assert_close(found.double(), expected, **tolerance)
    torch.testing.assert_close(fast.grad.double(), exact.grad, **tolerance)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_integers_of_any_type_from_any_layout(implementation: str, dtype: torch.dtype) -> None:
    integers = values(3, 4)
    table = torch.randn(8, ROWS).t()  # a transposed table too
    expected = planes(integers, COLUMNS, ROWS, torch.float32) @ table
    torch.testing.assert_close(one_hot_product(integers.to(dtype), SIZES, COLUMNS, table), expected)
    turned = integers.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(one_hot_product(turned, SIZES, COLUMNS, table), expected)


@needs_compiler
def test_a_row_is_the_same_to_the_last_bit_whatever_stands_beside_it() -> None:
    integers, table = values(50), torch.randn(ROWS, 70)
    alone = torch.stack([one_hot_product(row, SIZES, COLUMNS, table) for row in integers])
    assert torch.equal(one_hot_product(integers, SIZES, COLUMNS, table), alone)


@needs_compiler
@pytest.mark.parametrize("wrong", [-1, 5, 2**62, -(2**62)])
def test_a_value_outside_its_range_is_named_and_nothing_is_read(wrong: int) -> None:
    integers = values(3, 2)
    integers[1, 1, 2] = wrong
    with pytest.raises(IndexError, match=rf"entry 2 is {wrong}, and must be in \[0, 5\)"):
        one_hot_product(integers, SIZES, COLUMNS, torch.randn(ROWS, 4))
