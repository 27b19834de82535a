"""The parts of a parametric core, each against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lifelong.memory import make_core
from lifelong.memory.normalise import scale_to_length
from lifelong.memory.rule_layer import RuleLayer, decay_gate, spread_horizons
from lifelong.memory.short_convolution import ShortConvolution


@pytest.mark.parametrize("length", [1.0, 3.0])
def test_scaling_to_length_has_the_gradient_of_its_definition(length: float) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    wanted = length * vectors / (vectors.square().sum(-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(scale_to_length(vectors, length, 0.1), wanted)
    assert torch.autograd.gradcheck(lambda x: scale_to_length(x, length, 0.1), (vectors,))


def test_scaling_to_length_reads_strided_vectors_and_is_finite_at_zero() -> None:
    vectors = torch.zeros(4, 10, requires_grad=True)
    scaled = scale_to_length(vectors[:, 2:7], 1.0, 1e-6)
    (gradient,) = torch.autograd.grad(scaled.sum(), vectors)
    assert not scaled.any()
    torch.testing.assert_close(gradient[:, 2:7], torch.full((4, 5), 1e3))
    assert not gradient[:, :2].any()


def convolution_by_definition(module: ShortConvolution, inputs: Tensor, tail: Tensor, reset: Tensor) -> Tensor:
    """y[t] = sum_j w[j] x[t - j] over the inputs of the same life, one term at a time."""
    reach, outputs = module.taps - 1, torch.zeros_like(inputs)
    for life in range(inputs.shape[0]):
        for t in range(inputs.shape[1]):
            for back in range(module.taps):
                if reset[life, max(t - back + 1, 0) : t + 1].any():
                    continue
                earlier = inputs[life, t - back] if t >= back else tail[life, reach + t - back]
                outputs[life, t] += module.weight[reach - back] * earlier
    return outputs


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("taps", [2, 4])
def test_the_convolution_sees_the_latest_inputs_of_the_same_life_only(taps: int, steps: int) -> None:
    torch.manual_seed(0)
    module = ShortConvolution(3, taps).double()
    inputs, tail = torch.randn(5, steps, 3, dtype=torch.float64), torch.randn(5, taps - 1, 3, dtype=torch.float64)
    reset = torch.rand(5, steps) < 0.3
    reset[0], reset[1] = False, True
    outputs, _ = module(inputs, tail, reset)
    torch.testing.assert_close(outputs, convolution_by_definition(module, inputs, tail, reset), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("resets", [False, True])
def test_the_convolution_has_the_gradient_of_its_definition(resets: bool) -> None:
    torch.manual_seed(0)
    module = ShortConvolution(2, 3).double()
    inputs, tail = (torch.randn(3, n, 2, dtype=torch.float64, requires_grad=True) for n in (5, 2))
    reset = torch.rand(3, 5) < (0.4 if resets else 0.0)

    def run(inputs: Tensor, tail: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(module, {"weight": weight}, (inputs, tail, reset if resets else None))

    assert torch.autograd.gradcheck(run, (inputs, tail, module.weight))


def test_horizons_are_spread_geometrically_and_are_those_of_the_first_decays() -> None:
    torch.testing.assert_close(spread_horizons(3, 10.0, 1000.0), torch.tensor([10.0, 100.0, 1000.0]).double())
    torch.testing.assert_close(spread_horizons(1, 10.0, 1000.0), torch.tensor([100.0]).double())
    assert decay_gate(spread_horizons(1, 1.00000001, 1.00000001)).bias.isfinite()  # a float32 would be 1
    core = make_core("gated_delta", 8, heads=3, horizon_min=10.0, horizon_max=1e5).double()
    layer = core.layers["layer_0"]
    assert isinstance(layer, RuleLayer)
    _, rate, decay = layer.labels.step(torch.randn(7, 8, dtype=torch.float64), core.initial_state(7)["layer_0"], None)[
        0
    ].gates
    horizons = 1.0 / (1.0 - decay.sigmoid())
    torch.testing.assert_close(horizons, torch.tensor([10.0, 1e3, 1e5]).double().expand(7, 3), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(rate.sigmoid(), torch.full((7, 3), 0.5).double())


@pytest.mark.parametrize("name", ["gated_delta", "linear_attention"])
@pytest.mark.parametrize("key_map", ["silu", "identity"])
def test_a_layer_computes_the_equations_of_its_docstring(name: str, key_map: str) -> None:
    torch.manual_seed(0)
    core = make_core(name, 6, heads=2, head_dim=3, value_dim=4, convolution_taps=2, key_map=key_map).double()
    layer = core.layers["layer_0"]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(5, 6, dtype=torch.float64)
    wanted, weights, before = [], torch.zeros(2, 4, 3, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for token in x:
        normed = layer.labels.norm(token)
        h = layer.labels.convolution.weight[1] * normed + layer.labels.convolution.weight[0] * before
        before = normed
        projected = layer.labels.projection(h)
        q, k = (part.view(2, 3) for part in projected[:12].split(6))
        k = k * k.sigmoid() if key_map == "silu" else k
        v, gate, gates = projected[12:20].view(2, 4), projected[20:28], projected[28:]
        b, a = gates[:2].sigmoid(), gates[2:].sigmoid() if name == "gated_delta" else torch.ones(2)
        heads = []
        for i in range(2):
            unit_q, unit_k = (z[i] / (z[i].square().sum() + 1e-6).sqrt() for z in (q, k))
            weights[i] *= a[i]
            error = v[i] - weights[i] @ unit_k if name == "gated_delta" else v[i]
            weights[i] += b[i] * torch.outer(error, unit_k)
            read = weights[i] @ unit_q
            heads.append(read / (read.square().mean() + 1e-5).sqrt())
        wanted.append(token + layer.read_out.projection(torch.cat(heads) * torch.nn.functional.silu(gate)))
    with torch.no_grad():
        outputs, state = core(x.unsqueeze(0), core.initial_state(1))
    torch.testing.assert_close(outputs[0], torch.stack(wanted), rtol=0.0, atol=1e-12)
    torch.testing.assert_close(state["layer_0", "fast_weights"][0], weights, rtol=0.0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_population_of_parametric_cores_runs_under_vmap() -> None:
    cores = []
    for seed in range(3):
        torch.manual_seed(seed)
        cores.append(make_core("gated_delta", 6, heads=2, head_dim=3, implementation="chunked").double())
    inputs, reset = torch.randn(2, 9, 6, dtype=torch.float64), torch.rand(2, 9) < 0.2
    state = cores[0].initial_state(2)
    parameters, buffers = torch.func.stack_module_state(list[torch.nn.Module](cores))

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        outputs, _ = torch.func.functional_call(cores[0], (parameters, buffers), (inputs, state, reset))
        return outputs.square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(parameters, buffers)
    for index, core in enumerate(cores):
        core(inputs, state, reset)[0].square().sum().backward()
        for name, parameter in core.named_parameters():
            torch.testing.assert_close(gradients[name][index], parameter.grad, rtol=0.0, atol=1e-10)


def test_the_kernel_of_a_core_can_be_chosen_and_all_agree() -> None:
    torch.manual_seed(0)
    core = make_core("gated_delta", 6, heads=2, head_dim=3, implementation="reference").double()
    inputs, reset = torch.randn(2, 40, 6, dtype=torch.float64), torch.rand(2, 40) < 0.1
    wanted, _ = core(inputs, core.initial_state(2), reset)
    chunked = make_core("gated_delta", 6, heads=2, head_dim=3, implementation="chunked").double()
    chunked.load_state_dict(core.state_dict())
    torch.testing.assert_close(chunked(inputs, core.initial_state(2), reset)[0], wanted, rtol=0.0, atol=1e-10)


def test_what_linear_attention_reads_is_bounded_however_far_its_sum_has_grown() -> None:
    torch.manual_seed(0)
    core = make_core("linear_attention", 6, heads=2, head_dim=3).double()
    state = core.initial_state(2)
    with torch.no_grad():
        _, state = core(torch.randn(2, 30, 6, dtype=torch.float64), state)
        token, read = torch.randn(2, 6, dtype=torch.float64), []
        for growth in (1e6, 1e12):
            grown = state.clone()
            grown["layer_0", "fast_weights"] *= growth
            read.append(core.step(token, grown)[0])
    torch.testing.assert_close(read[0], read[1], rtol=0.0, atol=1e-4)
