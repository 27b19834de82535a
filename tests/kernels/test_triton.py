"""The Triton kernels, interpreted on the CPU, against the float64 reference: values and every gradient."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.kernels import FastWeightOutput, fast_weight_attention, fast_weight_step, huber

from .inputs import Inputs, assert_close, flatten, gradients, make_inputs

pytest.importorskip("triton", reason="the package triton is not installed")

from lifelong.kernels import (
    triton_attention,
    triton_chunk_gradients,
    triton_chunk_matrices,
    triton_chunk_walks,
    triton_chunked,
    triton_common,
    triton_recurrent,
    triton_step,
)

from .triton_interpreter import interpreter

KERNEL_MODULES = (
    triton_chunk_gradients,
    triton_chunk_matrices,
    triton_chunk_walks,
    triton_chunked,
    triton_common,
    triton_recurrent,
    triton_step,
)

FLOAT32 = 5e-6

EVERYWHERE: dict[str, dict[str, Any]] = {
    "gated delta": {},
    "delta, no reset": {"decay": None, "reset_rate": 0.0},
    "delta": {"decay": None},
    "write rates above one": {"rate": 1.9},
    "write rates of zero": {"rate": 0.0},
    "hebbian with decay": {"erase": False},
    "mixed heads": {"erase": [True, False]},
    "separate erase key, mixed heads": {"erase_key": True, "erase": [False, True]},
}
LOOP_ONLY: dict[str, dict[str, Any]] = {
    "comba": {"erase_key": True, "error_before_decay": True},
    "learned reset": {"learned_reset": True},
    "all at once": {"learned_reset": True, "erase_key": True, "error_before_decay": True, "erase": [True, False]},
}
# Two edges of chunks and a ragged end; for the loop, which has no such thing, fewer steps are as good.
LENGTH = {"recurrent": 7, "chunked": 37}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(triton_attention, "refusal", triton_attention.unsupported)
    with interpreter(*KERNEL_MODULES):
        yield


@pytest.fixture(params=["recurrent", "chunked"])
def algorithm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(triton_attention, "algorithm", lambda call: request.param)
    return str(request.param)


def reference(inputs: Inputs) -> FastWeightOutput:
    return inputs.to(torch.float64).run("reference")


def triton(inputs: Inputs) -> FastWeightOutput:
    return inputs.run("triton")


def check(inputs: Inputs, tolerance: float = FLOAT32) -> None:
    single = inputs.to(torch.float32)
    # Both are given the numbers that float32 can hold.
    assert_close(flatten(triton(single)), flatten(reference(single)), tolerance)
    assert_close(gradients(single, triton), gradients(single.to(torch.float64), reference), tolerance)


@pytest.mark.parametrize("rule", EVERYWHERE)
def test_equals_the_reference_for(rule: str, algorithm: str) -> None:
    check(make_inputs(length=LENGTH[algorithm], lives=1 if algorithm == "recurrent" else 2, **EVERYWHERE[rule]))


@pytest.mark.parametrize("rule", LOOP_ONLY)
def test_the_loop_equals_the_reference_for(rule: str) -> None:
    check(make_inputs(length=7, reset_rate=0.3, **LOOP_ONLY[rule]))


@pytest.mark.parametrize(("key_width", "value_width"), [(3, 40), (20, 17), (1, 1)])
def test_widths_need_not_be_powers_of_two_nor_equal(key_width: int, value_width: int, algorithm: str) -> None:
    inputs = make_inputs(lives=1, length=LENGTH[algorithm] // 2, key_width=key_width, value_width=value_width)
    check(inputs)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64])
def test_chunks_take_any_length(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_attention, "algorithm", lambda call: "chunked")
    check(make_inputs(length=length, lives=1))


@pytest.mark.parametrize("step", [0, 1, 15, 16, 17, 31, 32])
def test_a_reset_at_any_place_of_a_chunk_drops_the_past_from_values_and_gradients(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_attention, "algorithm", lambda call: "chunked")
    inputs = make_inputs(length=33, lives=1, heads=1)
    reset = torch.zeros(1, 33, dtype=torch.bool)
    reset[:, step] = True
    inputs = replace(inputs, reset=reset)
    check(inputs)
    assert_no_gradient_crosses(inputs.to(torch.float32), step)


def test_no_gradient_crosses_a_reset(algorithm: str) -> None:
    inputs = make_inputs(length=7, lives=1, heads=1).to(torch.float32)
    inputs = replace(inputs, reset=torch.tensor([[False, False, True, False, True, False, False]]))
    assert_no_gradient_crosses(inputs, 4)


def assert_no_gradient_crosses(inputs: Inputs, step: int) -> None:
    """What is returned after a reset has a gradient of exactly zero in all that came before."""
    leaves = inputs.with_gradients()
    output, state, surprise = triton(leaves)
    loss = output[:, step:].square().sum() + state.square().sum() + surprise[:, step:].sum()
    loss.backward()
    assert not leaves.weights.grad.any()
    for name in ("query", "key", "value", "write_rate", "log_decay"):
        gradient = getattr(leaves, name).grad
        assert not gradient[:, :step].any(), name
        assert gradient[:, step:].any() or name == "log_decay", name
    # The decay of the step that resets has nothing left to shrink.
    assert not leaves.log_decay.grad[:, step].any()
    assert leaves.log_decay.grad[:, step + 1 :].any() or step == inputs.length - 1


def test_resets_at_every_step(algorithm: str) -> None:
    check(make_inputs(length=5, lives=1, reset_rate=1.1))


def test_a_reset_drops_even_a_memory_that_overflowed() -> None:
    inputs = make_inputs(length=5, lives=1).to(torch.float32)
    inputs.reset[:] = torch.tensor([True, False, False, False, False])
    expected = triton(inputs)
    inputs.weights[:] = torch.inf
    assert_close(flatten(triton(inputs)), flatten(expected), 0.0)


@pytest.mark.parametrize("keys", ["alike", "same"])
@pytest.mark.parametrize("rate", [1.0, 1.9])
def test_keys_that_are_alike_cost_few_digits(keys: str, rate: float, algorithm: str) -> None:
    length = 16 if algorithm == "recurrent" else 48
    check(make_inputs(lives=1, length=length, decay=None, reset_rate=0.0, keys=keys, rate=rate), 1e-4)


def test_strong_decays_leave_the_weak_ones_their_digits(algorithm: str) -> None:
    inputs = make_inputs(length=LENGTH[algorithm], lives=1).to(torch.float32)
    inputs.log_decay[:, 2] = -1000.0
    assert_close(flatten(triton(inputs)), flatten(reference(inputs)), FLOAT32)
    actual = gradients(inputs, triton)
    expected = gradients(inputs.to(torch.float64), reference)
    torch.testing.assert_close(actual.pop("log_decay").double(), expected.pop("log_decay"), rtol=0.0, atol=2e-5)
    assert_close(actual, expected, FLOAT32)


@pytest.mark.parametrize("returned", ["output", "state", "surprise"])
def test_a_loss_may_reach_any_one_result(returned: str, algorithm: str) -> None:
    def only(run: Any) -> Any:
        return lambda inputs: FastWeightOutput(*(3 * (getattr(run(inputs), returned),)))

    inputs = make_inputs(length=LENGTH[algorithm] // 2, lives=1).to(torch.float32)
    assert_close(gradients(inputs, only(triton)), gradients(inputs.to(torch.float64), only(reference)), FLOAT32)


@pytest.mark.parametrize("cut", [1, 15, 16, 20])
def test_a_sequence_cut_anywhere_gives_the_same_values_and_gradients(cut: int, algorithm: str) -> None:
    length = 12 if algorithm == "recurrent" else 37
    cut = min(cut, length - 1)

    def in_two(inputs: Inputs) -> FastWeightOutput:
        first = triton(inputs.between(0, cut, inputs.state()))
        second = triton(inputs.between(cut, inputs.length, first.state))
        joined = (torch.cat([first.output, second.output], 1), torch.cat([first.surprise, second.surprise], 1))
        return FastWeightOutput(joined[0], second.state, joined[1])

    inputs = make_inputs(length=length, lives=1, heads=1).to(torch.float32)
    assert_close(flatten(in_two(inputs)), flatten(reference(inputs)), FLOAT32)
    assert_close(gradients(inputs, in_two), gradients(inputs.to(torch.float64), reference), FLOAT32)


def test_every_element_of_what_is_returned_is_written(algorithm: str) -> None:
    """New memory is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(3).isnan().all()
        check(make_inputs(length=LENGTH[algorithm] // 2, lives=1, erase=[True, False], erase_key=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_half_precision_inputs_are_computed_with_in_float32(algorithm: str) -> None:
    """The interpreter knows float16 but not bfloat16."""
    inputs = make_inputs(length=LENGTH[algorithm] // 2, lives=1).to(torch.float32)
    half = replace(inputs, **{name: getattr(inputs, name).half() for name in ("query", "key", "value")})
    result, expected = flatten(triton(half)), flatten(reference(half))
    assert result["output"].dtype == torch.float16
    assert_close({"output": result.pop("output")}, {"output": expected.pop("output")}, 1e-3)
    assert_close(result, expected, FLOAT32)
    actual = gradients(half, lambda given: triton(given)._replace(output=triton(given).surprise))
    exact = gradients(half.to(torch.float64), lambda given: reference(given)._replace(output=reference(given).surprise))
    assert actual["key"].dtype == torch.float16
    assert_close(actual, exact, 1e-3)


@pytest.mark.parametrize("rule", EVERYWHERE | LOOP_ONLY)
def test_steps_equal_the_reference_for(rule: str) -> None:
    inputs = make_inputs(length=3, **{"reset_rate": 0.4, **(EVERYWHERE | LOOP_ONLY)[rule]}).to(torch.float32)
    assert_close(flatten(inputs.fold("triton")), flatten(reference(inputs)), FLOAT32)


def test_steps_have_the_gradients_of_the_sequence() -> None:
    inputs = make_inputs(length=3, lives=1, reset_rate=0.3).to(torch.float32)
    exact = gradients(inputs.to(torch.float64), reference)
    assert_close(gradients(inputs, lambda given: given.fold("triton")), exact, FLOAT32)


def test_a_step_in_place_overwrites_the_state_that_it_was_given() -> None:
    inputs = make_inputs(length=1, reset_rate=0.0).to(torch.float32)
    state = inputs.weights.clone()
    token = {name: getattr(inputs, name)[:, 0] for name in ("query", "key", "value", "write_rate", "log_decay")}
    result = fast_weight_step(state=state, implementation="triton", in_place=True, **token)
    assert result.state is state
    assert_close({"state": state}, {"state": reference(inputs).state}, FLOAT32)


def test_the_step_operator_overwrites_a_state_in_any_memory_order() -> None:
    inputs = make_inputs(length=1, reset_rate=0.0).to(torch.float32)
    state = inputs.weights.mT.contiguous().mT
    token = [tensor[:, 0] for tensor in tensors_of(inputs)[:4]]
    torch.ops.lifelong_triton.step_(*token, state, inputs.log_decay[:, 0], None, None, None, None, True, False)
    assert_close({"state": state}, {"state": reference(inputs).state}, FLOAT32)


def test_a_step_leaves_the_state_alone_unless_told_otherwise() -> None:
    inputs = make_inputs(length=1).to(torch.float32)
    before = inputs.weights.clone()
    inputs.fold("triton")
    assert torch.equal(inputs.weights, before)


def test_arguments_may_lie_in_memory_in_any_order(algorithm: str) -> None:
    inputs = make_inputs(length=LENGTH[algorithm] // 2, lives=2).to(torch.float32)
    scattered = inputs._map(lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1))
    assert not scattered.query.is_contiguous()
    assert_close(flatten(triton(scattered)), flatten(reference(inputs)), FLOAT32)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"momentum": True}, "no momentum"),
        ({"decay": "channel"}, "one log_decay a head"),
        ({"error_function": huber(1.0)}, 'not "huber"'),
        ({"key_width": 129}, "129 wide"),
    ],
)
def test_what_cannot_be_served_is_refused_in_plain_words(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f'"triton" cannot serve this call: .*{reason}'):
        make_inputs(**options).to(torch.float32).run("triton")


def test_float64_is_refused() -> None:
    with pytest.raises(ValueError, match=r"compute in float32, and the call asks for torch\.float64"):
        make_inputs().run("triton")


def test_tensors_on_the_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ValueError, match="run on a GPU, and query is on cpu"):
        make_inputs().to(torch.float32).run("triton")


def test_the_module_imports_without_triton() -> None:
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)\n"
        "import lifelong.kernels.triton_attention as module\n"
        "assert not module.installed()\n"
        "assert 'lifelong.kernels.triton_common' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("length", "width", "options", "expected"),
    [
        (64, 64, {}, "recurrent"),
        (65, 64, {}, "chunked"),
        (65, 33, {}, "chunked"),
        (65, 32, {}, "recurrent"),
        (65, 65, {}, "recurrent"),
        (65, 64, {"learned_reset": True}, "recurrent"),
        (65, 64, {"error_before_decay": True}, "recurrent"),
    ],
)
def test_the_rule_that_chooses_between_loop_and_chunks(
    length: int, width: int, options: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(triton_attention, "run", lambda call, algorithm: chosen.append(algorithm))
    make_inputs(length=length, key_width=8, value_width=width, **options).to(torch.float32).run("triton")
    assert chosen == [expected]


def loss_of(implementation: str) -> Callable[..., Tensor]:
    """A plain gated delta call as a function of its tensors, which functional transforms want."""

    def loss(query: Tensor, key: Tensor, value: Tensor, rate: Tensor, decay: Tensor, weights: Tensor) -> Tensor:
        result = fast_weight_attention(
            query, key, value, rate, decay, initial_state=weights, implementation=implementation
        )
        return result.output.square().sum() + result.state.square().sum() + result.surprise.sum()

    return loss


def tensors_of(inputs: Inputs) -> tuple[Any, ...]:
    return (inputs.query, inputs.key, inputs.value, inputs.write_rate, inputs.log_decay, inputs.weights)


def test_gradients_are_mapped_over_stacked_calls(algorithm: str) -> None:
    models = [tensors_of(make_inputs(length=5, lives=1, seed=seed).to(torch.float32)) for seed in (0, 1)]
    query, key, value, rate, decay, weights = (torch.stack(tensors) for tensors in zip(*models, strict=True))
    # The weights are shared: an argument that is not mapped.
    shared = weights[0]
    gradient = torch.func.grad(loss_of("triton"), argnums=(0, 1, 2, 3, 4, 5))
    mapped = torch.func.vmap(gradient, in_dims=(0, 0, 0, 0, 0, None))(query, key, value, rate, decay, shared)
    for index, model in enumerate(models):
        tensors = [tensor.double() for tensor in (*model[:5], shared)]
        exact = torch.func.grad(loss_of("reference"), argnums=(0, 1, 2, 3, 4, 5))(*tensors)
        named = {str(argument): gradient[index] for argument, gradient in enumerate(mapped)}
        assert_close(named, {str(argument): gradient for argument, gradient in enumerate(exact)}, FLOAT32)


def test_second_derivatives_and_forward_mode_raise() -> None:
    tensors = [tensor.requires_grad_() for tensor in tensors_of(make_inputs(length=2, lives=1).to(torch.float32))]
    first = torch.autograd.grad(loss_of("triton")(*tensors), tensors, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first[1].square().sum(), tensors[1])
    with pytest.raises(NotImplementedError):
        torch.func.jvp(loss_of("triton"), tuple(tensors), tuple(torch.ones_like(tensor) for tensor in tensors))


def test_torch_compile_takes_the_call_whole() -> None:
    inputs = make_inputs(length=3, lives=1).to(torch.float32)
    tensors = [tensor.requires_grad_() for tensor in tensors_of(inputs)]
    compiled = torch.compile(loss_of("triton"), backend="aot_eager", fullgraph=True)
    actual = torch.autograd.grad(compiled(*tensors), tensors)
    expected = torch.autograd.grad(loss_of("triton")(*tensors), tensors)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("keep_errors", [True, False])
def test_the_operators_keep_the_promises_that_compilers_rely_on(keep_errors: bool, algorithm: str) -> None:
    inputs = make_inputs(length=3, lives=1, erase_key=True).to(torch.float32)
    call = (*tensors_of(inputs)[:4], inputs.weights, inputs.log_decay, inputs.erase_key, None, inputs.reset, None)
    call = (*call, True, False)
    operators = torch.ops.lifelong_triton
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(operators.forward.default, (*call, algorithm, keep_errors), test_utils=tests)
    if keep_errors:
        made = operators.forward(*call, algorithm, True)
        backward = (*call, algorithm, *made, made[0], None, made[2])
        torch.library.opcheck(operators.backward.default, backward, test_utils=tests)
    else:
        token = tuple(x[:, 0] if isinstance(x, Tensor) and x is not inputs.weights else x for x in call)
        torch.library.opcheck(operators.step_.default, token, test_utils=tests)


def test_a_backward_pass_without_the_errors_raises(algorithm: str) -> None:
    inputs = make_inputs(length=3, lives=1).to(torch.float32)
    call = (*tensors_of(inputs)[:4], inputs.weights, inputs.log_decay, None, None, None, None, True, False, algorithm)
    made = torch.ops.lifelong_triton.forward(*call, False)
    with pytest.raises(RuntimeError, match="no gradient was needed"):
        torch.ops.lifelong_triton.backward(*call, *made, made[0], None, None)
