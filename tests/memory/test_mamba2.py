"""Mamba-2 against its authors' equations, and against a published implementation of its recurrence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lifelong.memory import make_core

HEADS, WIDTH, POINTERS, TAPS = 4, 3, 5, 3


def layer_of(groups: int) -> nn.Module:
    torch.manual_seed(0)
    core = make_core(
        "mamba2", 6, heads=HEADS, head_dim=WIDTH, state_dim=POINTERS, groups=groups, convolution_taps=TAPS
    ).double()
    layer: nn.Module = core.layers["layer_0"]
    return layer


def parts(layer: nn.Module, inputs: Tensor, groups: int) -> tuple[Tensor, ...]:
    """z, x, B, C, step, a of every step of one life: [T, heads, ...] each, by the equations."""
    u = layer.norm(inputs)[0]
    z, mixed, step = layer.projection(u).split([HEADS * WIDTH, HEADS * WIDTH + 2 * groups * POINTERS, HEADS], -1)
    convolved = torch.stack(
        [
            sum(layer.convolution.weight[TAPS - 1 - lag] * mixed[t - lag] for lag in range(min(TAPS, t + 1)))
            for t in range(len(mixed))
        ]
    )
    x, b, c = nn.functional.silu(convolved).split([HEADS * WIDTH, groups * POINTERS, groups * POINTERS], -1)
    step = (1.0 + (step + layer.step_bias).exp()).log()
    decay = (-layer.log_decay_rate.exp() * step).exp()
    per_head = [
        pointers.view(-1, groups, POINTERS)[:, [h * groups // HEADS for h in range(HEADS)]] for pointers in (b, c)
    ]
    return z, x.view(-1, HEADS, WIDTH), *per_head, step, decay


@pytest.mark.parametrize("groups", [1, 2])
def test_a_sequence_is_the_recurrence_that_its_authors_write(groups: int) -> None:
    """Dao and Gu 2024: h_t = a_t h_{t-1} + step_t x_t B_t^T, y_t = h_t C_t + D x_t, gated, normed, projected."""
    layer, inputs = layer_of(groups), torch.randn(1, 6, 6, dtype=torch.float64)
    outputs, _ = layer(inputs, layer.initial_state(1, None, None), None)
    z, x, b, c, step, decay = parts(layer, inputs, groups)
    state = torch.zeros(HEADS, WIDTH, POINTERS, dtype=torch.float64)
    for t in range(6):
        rows = []
        for h in range(HEADS):
            state = state.clone()
            state[h] = decay[t, h] * state[h] + step[t, h] * torch.outer(x[t, h], b[t, h])
            rows.append(state[h] @ c[t, h] + layer.skip[h] * x[t, h])
        gated = torch.cat(rows) * nn.functional.silu(z[t])
        normed = gated / (gated.square().mean() + 1e-5).sqrt() * layer.read_norm.weight
        wanted = inputs[0, t] + layer.output_projection(normed)
        torch.testing.assert_close(outputs[0, t], wanted, rtol=0.0, atol=1e-10)


def test_its_recurrence_is_the_simple_gated_linear_attention_of_fla() -> None:
    naive = pytest.importorskip("fla.ops.simple_gla.naive", reason="needs fla-core")
    layer, inputs = layer_of(1), torch.randn(1, 9, 6, dtype=torch.float64)
    _, state = layer(inputs, layer.initial_state(1, None, None), None)
    _, x, b, c, step, decay = (part.unsqueeze(0).float() for part in parts(layer, inputs, 1))
    _, last = naive.naive_recurrent_simple_gla(c, b, x * step.unsqueeze(-1), decay.log(), output_final_state=True)
    torch.testing.assert_close(state["fast_weights"].float(), last.mT, rtol=0.0, atol=1e-5)


def test_it_begins_with_the_steps_and_decays_that_were_asked_for() -> None:
    layer = make_core("mamba2", 6, heads=500, head_dim=1, state_dim=1, step_min=0.01, step_max=0.2).layers["layer_0"]
    steps, rates = nn.functional.softplus(layer.step_bias), layer.log_decay_rate.exp()
    assert 0.01 <= steps.min() < 0.011
    assert 0.18 < steps.max() <= 0.2 + 1e-6
    assert 1.0 <= rates.min() < 1.2
    assert 15.5 < rates.max() <= 16.0
    assert float(steps.detach().log().mean()) == pytest.approx((math.log(0.01) + math.log(0.2)) / 2, abs=0.2)
