"""The native kernels under torch.compile, torch.func, autocast and fake tensors."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lifelong.kernels import MomentumState, fast_weight_attention, fast_weight_step, native
from lifelong.kernels.native import available

from .inputs import Inputs, assert_close, make_inputs

pytestmark = pytest.mark.skipif(not available(), reason="no usable C compiler")

FULL: dict[str, Any] = {"decay": "channel", "erase_key": True, "learned_reset": True, "erase": [True, False]}


def loss_of(tensors: dict[str, Tensor], inputs: Inputs) -> Tensor:
    """A scalar of everything that a call returns, as a function of its floating-point arguments."""
    arguments = inputs.keywords() | {name: t for name, t in tensors.items() if name not in ("weights", "running")}
    state = MomentumState(tensors["weights"], tensors["running"]) if "running" in tensors else tensors["weights"]
    result = fast_weight_attention(initial_state=state, implementation="native", **arguments)
    states = result.state if isinstance(result.state, MomentumState) else (result.state,)
    return result.output.square().sum() + result.surprise.sum() + sum(state.sin().sum() for state in states)


EVERY = pytest.mark.parametrize(
    "options", [{}, FULL, FULL | {"momentum": True}], ids=["gated delta", "everything", "everything with momentum"]
)


@EVERY
def test_the_operators_pass_the_checks_of_torch_library(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(2, 5, 2, 8, 6, **options).to(torch.float32)
    calls: list[tuple[Any, ...]] = []
    original = native.operator_inputs
    monkeypatch.setattr(native, "operator_inputs", lambda call: calls.append(original(call)) or calls[-1])
    inputs.run("native")
    (arguments,) = calls
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.lifelong_native.forward.default, arguments, test_utils=checks)
    output, final, running, surprise, errors = torch.ops.lifelong_native.forward(*arguments)
    saved = (final, running, surprise, errors)
    d_running = torch.ones_like(running) if running.numel() else None
    gradients = (torch.ones_like(output), torch.ones_like(final), d_running, None)
    operator = torch.ops.lifelong_native.backward.default
    torch.library.opcheck(operator, (*arguments, *saved, *gradients), test_utils=checks)


@EVERY
def test_compiled_without_graph_breaks_it_gives_the_same_numbers(options: dict[str, Any]) -> None:
    inputs = make_inputs(2, 9, 2, 8, 6, **options)

    def run(tensors: dict[str, Tensor]) -> Tensor:
        return loss_of(tensors, inputs)

    found = []
    for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        attached = {name: tensor.clone().requires_grad_() for name, tensor in inputs.floating().items()}
        function(attached).backward()
        found.append({name: tensor.grad for name, tensor in attached.items()})
    assert_close(found[1], found[0], 1e-12)


def test_a_compiled_step_in_place_changes_the_state() -> None:
    inputs = make_inputs(2, 1, 2, 8, 6, reset_rate=0.0)
    token = {name: value[:, 0] for name, value in inputs.keywords().items() if isinstance(value, Tensor)}

    def run(state: Tensor) -> Tensor:
        return fast_weight_step(state=state, implementation="native", in_place=True, **token).output

    eager, compiled = inputs.weights.clone(), inputs.weights.clone()
    with torch.no_grad():
        expected = run(eager)
        output = torch.compile(run, fullgraph=True, backend="aot_eager")(compiled)
    assert torch.equal(output, expected)
    assert torch.equal(compiled, eager)


@EVERY
@pytest.mark.parametrize("mapped", ["all", "query", "reset_state"])
def test_vmap_of_grad_is_the_loop_over_grads(options: dict[str, Any], mapped: str) -> None:
    if mapped == "reset_state" and not options:
        pytest.skip("there is no reset state to map over")
    inputs = make_inputs(2, 6, 2, 5, 4, **options)
    tensors = inputs.floating()
    names = list(tensors) if mapped == "all" else [mapped]
    stacked = {name: torch.stack([tensors[name] * scale for scale in (1.0, 0.8, 0.6)]) for name in names}
    rest = {name: tensor for name, tensor in tensors.items() if name not in names}

    def loss(part: dict[str, Tensor], rest: dict[str, Tensor]) -> Tensor:
        return loss_of(part | rest, inputs)

    gradient = torch.func.grad(loss, argnums=(0, 1))
    found = torch.func.vmap(gradient, in_dims=(0, None))(stacked, rest)
    for index in range(3):
        expected = gradient({name: tensor[index] for name, tensor in stacked.items()}, rest)
        for actual, one in zip(found, expected, strict=True):
            assert_close({name: tensor[index] for name, tensor in actual.items()}, one, 1e-12)


def test_gradients_flow_through_a_vmap() -> None:
    inputs = make_inputs(2, 6, 2, 5, 4)
    values = torch.stack([inputs.value, 2 * inputs.value], 1).requires_grad_()
    torch.func.vmap(lambda value: loss_of(inputs.floating() | {"value": value}, inputs), in_dims=1)(
        values
    ).sum().backward()
    for index, scale in enumerate((1, 2)):
        value = (scale * inputs.value).requires_grad_()
        loss_of(inputs.floating() | {"value": value}, inputs).backward()
        assert_close({"value": values.grad[:, index]}, {"value": value.grad}, 1e-12)


def test_autocast_computes_in_single_precision() -> None:
    inputs = make_inputs(2, 6, 2, 8, 8).to(torch.float32).with_gradients()
    expected = loss_of(inputs.floating(), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = loss_of(inputs.floating(), inputs)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_forward_mode_is_refused_and_not_silently_zero() -> None:
    inputs = make_inputs(1, 4, 1, 4, 4)
    tensors = inputs.floating()

    def of_value(value: Tensor) -> Tensor:
        return loss_of(tensors | {"value": value}, inputs)

    with pytest.raises(NotImplementedError), torch.no_grad():
        torch.func.jvp(of_value, (inputs.value,), (torch.ones_like(inputs.value),))
    with pytest.raises(NotImplementedError), torch.autograd.forward_ad.dual_level(), torch.no_grad():
        of_value(torch.autograd.forward_ad.make_dual(inputs.value, torch.ones_like(inputs.value)))


def test_without_gradients_it_compiles_as_with_them() -> None:
    inputs = make_inputs(2, 5, 2, 5, 4)
    token = {name: value[:, 0] for name, value in inputs.keywords().items() if isinstance(value, Tensor)}

    def run(key: Tensor) -> Tensor:
        step = fast_weight_step(state=inputs.weights, implementation="native", **(token | {"key": key[:, 0]}))
        return loss_of(inputs.floating() | {"key": key}, inputs) + step.output.sum()

    expected = run(inputs.key)
    assert torch.compile(run, fullgraph=True, backend="aot_eager")(inputs.key) == expected
    with torch.no_grad():
        assert torch.compile(run, fullgraph=True, backend="aot_eager")(inputs.key) == expected


def test_a_transform_inside_of_a_compiled_function_is_refused_and_not_silently_wrong() -> None:
    inputs = make_inputs(2, 5, 2, 5, 4)

    def loss(key: Tensor) -> Tensor:
        return loss_of(inputs.floating() | {"key": key}, inputs)

    def gradient(key: Tensor) -> Tensor:
        return torch.func.grad(loss)(key)

    def tangent(key: Tensor) -> Tensor:
        return torch.func.jvp(loss, (key,), (key,))[1]

    for transform in (gradient, tangent):
        with pytest.raises(Exception, match=r"lifelong_native|forward-mode"):
            torch.compile(transform, fullgraph=True, backend="aot_eager")(inputs.key)


def test_fake_tensors_get_shapes_without_memory() -> None:
    with FakeTensorMode() as mode:
        inputs = make_inputs(1, 2, 1, 4, 4)._map(mode.from_tensor)
        wide = torch.empty(4096, 512, 8, 128)
        rate = torch.empty(4096, 512, 8)
        result = fast_weight_attention(wide, wide, wide, rate, implementation="native")
    assert result.output.shape == (4096, 512, 8, 128)
    assert result.state.shape == (4096, 8, 128, 128)
    assert result.surprise.shape == (4096, 512, 8)
    assert inputs.length == 2


def test_a_call_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs = make_inputs(1, 4, 1, 4, 4).with_gradients()
        loss_of(inputs.floating(), inputs).backward()
