"""Gated Transformer-XL against the equations of its papers, one step and one head at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.memory import MemoryCore, make_core
from lifelong.memory.gtrxl import GRUGate, GTrXLLayer, sinusoids

DIM, STEPS = 6, 4
RESET = torch.zeros(3, 9, dtype=torch.bool)
RESET[1, [0, 5]] = RESET[2, [1, 2]] = True


def build(reset_state: str, layers: int = 1) -> MemoryCore:
    torch.manual_seed(0)
    core = make_core(
        "gtrxl", DIM, memory_steps=STEPS, layers=layers, heads=2, head_dim=3, reset_state=reset_state
    ).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return core


def gate_by_definition(gate: GRUGate, x: Tensor, y: Tensor) -> Tensor:
    w_r, w_z, w_c = gate.of_made.weight.split(DIM)
    u_r, u_z = gate.of_stream.weight.split(DIM)
    r = torch.sigmoid(w_r @ y + u_r @ x)
    z = torch.sigmoid(w_z @ y + u_z @ x - gate.bias)
    candidate = torch.tanh(w_c @ y + gate.of_reset_stream.weight @ (r * x))
    return (1 - z) * x + z * candidate


def layer_by_definition(layer: GTrXLLayer, inputs: Tensor, reset: Tensor) -> Tensor:
    outputs, code = [], sinusoids(STEPS + 1, DIM).double()
    for life, row in enumerate(inputs):
        learned = layer.reset_state.get("inputs")
        fresh = [] if learned is None else list(learned)
        memory = list(fresh)
        for t, x in enumerate(row):
            if reset[life, t]:
                memory = list(fresh)
            seen = [*memory, x][-STEPS - 1 :]
            read = []
            for head in range(2):
                part = slice(3 * head, 3 * head + 3)
                query = layer.query.weight[part] @ layer.attention_norm(x)
                scores, values = [], []
                for lag, e in zip(range(len(seen) - 1, -1, -1), seen, strict=True):
                    normed = layer.attention_norm(e)
                    key = layer.key_value.weight[:6][part] @ normed
                    lag_key = layer.lag_key.weight[part] @ code[lag]
                    content = (query + layer.content_bias[head]) @ key
                    scores.append((content + (query + layer.lag_bias[head]) @ lag_key) / math.sqrt(3))
                    values.append(layer.key_value.weight[6:][part] @ normed)
                weights = torch.stack(scores).softmax(0)
                read.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
            attended = layer.output_projection.weight @ torch.cat(read)
            stream = gate_by_definition(layer.attention_gate, x, attended.relu())
            made = layer.narrow(layer.widen(layer.feed_forward_norm(stream)).relu()).relu()
            outputs.append(gate_by_definition(layer.feed_forward_gate, stream, made))
            memory.append(x)
    return torch.stack(outputs).view_as(inputs)


@pytest.mark.parametrize("reset_state", ["zero", "learned"])
def test_it_is_the_network_of_the_papers_in_values_and_gradients(reset_state: str) -> None:
    core = build(reset_state)
    inputs = torch.randn(3, 9, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    layer: Any = core.layers[0]
    found = core(inputs, core.initial_state(3), RESET)[0]
    wanted = layer_by_definition(layer, inputs, RESET)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-12)
    sources, weights = [inputs, *core.parameters()], torch.randn_like(found)
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), sources) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-10)


def test_the_gate_of_a_hand_worked_example() -> None:
    gate = GRUGate(1, bias=2.0)
    with torch.no_grad():
        for parameter, values in (
            (gate.of_made.weight, [[1.0], [2.0], [3.0]]),  # r, z, candidate
            (gate.of_stream.weight, [[-1.0], [1.0]]),  # r, z
            (gate.of_reset_stream.weight, [[2.0]]),
        ):
            parameter.copy_(torch.tensor(values))
    # x = 1, y = 0.5:  r = sigmoid(0.5 - 1) = 0.37754,  z = sigmoid(1 + 1 - 2) = 0.5,
    # candidate = tanh(1.5 + 2 * 0.37754) = tanh(2.25508) = 0.97825,  g = 0.5 + 0.5 * 0.97825 = 0.98912
    assert gate(torch.ones(1), torch.tensor([0.5])).item() == pytest.approx(0.98912, abs=1e-5)


def test_the_bias_of_two_begins_near_the_identity() -> None:
    torch.manual_seed(0)
    core, inputs = make_core("gtrxl", 32), torch.randn(4, 20, 32)
    outputs, _ = core(inputs, core.initial_state(4))
    assert 0.0 < (outputs - inputs).square().mean().sqrt().item() < 0.35


def test_lags_are_told_by_sines_and_cosines() -> None:
    codes = sinusoids(3, 4)
    wanted = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    torch.testing.assert_close(codes[:2], torch.tensor(wanted))
    assert sinusoids(5, 3).shape == (5, 3)


def test_layers_reach_back_one_memory_each() -> None:
    core = build("zero", layers=2)
    inputs = torch.randn(1, 12, DIM, dtype=torch.float64, requires_grad=True)
    outputs, _ = core(inputs, core.initial_state(1))
    (gradient,) = torch.autograd.grad(outputs[0, -1].sum(), inputs)
    assert gradient[0].any(1).tolist() == [False] * (11 - 2 * STEPS) + [True] * (2 * STEPS + 1)
