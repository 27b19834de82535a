"""LSTM and GRU are torch's own, with resets inside the sequence."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from lifelong.memory import MemoryCore, make_core

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def peer_of(core: MemoryCore) -> nn.LSTM | nn.GRU:
    """A module of torch's with the weights of the core."""
    recurrence = core.recurrence
    assert isinstance(recurrence, nn.LSTM | nn.GRU)
    peer = type(recurrence)(core.dim, recurrence.hidden_size, num_layers=recurrence.num_layers, batch_first=True)
    peer.load_state_dict(recurrence.state_dict())
    return peer.to(recurrence.weight_ih_l0.dtype)


@DTYPES
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_without_resets_it_is_torchs_own_module_to_the_bit(name: str, layers: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    core = make_core(name, 6, layers=layers).to(dtype)
    inputs = torch.randn(3, 10, 6, dtype=dtype)
    outputs, state = core(inputs, core.initial_state(3), torch.zeros(3, 10, dtype=torch.bool))
    wanted, last = peer_of(core)(inputs)
    assert torch.equal(outputs, wanted)
    for name_of_leaf, leaf in zip(("hidden", "cell"), last if isinstance(last, tuple) else (last,), strict=False):
        assert torch.equal(state[name_of_leaf], leaf.transpose(0, 1))


@DTYPES
@pytest.mark.parametrize("density", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_with_resets_every_life_is_a_run_of_torchs_own_module(name: str, density: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    core = make_core(name, 6, layers=2, hidden=5).to(dtype)
    peer = peer_of(core)
    inputs = torch.randn(4, 17, 6, dtype=dtype, requires_grad=True)
    reset = torch.rand(4, 17) < density
    reset[:, 0] = True
    outputs, _ = core(inputs, core.initial_state(4), reset)
    rows = []
    for row, flags in zip(inputs, reset, strict=True):
        cuts = [*flags.nonzero().flatten().tolist(), len(flags)]
        lives = [row[start:end] for start, end in pairwise(cuts)]
        rows.append(torch.cat([core.output_projection(peer(life.unsqueeze(0))[0][0]) for life in lives]))
    wanted = torch.stack(rows)

    weights = torch.randn_like(wanted)
    found_gradients = gradients_of((outputs * weights).sum(), inputs, core.recurrence)
    wanted_gradients = gradients_of((wanted * weights).sum(), inputs, peer)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for found, right in zip([outputs, *found_gradients], [wanted, *wanted_gradients], strict=True):
        scale = max(1.0, float(right.detach().abs().max()))
        torch.testing.assert_close(found, right, rtol=0.0, atol=tolerance * scale)


def gradients_of(loss: Tensor, inputs: Tensor, module: nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, [inputs, *module.parameters()])


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_reset_erases_however_large_the_weights_and_the_state_are(name: str) -> None:
    core = make_core(name, 6)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(100.0)
    inputs, reset = 10.0 * torch.randn(2, 8, 6), torch.zeros(2, 8, dtype=torch.bool)
    reset[:, 5] = True
    outputs, _ = core(inputs, core.initial_state(2), reset)
    fresh, _ = core(inputs[:, 5:], core.initial_state(2))
    torch.testing.assert_close(outputs[:, 5:], fresh, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_forget_gates_begin_at_their_bias_and_every_other_gate_at_zero(layers: int) -> None:
    core = make_core("lstm", 6, layers=layers, forget_bias=2.0)
    for layer in range(layers):
        _, _, input_bias, hidden_bias = core.recurrence.all_weights[layer]
        assert (input_bias + hidden_bias).tolist() == [0.0] * 6 + [2.0] * 6 + [0.0] * 12


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_matrices_begin_orthogonal(name: str) -> None:
    for gate in make_core(name, 6).recurrence.weight_hh_l0.split(6):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6), rtol=0.0, atol=1e-5)


def test_chrono_initialisation_spreads_what_the_units_of_an_lstm_remember() -> None:
    torch.manual_seed(0)
    core = make_core("lstm", 300, layers=1, chrono_max=101.0)
    _, _, input_bias, hidden_bias = core.recurrence.all_weights[0]
    of_input, of_forget, of_cell, of_output = (input_bias + hidden_bias).detach().split(300)
    times = of_forget.exp()  # b_f = log(U(1, 100))
    assert 1.0 <= times.min() < 3.0
    assert 98.0 < times.max() <= 100.0
    assert float(times.mean()) == pytest.approx(50.5, abs=5.0)
    assert torch.equal(of_input, -of_forget)
    assert not of_cell.any()
    assert not of_output.any()


def test_chrono_initialisation_spreads_what_the_units_of_a_gru_keep() -> None:
    torch.manual_seed(0)
    core = make_core("gru", 300, layers=2, chrono_max=101.0)
    for layer in range(2):
        _, _, input_bias, hidden_bias = core.recurrence.all_weights[layer]
        of_reset, of_keep, of_new = (input_bias + hidden_bias).detach().split(300)
        assert float(of_keep.exp().mean()) == pytest.approx(50.5, abs=5.0)
        assert not of_reset.any()
        assert not of_new.any()
