"""Where no second derivative is written out, asking for one raises, however it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lifelong.kernels import fast_weight_attention, fast_weight_step, mesa_attention
from lifelong.kernels.native import available

from .inputs import make_inputs

INPUTS = make_inputs(1, 3, 1, 3, 2, reset_rate=0.0)


def attention(implementation: str) -> Callable[[Tensor], Tensor]:
    return lambda key: (
        fast_weight_attention(INPUTS.query, key, INPUTS.value, INPUTS.write_rate, implementation=implementation)
        .output.square()
        .sum()
    )


def step(implementation: str) -> Callable[[Tensor], Tensor]:
    tensors = (tensor[:, 0] for tensor in (INPUTS.query, INPUTS.value, INPUTS.write_rate))
    query, value, rate = tensors
    return lambda key: (
        fast_weight_step(query, key[:, 0], value, rate, implementation=implementation).output.square().sum()
    )


def mesa(iterations: int | None) -> Callable[[Tensor], Tensor]:
    regulariser = torch.ones(1, 3, dtype=torch.float64)
    return lambda key: (
        mesa_attention(
            INPUTS.query, key, INPUTS.value, INPUTS.write_rate, regulariser,
            implementation="chunked", iterations=iterations,
        )
        .output.square()
        .sum()
    )  # fmt: skip


def twice(function: Callable[[Tensor], Tensor]) -> Tensor:
    key = INPUTS.key.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(key), key, create_graph=True)
    return torch.autograd.grad(first.square().sum(), key)[0]


def hessian(function: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.autograd.functional.hessian(function, INPUTS.key)


def transformed(function: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.func.grad(lambda key: torch.func.grad(function)(key).square().sum())(INPUTS.key)


@pytest.mark.parametrize("asked", [twice, hessian, transformed])
@pytest.mark.parametrize(
    "function",
    [
        attention("chunked"),
        pytest.param(attention("native"), marks=pytest.mark.skipif(not available(), reason="no usable C compiler")),
        pytest.param(step("native"), marks=pytest.mark.skipif(not available(), reason="no usable C compiler")),
        mesa(None),
        mesa(3),
    ],
    ids=["chunked", "native", "native step", "mesa", "mesa by iterations"],
)
def test_a_second_derivative_is_refused_and_not_silently_zero(
    function: Callable[[Tensor], Tensor], asked: Callable[[Callable[[Tensor], Tensor]], Tensor]
) -> None:
    with pytest.raises(NotImplementedError, match="no second derivative"):
        asked(function)
    assert asked(attention("reference")).norm() > 0
