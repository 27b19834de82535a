"""Products with one-hot vectors, against the planes written out and multiplied in float64."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lifelong.kernels import one_hot
from lifelong.kernels.compile import CompileError
from lifelong.kernels.one_hot import one_hot_product, planes, serves

SIZES = torch.tensor([3, 1, 5, 2])
FIRST = SIZES.cumsum(0) - SIZES
# Read twice: each entry in a plane of its own, and all of them in one plane of five.
COLUMNS = torch.stack([FIRST, torch.full((4,), 11)])
ROWS = 16

there = serves(torch.zeros(1, dtype=torch.int64), torch.zeros(1))
pytestmark = pytest.mark.skipif(not there, reason="no C compiler")


def values(*batch: int) -> torch.Tensor:
    return torch.stack([torch.randint(int(size), batch) for size in SIZES], -1)


def exactly(integers: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return planes(integers, COLUMNS, ROWS).double() @ table.double()


def test_planes_by_hand() -> None:
    written = planes(torch.tensor([2, 0, 4, 0]), COLUMNS, ROWS)
    #                        entry 0  1  entry 2        3     in all: two 0s, a 2, a 4
    assert written.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 2, 0, 1, 0, 1]


@pytest.mark.parametrize("width", [1, 7, 16, 64, 100])
@pytest.mark.parametrize("batch", [(), (1,), (5, 6), (0,), (3, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_the_planes(width: int, batch: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    integers, table = values(*batch), torch.randn(ROWS, width, dtype=torch.float64)
    exact, fast = table.clone().requires_grad_(), table.to(dtype).requires_grad_()
    expected = exactly(integers, exact)
    found = one_hot_product(integers, SIZES, COLUMNS, fast)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (found * weights.to(dtype)).sum().backward()
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-12}
    torch.testing.assert_close(found.double(), expected, **tolerance)
    torch.testing.assert_close(fast.grad.double(), exact.grad, **tolerance)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integers_of_any_type_from_any_layout(dtype: torch.dtype) -> None:
    integers = values(3, 4)
    table = torch.randn(8, ROWS).t()  # a transposed table too
    expected = exactly(integers, table).float()
    torch.testing.assert_close(one_hot_product(integers.to(dtype), SIZES.to(dtype), COLUMNS.to(dtype), table), expected)
    turned = integers.transpose(0, 1).contiguous().transpose(0, 1)
    columns, sizes = COLUMNS.t().contiguous().t(), SIZES.repeat_interleave(2)[::2]
    torch.testing.assert_close(one_hot_product(turned, sizes, columns, table), expected)


def test_nothing_to_read_reads_as_zeros() -> None:
    nothing = torch.zeros(3, 0, dtype=torch.int64)
    assert one_hot_product(nothing, nothing[0], nothing[:1], torch.ones(ROWS, 2)).tolist() == [[0, 0]] * 3


def test_a_row_is_the_same_to_the_last_bit_whatever_stands_beside_it() -> None:
    integers, table = values(50), torch.randn(ROWS, 70)
    alone = torch.stack([one_hot_product(row, SIZES, COLUMNS, table) for row in integers])
    assert torch.equal(one_hot_product(integers, SIZES, COLUMNS, table), alone)


@pytest.mark.parametrize("wrong", [-1, 5, 2**62, -(2**62)])
def test_a_value_outside_its_range_is_named_and_nothing_is_read(wrong: int) -> None:
    integers = values(3, 2)
    integers[1, 1, 2] = wrong
    with pytest.raises(IndexError, match=rf"entry 2 is {wrong}, and must be in \[0, 5\)"):
        one_hot_product(integers, SIZES, COLUMNS, torch.randn(ROWS, 4))


def test_what_changes_behind_torchs_back_is_checked_again() -> None:
    integers, table = values(3), torch.randn(ROWS, 4, requires_grad=True)
    product = one_hot_product(integers, SIZES, COLUMNS, table)
    integers.numpy()[0, 0] = 2**40
    with pytest.raises(IndexError, match="entry 0"):
        product.sum().backward()


def test_shapes_that_do_not_fit_are_refused_before_anything_is_touched() -> None:
    table = torch.randn(ROWS, 4)
    for integers in (values(3)[:, :3], values(3).repeat(1, 2), values()[0]):
        with pytest.raises(ValueError, match=r"values \[..., J\]"):
            one_hot_product(integers, SIZES, COLUMNS, table)
    for columns in (COLUMNS + 1, COLUMNS - 1, COLUMNS + 2**62):
        with pytest.raises(ValueError, match="beyond the 16 rows"):
            one_hot_product(values(3), SIZES, columns, table)


def test_what_it_cannot_take_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    integers, table = values(3), torch.randn(ROWS, 4)
    assert serves(integers, table)
    assert not serves(integers, table.bfloat16())
    assert not serves(integers.to("meta"), table)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert not serves(integers, table)
        assert not serves(mode.from_tensor(integers), table)
    asked = torch.func.vmap(lambda row: row * serves(row, table))(integers)
    assert not asked.any()

    def none_found(*_: object) -> None:
        raise CompileError("no C compiler was found")

    one_hot._library.cache_clear()
    monkeypatch.setattr(one_hot, "compile_library", none_found)
    try:
        assert not serves(integers, table)
    finally:
        one_hot._library.cache_clear()
