"""Where the plain PyTorch references of flash-linear-attention are right, ours agree with them.

They compute in float32 and scale queries. Needs `pip install fla-core einops`; skipped without. Left out are Comba,
whose recurrent and chunked references there differ by 5 %, and Titans, whose gradient has a slip of precedence.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.kernels import fast_weight_attention, mesa_attention

from .inputs import Inputs, make_inputs

pytestmark = pytest.mark.filterwarnings("ignore")


def naive(rule: str, function: str) -> Any:
    pytest.importorskip("fla", reason="flash-linear-attention is not installed (pip install fla-core einops)")
    return getattr(importlib.import_module(f"fla.ops.{rule}.naive"), function)


def tokens(**options: Any) -> tuple[Inputs, dict[str, Any]]:
    """float32 inputs without resets, and their keywords with the query scaled as fla scales it."""
    inputs = make_inputs(reset_rate=0.0, **options).to(torch.float32)
    keywords = inputs.keywords() | {"query": inputs.query * inputs.query.shape[-1] ** -0.5}
    return inputs, keywords


def agree(output: Tensor, state: Tensor, theirs: tuple[Tensor, Tensor]) -> None:
    assert torch.allclose(output, theirs[0], rtol=1e-4, atol=1e-5)
    assert torch.allclose(state.mT, theirs[1], rtol=1e-4, atol=1e-5)


def test_delta_rule() -> None:
    function = naive("delta_rule", "delta_rule_recurrence")
    inputs, keywords = tokens(decay=None)
    ours = fast_weight_attention(initial_state=inputs.weights, **keywords)
    heads_first = [tensor.transpose(1, 2) for tensor in (inputs.query, inputs.key, inputs.value, inputs.write_rate)]
    output, state = function(*heads_first, initial_state=inputs.weights.mT)
    agree(ours.output, ours.state, (output.transpose(1, 2), state))


def test_gated_delta_rule() -> None:
    function = naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")
    inputs, keywords = tokens()
    ours = fast_weight_attention(initial_state=inputs.weights, **keywords)
    arguments = (inputs.query, inputs.key, inputs.value, inputs.write_rate, inputs.log_decay)
    agree(ours.output, ours.state, function(*arguments, initial_state=inputs.weights.mT, output_final_state=True))


def test_kimi_delta_attention() -> None:
    function = naive("kda", "naive_recurrent_kda")
    inputs, keywords = tokens(decay="channel")
    ours = fast_weight_attention(initial_state=inputs.weights, **keywords)
    arguments = (inputs.query, inputs.key, inputs.value, inputs.log_decay, inputs.write_rate)
    agree(ours.output, ours.state, function(*arguments, initial_state=inputs.weights.mT, output_final_state=True))


def test_gated_linear_attention() -> None:
    function = naive("gla", "naive_recurrent_gla")
    inputs, keywords = tokens(decay="channel", rate=1.0, erase=False)
    ours = fast_weight_attention(initial_state=inputs.weights, **keywords)
    arguments = (inputs.query, inputs.key, inputs.value, inputs.log_decay)
    agree(ours.output, ours.state, function(*arguments, initial_state=inputs.weights.mT, output_final_state=True))


def test_mesa_net() -> None:
    function = naive("mesa_net", "naive_mesa_net_exact")
    inputs, _ = tokens(value_width=8)
    regulariser = torch.linspace(0.5, 2.0, 16).view(2, 8)
    arguments = (inputs.query, inputs.key, inputs.value)
    ours = mesa_attention(*arguments, inputs.write_rate, regulariser, inputs.log_decay)
    output, keys, values = function(*arguments, inputs.log_decay, regulariser, inputs.write_rate)
    agree(ours.output, ours.state.values, (output, values))
    assert torch.allclose(ours.state.keys, keys, atol=1e-5)
