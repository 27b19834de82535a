"""Stable Hadamard memory against its authors' equations."""

from __future__ import annotations

import math

import pytest
import torch

from lifelong.memory import make_core
from lifelong.memory.shm import scatter_rows


def test_by_hand() -> None:
    """One entry: written with eta v k = 1/2 * 3 * 1, and calibrated by 1 + tanh(theta v_c)."""
    layer = make_core("shm", 2, width=1, rows=1).double().layers["layer_0"]
    with torch.no_grad():
        layer.norm.eps = 0.0  # LayerNorm of (3, 1) is (1, -1)
        key, query, value, control, rate = range(5)
        layer.projection.weight.zero_()
        layer.projection.weight[[key, query], 0] = 1.0
        layer.projection.weight[value, 0] = 3.0
        layer.projection.weight[control, 0] = 0.5
        assert rate == len(layer.projection.weight) - 1
        layer.theta.fill_(2.0 * math.atanh(0.5))  # 1 + tanh(theta / 2) = 3/2
    inputs, state, seen = torch.tensor([[3.0, 1.0]], dtype=torch.float64), layer.initial_state(1, None, None), []
    for _ in range(3):
        _, state = layer.step(inputs, state, None)
        seen.append(float(state["memory"]))
    assert seen == pytest.approx([1.5, 1.5 * 1.5 + 1.5, 1.5 * (1.5 * 1.5 + 1.5) + 1.5], rel=1e-4)


def test_a_sequence_is_the_recurrence_that_its_authors_write() -> None:
    """Le et al. 2024, eq. 4 to 10."""
    torch.manual_seed(0)
    width, rows = 3, 4
    layer = make_core("shm", 5, width=width, rows=rows).double().layers["layer_0"]
    inputs = torch.randn(1, 7, 5, dtype=torch.float64)
    reset = torch.tensor([[False, False, False, False, True, False, False]])
    outputs, _ = layer(inputs, layer.initial_state(1, None, None), reset)
    memory, chosen = torch.zeros(width, width, dtype=torch.float64), []
    for t, life_step in enumerate([0, 1, 2, 3, 0, 1, 2]):
        u = layer.norm(inputs)[0, t]
        w_k, w_q, w_v, w_c, w_eta = layer.projection.weight.split([width] * 4 + [1])
        key, query = ((w @ u).relu() / (1e-5 + (w @ u).relu().sum()) for w in (w_k, w_q))
        row = int(scatter_rows(torch.tensor(life_step), rows))
        chosen.append(row)
        calibration = 1.0 + torch.tanh(torch.outer(layer.theta[row], w_c @ u))
        if reset[0, t]:
            memory = torch.zeros_like(memory)
        memory = memory * calibration + (w_eta @ u).sigmoid() * torch.outer(w_v @ u, key)
        wanted = inputs[0, t] + layer.output_projection(memory @ query + layer.shortcut(u))
        torch.testing.assert_close(outputs[0, t], wanted, rtol=0.0, atol=1e-10)
    assert len(set(chosen)) > 1


def test_rows_are_scattered_evenly_and_neighbours_are_independent_however_old_the_life() -> None:
    for start in (0, 10**7, 10**12):
        drawn = scatter_rows(torch.arange(start, start + 128_000), 128)
        counts = torch.bincount(drawn, minlength=128)
        assert counts.min() > 850
        assert counts.max() < 1150
        pairs = torch.bincount(drawn[:-1] % 8 * 8 + drawn[1:] % 8, minlength=64)
        assert pairs.min() > 1750
        assert pairs.max() < 2250
