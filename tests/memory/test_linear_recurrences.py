"""minGRU, LRU and S5 against their authors' equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lifelong.memory import make_core
from lifelong.memory.s5 import hippo_normal

DIM, STEPS = 3, 7


def layer_of(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    layer: nn.Module = make_core(name, DIM, **options).double().layers["layer_0"]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def run(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Features u = LayerNorm(x) and what the layer adds to x, of one life, [T, dim] each."""
    outputs, _ = layer(inputs, layer.initial_state(1, None, None), None)
    return layer.norm(inputs)[0], (outputs - inputs)[0]


def random_inputs() -> Tensor:
    return torch.randn(1, STEPS, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_min_gru_by_hand() -> None:
    layer = make_core("min_gru", 2, hidden=1).double().layers["layer_0"]
    with torch.no_grad():
        layer.norm.eps = 0.0  # LayerNorm of (3, 1) is (1, -1), of (1, 3) it is (-1, 1)
        layer.projection.weight.copy_(torch.tensor([[math.log(3.0), 0.0], [2.0, 0.0]]))  # gate, candidate
        layer.projection.bias.zero_()
        layer.output_projection.weight.copy_(torch.tensor([[1.0], [0.0]]))
        layer.output_projection.bias.zero_()
    inputs = torch.tensor([[[3.0, 1.0], [1.0, 3.0]]], dtype=torch.float64)
    _, added = run(layer, inputs)
    # z = 3/4, n = 2: h = 3/2. Then z = 1/4, n = -2: h = 3/4 * 3/2 - 1/4 * 2 = 5/8.
    torch.testing.assert_close(added, torch.tensor([[1.5, 0.0], [0.625, 0.0]], dtype=torch.float64))


def test_min_gru_with_positive_candidates_is_the_authors_form_in_the_log_domain() -> None:
    """Feng et al. 2024, appendix B: log h = log of a cumulative sum of exponentials, with log z and log g(n)."""
    layer = layer_of("min_gru", candidate="positive", hidden=4)
    features, added = run(layer, random_inputs())
    gate, candidate = layer.projection(features).chunk(2, -1)
    log_keep, log_gate = -nn.functional.softplus(gate), -nn.functional.softplus(-gate)
    log_written = log_gate + torch.where(
        candidate >= 0, (candidate.relu() + 0.5).log(), -nn.functional.softplus(-candidate)
    )
    kept = log_keep.cumsum(0)
    states = (kept + torch.logcumsumexp(log_written - kept, 0)).exp()
    torch.testing.assert_close(added, layer.output_projection(states), rtol=0.0, atol=1e-12)


def complex_matrix(weight: Tensor, sign: float = 1.0) -> Tensor:
    """Columns (real, imaginary, real, ...) of a read-out -> complex columns."""
    return torch.complex(weight[:, 0::2], sign * weight[:, 1::2])


def test_lru_is_the_sum_over_the_past_that_its_authors_write() -> None:
    """Orvieto et al. 2023, eq. 3 and 7: o_t = Re(C sum_j Lambda^j gamma B u_{t-j}) + D u_t."""
    layer = layer_of("lru", state_dim=4)
    features, added = run(layer, random_inputs())
    eigenvalues = torch.exp(-layer.log_decay_rate.exp() + 1j * layer.log_phase.exp())
    assert (eigenvalues.abs() < 1).all()
    into = complex_matrix(layer.input_projection.weight.T).T * layer.log_scale.exp().unsqueeze(1)
    out_of = complex_matrix(layer.readout.weight, -1.0)
    rows = []
    for t in range(STEPS):
        state = sum(eigenvalues**lag * (into @ features[t - lag].to(into.dtype)) for lag in range(t + 1))
        rows.append((out_of @ state).real + layer.skip * features[t])
    outputs = nn.functional.gelu(torch.stack(rows))
    value, gate = layer.gate(outputs).chunk(2, -1)
    torch.testing.assert_close(added, value * gate.sigmoid(), rtol=0.0, atol=1e-10)


def test_lru_begins_on_its_ring_with_the_scale_that_keeps_the_variance() -> None:
    layer = make_core("lru", 8, state_dim=2000, radius_min=0.5, radius_max=0.9, max_phase=0.3).layers["layer_0"]
    radius = (-layer.log_decay_rate.exp()).exp()
    assert 0.5 <= radius.min() < 0.51
    assert 0.895 < radius.max() <= 0.9 + 1e-6
    assert layer.log_phase.exp().max() <= 0.3
    torch.testing.assert_close(layer.log_scale.exp().square() + radius.square(), torch.ones(2000))


@pytest.mark.parametrize("size", [2, 8])
def test_the_eigenvectors_of_hippo_n_give_the_matrix_back(size: int) -> None:
    wanted = torch.zeros(size, size)
    for n in range(size):
        for k in range(size):
            root = math.sqrt((n + 0.5) * (k + 0.5))
            wanted[n, k] = -0.5 if n == k else (-root if n > k else root)
    values, vectors = hippo_normal(size)
    assert (values.imag > 0).all()
    # of each conjugate pair one is kept: A = 2 Re(V diag(lambda) V^H)
    torch.testing.assert_close(2.0 * ((vectors * values) @ vectors.mH).real, wanted, rtol=0.0, atol=1e-5)


def test_s5_is_the_system_of_differential_equations_that_it_discretises() -> None:
    """x' = A x + B u with u held over each step, y = C x + D u, A = HiPPO-N, solved by dense matrix exponentials."""
    order, step = 6, 0.3
    torch.manual_seed(0)
    layer = make_core("s5", DIM, state_dim=order // 2).double().layers["layer_0"]
    values, vectors = (tensor.to(torch.complex128) for tensor in hippo_normal(order))
    transition = 2.0 * ((vectors * values) @ vectors.mH).real
    into, out_of = torch.randn(order, DIM, dtype=torch.float64), torch.randn(DIM, order, dtype=torch.float64)
    with torch.no_grad():
        layer.log_decay_rate.copy_((-values.real).log())
        layer.frequency.copy_(values.imag)
        layer.log_step.fill_(math.log(step))
        layer.input_projection.weight.copy_(torch.view_as_real(vectors.mH @ into.to(vectors.dtype)).mT.flatten(0, 1))
        read = 2.0 * out_of.to(vectors.dtype) @ vectors
        layer.readout.weight.copy_(torch.stack([read.real, -read.imag], -1).flatten(1))
    features, added = run(layer, random_inputs())

    joint = torch.zeros(order + DIM, order + DIM, dtype=torch.float64)
    joint[:order, :order], joint[:order, order:] = transition * step, into * step
    moved = torch.linalg.matrix_exp(joint)
    state, rows = torch.zeros(order, dtype=torch.float64), []
    for row in features:
        state = moved[:order, :order] @ state + moved[:order, order:] @ row
        rows.append(out_of @ state + layer.skip * row)
    outputs = nn.functional.gelu(torch.stack(rows))
    torch.testing.assert_close(added, outputs * layer.gate(outputs).sigmoid(), rtol=0.0, atol=1e-6)


def test_s5_begins_as_real_systems_would() -> None:
    """A real B gives B u the same norm in either basis, and every eigenvalue decays as exp(-t / 2)."""
    layer = make_core("s5", 64, state_dim=32, blocks=4).layers["layer_0"]
    torch.testing.assert_close(layer.log_decay_rate.exp(), torch.full((32,), 0.5))
    assert len(layer.frequency.unique()) == 8
    assert float(layer.input_projection.weight.detach().square().sum() * 2) == pytest.approx(64.0, rel=0.1)


@pytest.mark.parametrize(
    ("name", "options"), [("min_gru", {}), ("lru", {}), ("s5", {}), ("ffm", {"traces": 4, "contexts": 2})]
)
def test_single_precision_stays_with_double_precision_over_long_lives(name: str, options: dict[str, int]) -> None:
    torch.manual_seed(0)
    core = make_core(name, 4, **options)
    inputs = torch.randn(1, 30_000, 4)
    with torch.no_grad():
        single, _ = core(inputs, core.initial_state(1))
        core.double()
        double, _ = core(inputs.double(), core.initial_state(1))
    error = (single - double).abs()
    assert error.max() < 1e-3
    assert error[:, -1000:].max() < 3.0 * error[:, 2000:4000].max() + 1e-5, "the error must not grow with the life"


@pytest.mark.parametrize(
    ("name", "extremes"),
    [
        ("min_gru", {"projection.weight": 1e4}),
        ("lru", {"log_decay_rate": -30.0}),
        ("lru", {"log_decay_rate": 10.0}),
        ("s5", {"log_decay_rate": -30.0}),
        ("s5", {"log_step": 10.0}),
        ("s5", {"log_step": -30.0}),
        ("ffm", {"decay_rate": 0.0}),
        ("ffm", {"decay_rate": 500.0}),
    ],
)
def test_decays_at_zero_and_at_one_give_finite_values_and_gradients(name: str, extremes: dict[str, float]) -> None:
    torch.manual_seed(0)
    core = make_core(name, 4)
    parameters = dict(core.layers["layer_0"].named_parameters())
    with torch.no_grad():
        for key, value in extremes.items():
            parameters[key].fill_(value)
    inputs = torch.randn(2, 1000, 4, requires_grad=True)
    reset = torch.rand(2, 1000) < 0.01
    outputs, state = core(inputs, core.initial_state(2), reset)
    gradients = torch.autograd.grad(outputs.square().sum(), [inputs, *parameters.values()])
    assert all(bool(tensor.isfinite().all()) for tensor in (outputs, *state.values(True, True), *gradients))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "min_gru",
            {"candidate": "positiv"},
            "must be one of linear, positive, not 'positiv'; did you mean 'positive'",
        ),
        ("lru", {"radius_max": 1.0}, "0 <= radius_min <= radius_max < 1, not 0.9 and 1.0"),
        ("lru", {"state_dim": 0}, "state_dim must be 1 or more, not 0"),
        ("s5", {"state_dim": 6, "blocks": 4}, "blocks must divide state_dim=6, not 4"),
        ("s5", {"step_min": 0.2}, "0 < step_min <= step_max, not 0.2 and 0.1"),
        ("ffm", {"horizon_max": 3.0}, "horizon_max must be horizon_min=50.0 or more, not 3.0"),
        ("mamba2", {"groups": 3}, "groups must divide heads=4, not 3"),
        ("mamba2", {"layers": 0}, "layers must be 1 or more"),
        ("frame_stack", {"frames": 1}, "frames must be 2 or more, not 1"),
        ("shm", {"rows": 0}, "rows must be 1 or more, not 0"),
        ("lstm", {"chrono_max": 2.0}, "chrono_max must be above 2 steps, or null, not 2.0"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_plain_words(
    name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_core(name, 8, **options)
