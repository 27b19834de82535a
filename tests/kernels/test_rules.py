"""Each rule of `rules.py` against its own definition, written out as a loop or as a linear solve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.kernels import (
    MLSTMOutput,
    MLSTMState,
    delta_product_attention,
    fast_weight_attention,
    implicit_write_rate,
    mlstm_attention,
    mlstm_step,
    normalised_attention,
    replay_window,
)

from .inputs import assert_close, make_inputs


def gradients(loss: Tensor, tensors: list[Tensor]) -> dict[str, Tensor]:
    return {str(i): g for i, g in enumerate(torch.autograd.grad(loss, tensors))}


def test_the_implicit_rate_solves_the_proximal_problem() -> None:
    """S = argmin |S - S0|^2 + b |S k - v|^2, whose normal equations are S (I + b k k^T) = S0 + b v k^T."""
    inputs = make_inputs(1, 1, 1, decay=None, reset_rate=0.0)
    key, rate = 3 * inputs.key, 5 * inputs.write_rate
    result = fast_weight_attention(
        inputs.query, key, inputs.value, implicit_write_rate(rate, key), initial_state=inputs.weights
    )
    k, v, b, start = key.flatten(), inputs.value.flatten(), rate.item(), inputs.weights[0, 0]
    left = torch.eye(8, dtype=torch.float64) + b * torch.outer(k, k)
    expected = torch.linalg.solve(left, start + b * torch.outer(v, k), left=False)
    assert torch.allclose(result.state[0, 0], expected, rtol=1e-12)


def test_the_implicit_step_is_stable_for_keys_of_any_length() -> None:
    key = 100 * torch.randn(1, 200, 1, 8, generator=torch.Generator().manual_seed(0))
    value = torch.ones(1, 200, 1, 4)
    rate = implicit_write_rate(torch.full((1, 200, 1), 10.0), key)
    assert fast_weight_attention(key, key, value, rate).state.norm() < 10


def writes(lives: int = 2, length: int = 11, count: int = 3, heads: int = 2) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    key = torch.nn.functional.normalize(torch.randn(lives, length, count, heads, 6, generator=g).double(), dim=-1)
    value = torch.randn(lives, length, count, heads, 4, generator=g).double()
    rate = torch.rand(lives, length, count, heads, generator=g).double()
    return tuple(tensor.requires_grad_() for tensor in (key, value, rate))


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_delta_product_is_its_loop(implementation: str, per_channel: bool) -> None:
    key, value, rate = writes()
    g = torch.Generator().manual_seed(1)
    query = torch.randn(2, 11, 2, 6, generator=g).double().requires_grad_()
    log_decay = -torch.rand(2, 11, 2, *([6] if per_channel else []), generator=g).double()
    log_decay.requires_grad_()
    reset = torch.rand(2, 11, generator=g) < 0.3
    start = torch.randn(2, 2, 4, 6, generator=g).double().requires_grad_()

    state, outputs = start, []
    for t in range(11):
        state = state * ~reset[:, t, None, None, None]
        decay = log_decay[:, t].exp()
        state = state * (decay[:, :, None] if per_channel else decay[..., None, None])
        for r in range(3):
            error = value[:, t, r] - torch.einsum("bhvk,bhk->bhv", state, key[:, t, r])
            state = state + torch.einsum("bh,bhv,bhk->bhvk", rate[:, t, r], error, key[:, t, r])
        outputs.append(torch.einsum("bhvk,bhk->bhv", state, query[:, t]))
    expected = torch.stack(outputs, 1)

    result = delta_product_attention(query, key, value, rate, log_decay, reset, start, implementation)
    assert_close({"o": result.output, "s": result.state}, {"o": expected, "s": state}, 1e-12)
    assert result.surprise.shape == rate.shape
    tensors = [query, key, value, rate, log_decay, start]
    assert_close(
        gradients(result.output.square().sum() + result.state.sum(), tensors),
        gradients(expected.square().sum() + state.sum(), tensors),
        1e-12,
    )


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_replayed_window_is_the_loop_over_recent_pairs_of_the_same_life(window: int) -> None:
    inputs = make_inputs(length=13, decay=None, reset_rate=0.2)
    pairs = (inputs.key, inputs.value, inputs.write_rate)
    replay = replay_window(*pairs, window, inputs.reset)
    result = delta_product_attention(inputs.query, *replay[:3], reset=inputs.reset)

    expected = torch.zeros_like(inputs.value)
    for b in range(2):
        state, born = torch.zeros_like(inputs.weights[b]), 0
        for t in range(13):
            if inputs.reset[b, t]:
                state, born = torch.zeros_like(state), t
            for s in range(max(born, t - window + 1), t + 1):
                k, v, rate = (tensor[b, s] for tensor in pairs)
                error = v - torch.einsum("hvk,hk->hv", state, k)
                state = state + torch.einsum("h,hv,hk->hvk", rate, error, k)
            expected[b, t] = torch.einsum("hvk,hk->hv", state, inputs.query[b, t])
    assert torch.allclose(result.output, expected, atol=1e-12)


def test_a_window_goes_on_across_a_cut() -> None:
    inputs = make_inputs(length=13, reset_rate=0.2)
    pairs = (inputs.key, inputs.value, inputs.write_rate)
    whole = replay_window(*pairs, 4, inputs.reset)
    for cut in range(1, 13):
        first = replay_window(*(p[:, :cut] for p in pairs), 4, inputs.reset[:, :cut])
        second = replay_window(*(p[:, cut:] for p in pairs), 4, inputs.reset[:, cut:], first.tail)
        for name in ("key", "value", "write_rate"):
            joined = torch.cat([getattr(first, name), getattr(second, name)], 1)
            assert torch.equal(joined, getattr(whole, name))
        assert torch.equal(second.tail, whole.tail)


def test_normalised_attention_averages_the_values() -> None:
    inputs = make_inputs(decay=None, reset_rate=0.0)
    query, key = inputs.query.exp(), inputs.key.exp()
    result = normalised_attention(query, key, inputs.value, inputs.write_rate)
    scores = torch.einsum("bthd,bshd->bhts", query, key).tril() * inputs.write_rate.transpose(1, 2)[:, :, None]
    expected = torch.einsum("bhts,bshv->bthv", scores / scores.sum(-1, keepdim=True), inputs.value)
    assert torch.allclose(result.output, expected, rtol=1e-12)


def test_normalised_attention_reads_zero_from_an_empty_memory() -> None:
    zeros = torch.zeros(1, 3, 1, 4)
    result = normalised_attention(zeros + 1, zeros, zeros + 1, zeros[..., 0])
    assert torch.equal(result.output, zeros)


def mlstm_inputs(scale: float = 1.0) -> dict[str, Any]:
    inputs = make_inputs(length=19)
    g = torch.Generator().manual_seed(3)
    return {
        "query": inputs.query.requires_grad_(),
        "key": inputs.key.requires_grad_(),
        "value": inputs.value.requires_grad_(),
        "log_input": (scale * torch.randn(2, 19, 2, generator=g).double()).requires_grad_(),
        "log_forget": torch.nn.functional.logsigmoid(torch.randn(2, 19, 2, generator=g).double())
        .detach()
        .requires_grad_(),
        "reset": inputs.reset,
    }


def plain_mlstm(memory: Tensor, **tensors: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, without a stabiliser."""
    outputs = []
    for t in range(tensors["query"].shape[1]):
        q, k, v, i, f, reset = (
            tensors[name][:, t] for name in ("query", "key", "value", "log_input", "log_forget", "reset")
        )
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        memory = memory * ~reset[:, None, None, None] * f.exp()[..., None, None]
        memory = memory + torch.einsum("bh,bhv,bhk->bhvk", i.exp(), v, k)
        read = torch.einsum("bhvk,bhk->bhv", memory, q)
        outputs.append(read[..., :-1] / read[..., -1:].abs().clamp_min(1.0))
    return torch.stack(outputs, 1), memory


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_mlstm_is_its_definition_without_the_stabiliser(implementation: str) -> None:
    tensors = mlstm_inputs()
    start = torch.randn(2, 2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    scale = torch.tensor([[0.5, -1.0], [2.0, 0.0]], dtype=torch.float64)
    state = MLSTMState(start * (-scale).exp()[..., None, None], scale)
    result = mlstm_attention(**tensors, initial_state=state, implementation=implementation)
    memory = result.state.memory * result.state.log_scale.exp()[..., None, None]
    expected, last = plain_mlstm(start, **tensors)
    assert_close({"o": result.output, "C": memory}, {"o": expected, "C": last}, 1e-12)
    learned = [tensor for name, tensor in tensors.items() if name != "reset"] + [start]
    assert_close(
        gradients(result.output.square().sum() + memory.sin().sum(), learned),
        gradients(expected.square().sum() + last.sin().sum(), learned),
        1e-11,
    )


def test_mlstm_cut_anywhere_and_step_by_step() -> None:
    tensors = mlstm_inputs(5.0)
    whole = mlstm_attention(**tensors)
    for cut in (1, 7, 18):
        first = mlstm_attention(**{name: tensor[:, :cut] for name, tensor in tensors.items()})
        second = mlstm_attention(
            **{name: tensor[:, cut:] for name, tensor in tensors.items()}, initial_state=first.state
        )
        assert_close({"o": torch.cat([first.output, second.output], 1)}, {"o": whole.output}, 1e-12)
    state, outputs = None, []
    for t in range(19):
        result: MLSTMOutput = mlstm_step(**{name: tensor[:, t] for name, tensor in tensors.items()}, state=state)
        state = result.state
        outputs.append(result.output)
    assert_close({"o": torch.stack(outputs, 1), "C": state.memory}, {"o": whole.output, "C": whole.state.memory}, 1e-12)


def test_mlstm_survives_gates_that_no_float_can_hold() -> None:
    tensors = {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in mlstm_inputs(300.0).items()
    }
    tensors = {name: tensor.detach().requires_grad_(tensor.is_floating_point()) for name, tensor in tensors.items()}
    tensors["query"].data[:, 3] = 0.0
    result = mlstm_attention(**tensors)
    learned = [tensor for tensor in tensors.values() if tensor.requires_grad]
    assert torch.isfinite(result.output).all()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(result.output.sum(), learned))


_PAIRS, _SCALARS, _WRITES = torch.zeros(2, 11, 2, 6), torch.zeros(2, 11, 2), torch.zeros(2, 11, 3, 2, 6)
_FLAGS = torch.zeros(2, 11, dtype=torch.bool)


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        ("product", {"key": _PAIRS}, r"key must be a tensor \[B, T, R, H, Dk\], got \[2, 11, 2, 6\]"),
        ("product", {"value": None}, r"value must be a tensor \[B, T, R, H, Dv\], got None"),
        ("product", {"value": _WRITES[:, :, 1:]}, r"value must be .* \[2, 11, 3, 2, 6\], got \[2, 11, 2, 2, 6\]"),
        ("product", {"query": _PAIRS[:, :, :1]}, r"query must be .* \[2, 11, 2, 6\], got \[2, 11, 1, 6\]"),
        ("product", {"log_decay": _FLAGS}, r"log_decay must be .* \[2, 11, 2\], got \[2, 11\]"),
        ("replay", {"window": 0}, r"window must be >= 1, got 0"),
        ("replay", {"tail": torch.zeros(2, 2, 2, 13)}, r"tail must be .* \[2, 1, 2, 13\]"),
        ("replay", {"value": _PAIRS[:, 1:]}, r"value must be .* \[2, 11, 2, 6\], got \[2, 10, 2, 6\]"),
        ("replay", {"reset": _FLAGS.float()}, r"reset must be a bool tensor of shape \[2, 11\], got .*float32"),
        ("mlstm", {"log_input": _FLAGS}, r"log_input must be .* \[2, 11, 2\], got \[2, 11\]"),
        ("mlstm", {"query": _PAIRS[:, 0]}, r"query must be a tensor \[B, T, H, D\], got \[2, 2, 6\]"),
        ("mlstm", {"initial_state": _PAIRS}, r"initial_state must be MLSTMState\(memory, log_scale\)"),
        ("normalised", {"epsilon": 0.0}, r"epsilon must be > 0, got 0.0"),
    ],
)
def test_what_does_not_fit_is_named(rule: str, changes: dict[str, Any], message: str) -> None:
    pairs = {"key": _PAIRS, "value": _PAIRS, "write_rate": _SCALARS}
    writes = {"key": _WRITES, "value": _WRITES, "write_rate": _WRITES[..., 0]}
    gates = {"log_input": _SCALARS, "log_forget": _SCALARS}
    function, arguments = {
        "product": (delta_product_attention, {"query": _PAIRS} | writes),
        "replay": (replay_window, pairs | {"window": 2}),
        "mlstm": (mlstm_attention, {"query": _PAIRS, "key": _PAIRS, "value": _PAIRS} | gates),
        "normalised": (normalised_attention, {"query": _PAIRS} | pairs),
    }[rule]
    function(**arguments)
    with pytest.raises(ValueError, match=message):
        function(**(arguments | changes))
