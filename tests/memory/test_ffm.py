"""Fast and forgetful memory against its authors' equations."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import nn

from lifelong.memory import make_core


def test_a_trace_by_hand() -> None:
    """One trace that halves and makes a quarter turn at every step: 1, 1 - i/2, 1 - i/2 - 1/4."""
    layer = make_core("ffm", 2, traces=1, contexts=1).double().layers["layer_0"]
    with torch.no_grad():
        layer.decay_rate.fill_(math.log(2.0))
        layer.frequency.fill_(math.pi / 2)
        layer.written.weight.zero_()
        layer.written.bias.fill_(2.0)
        layer.write_gate.weight.zero_()
        layer.write_gate.bias.zero_()  # writes 2 * sigmoid(0) = 1
    inputs, state, seen = torch.randn(1, 2, dtype=torch.float64), layer.initial_state(1, None, None), []
    for _ in range(3):
        _, state = layer.step(inputs, state, None)
        seen.append(state["trace"].flatten().tolist())
    assert seen == [pytest.approx([1.0, 0.0]), pytest.approx([1.0, -0.5]), pytest.approx([0.75, -0.5])]


def test_a_sequence_is_the_weighted_sum_over_the_past_and_the_gated_reading_of_it() -> None:
    """Morad et al. 2023, eq. 2 to 9, each written out with plain complex numbers."""
    torch.manual_seed(0)
    layer = make_core("ffm", 5, traces=3, contexts=2).double().layers["layer_0"]
    inputs = torch.randn(1, 6, 5, dtype=torch.float64)
    outputs, _ = layer(inputs, layer.initial_state(1, None, None), None)
    u = layer.norm(inputs)[0]
    written = (layer.written(u) * layer.write_gate(u).sigmoid()).tolist()
    alpha, omega = layer.decay_rate.tolist(), layer.frequency.tolist()
    for t in range(6):
        sums = [
            sum(written[i][j] * cmath.exp(complex(-abs(a), -w) * (t - i)) for i in range(t + 1))
            for j, a in enumerate(alpha)
            for w in omega
        ]
        flat = torch.tensor([part for number in sums for part in (number.real, number.imag)], dtype=torch.float64)
        z = layer.readout(flat)
        normed = (z - z.mean()) / (z.var(unbiased=False) + 1e-5).sqrt()
        gate = layer.read_gate(u[t]).sigmoid()
        wanted = inputs[0, t] + normed * gate + layer.skip(u[t]) * (1.0 - gate)
        torch.testing.assert_close(outputs[0, t], wanted, rtol=0.0, atol=1e-10)


def test_traces_begin_with_the_horizons_that_were_asked_for() -> None:
    layer = make_core("ffm", 4, traces=5, contexts=3, horizon_min=20.0, horizon_max=400.0).layers["layer_0"]
    left = (-layer.decay_rate.detach() * torch.tensor([20.0, 1.0, 1.0, 1.0, 400.0])).exp()
    assert left[[0, -1]].tolist() == pytest.approx([0.01, 0.01], rel=1e-4)
    assert (2 * math.pi / layer.frequency.detach()).tolist() == pytest.approx([1.0, 200.5, 400.0])


def test_a_life_longer_than_every_horizon_is_where_mathematics_puts_it_and_stays_there() -> None:
    """A constant input: the trace in float32 is the limit of the geometric series, however long the life goes on."""
    layer = make_core("ffm", 2, traces=2, contexts=2, horizon_max=1e5).layers["layer_0"]
    with torch.no_grad():
        for linear in (layer.written, layer.write_gate):
            nn.init.zeros_(linear.weight)
            nn.init.ones_(linear.bias)
        inputs = torch.randn(1, 1, 2).expand(1, 100_000, 2)
        state = layer.initial_state(1, None, None)
        for _ in range(5):  # five horizons; the series has converged, and every later step repeats the last
            _, state = layer(inputs, state, None)
        before = state["trace"].clone()
        _, state = layer(inputs[:, :1000], state, None)
    torch.testing.assert_close(state["trace"], before, rtol=2e-4, atol=2e-3)
    decay = torch.polar((-layer.decay_rate.double().abs()).exp().unsqueeze(1), -layer.frequency.double().unsqueeze(0))
    limit = torch.view_as_real(torch.sigmoid(torch.tensor(1.0, dtype=torch.float64)) / (1.0 - decay))
    torch.testing.assert_close(state["trace"][0].double(), limit, rtol=5e-3, atol=5e-3)
