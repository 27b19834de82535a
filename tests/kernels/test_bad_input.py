"""A wrong argument raises a ValueError that names it, says what came and what is allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lifelong.kernels import ErrorFunction, MomentumState, fast_weight_attention, fast_weight_step, huber, power

from .inputs import make_inputs

GOOD = make_inputs().to(torch.float32)
SHAPE = (2, 21, 2)


def call(**changes: Any) -> None:
    arguments = GOOD.keywords() | {"initial_state": GOOD.state(), "implementation": "chunked"} | changes
    fast_weight_attention(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.zeros(2, 21, 16)}, r"query must be a non-empty tensor \[B, T, H, D\], got \[2, 21, 16\]"),
        ({"query": torch.zeros(2, 0, 2, 8)}, r"query must be a non-empty tensor"),
        ({"query": torch.zeros(2, 21, 2, 8, dtype=torch.int64)}, r"query must be float32.*got torch.int64"),
        ({"key": torch.zeros(*SHAPE, 7)}, r"key must be a tensor of shape \[2, 21, 2, 8\], got \[2, 21, 2, 7\]"),
        ({"key": torch.zeros(*SHAPE, 8, dtype=torch.float64)}, r"key must be float32, bfloat16 or float16, got .*64"),
        ({"value": torch.zeros(2, 20, 2, 5)}, r"value must be a tensor of shape \[2, 21, 2, 5\]"),
        ({"value": None}, r"value must be a non-empty tensor .*, got NoneType"),
        ({"write_rate": torch.zeros(2, 21)}, r"write_rate must be a tensor of shape \[2, 21, 2\], got \[2, 21\]"),
        ({"log_decay": torch.zeros(*SHAPE, 5)}, r"log_decay must be a tensor of shape \[2, 21, 2, 8\]"),
        ({"log_decay": torch.zeros(*SHAPE, device="meta")}, r"log_decay must be on cpu.*got meta"),
        ({"momentum": torch.zeros(2, 2, 21)}, r"momentum must be a tensor of shape \[2, 21, 2\]"),
        ({"momentum": torch.zeros(SHAPE)}, r"initial_state must be MomentumState\(weights, momentum\)"),
        ({"erase": [True]}, r"erase must be a bool or 2 bools, one a head, got \[True\]"),
        ({"erase": torch.ones(3, dtype=torch.bool)}, r"erase must be a bool or a bool tensor of shape \[2\]"),
        ({"reset": torch.zeros(2, 21)}, r"reset must be a bool tensor of shape \[2, 21\], got .*float32"),
        ({"reset": torch.zeros(21, 2, dtype=torch.bool)}, r"reset must be a bool tensor of shape \[2, 21\]"),
        ({"erase_key": torch.zeros(*SHAPE, 9)}, r"erase_key must be a tensor of shape \[2, 21, 2, 8\]"),
        ({"reset_state": torch.zeros(2, 8, 5)}, r"reset_state must be a tensor of shape \[2, 5, 8\], got \[2, 8, 5\]"),
        ({"initial_state": torch.zeros(2, 2, 8, 5)}, r"initial_state must be \[2, 2, 5, 8\] of torch.float32"),
        ({"initial_state": torch.zeros(2, 2, 5, 8).double()}, r"state must be .* torch.float32 .* got .*float64"),
        ({"initial_state": MomentumState(torch.zeros(1), torch.zeros(1))}, r"initial_state must be a tensor when"),
        ({"error_function": "huber"}, r"error_function must be an ErrorFunction such as huber\(1.0\), got 'huber'"),
        ({"erase": None}, r"erase must be a bool or 2 bools, one a head, got None"),
        ({"error_before_decay": "no"}, r"error_before_decay must be True, False or None, got 'no'"),
        ({"implementation": None}, r'must be one of auto, reference, .*, got "None"'),
        ({"implementation": "triton"}, r'"triton" cannot serve this call: the Triton kernels run on a GPU'),
        ({"implementation": "chunky"}, r'must be one of auto, reference, chunked.*did you mean "chunked"\?'),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_decay": torch.full(SHAPE, 0.5)}, r"log_decay must be <= 0, got 0.5"),
        ({"write_rate": torch.full(SHAPE, 2.5)}, r"write_rate must lie in \[0, 2\], got values from 2.5 to 2.5"),
        ({"write_rate": torch.full(SHAPE, -0.5)}, r"write_rate must lie in \[0, 2\], got values from -0.5"),
        ({"value": torch.full((*SHAPE, 5), torch.nan)}, r"value must be finite, got nan at \[0, 0, 0, 0\]"),
        ({"log_decay": torch.full(SHAPE, -torch.inf)}, r"log_decay must be finite, got -inf"),
        ({"initial_state": torch.full((2, 2, 5, 8), torch.inf)}, r"state must be finite, got inf"),
    ],
)
def test_values_are_checked_when_asked_for(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(check_values=True, **changes)
    call(check_values=True)


def test_momentum_out_of_range_is_named() -> None:
    inputs = make_inputs(momentum=True)
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\], got values from 1.5 to 1.5"):
        replace(inputs, momentum=torch.full_like(inputs.momentum, 1.5), options={"check_values": True}).run("chunked")


def test_float64_wants_every_input_in_float64() -> None:
    inputs = make_inputs()
    inputs = replace(inputs, write_rate=inputs.write_rate.float())
    with pytest.raises(ValueError, match=r"write_rate must be float64, as query is, got torch.float32"):
        inputs.run("chunked")


def test_a_step_in_place_wants_a_state_of_its_own_and_no_gradient() -> None:
    token = [GOOD.query[:, 0], GOOD.key[:, 0], GOOD.value[:, 0], GOOD.write_rate[:, 0]]
    with pytest.raises(ValueError, match="state=None"):
        fast_weight_step(*token, in_place=True)
    with pytest.raises(ValueError, match="contiguous"):
        fast_weight_step(*token, state=torch.zeros(2, 2, 8, 5).mT, in_place=True)
    with pytest.raises(ValueError, match=r"torch\.no_grad"):
        fast_weight_step(*token, state=torch.zeros(2, 2, 5, 8).requires_grad_(), in_place=True)
    with pytest.raises(ValueError, match=r"query must be a non-empty tensor \[B, H, D\]"):
        fast_weight_step(GOOD.query, *token[1:])


def test_error_functions_check_their_parameter() -> None:
    with pytest.raises(ValueError, match="threshold must be > 0, got 0"):
        huber(0.0)
    with pytest.raises(ValueError, match=r"exponent must be >= 1, got 0\.5"):
        power(0.5)
    with pytest.raises(ValueError, match="threshold must be > 0, got 'long'"):
        huber("long")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='must be named squared, huber or power, got "hubber"'):
        ErrorFunction("hubber", 1.0)
    with pytest.raises(ValueError, match=r"parameter of huber must be > 0, got 0\.0"):
        ErrorFunction("huber")
    with pytest.raises(ValueError, match="must be finite, got nan"):
        ErrorFunction("huber", float("nan"))
