"""The native kernels equal the reference, in values and in every gradient, and to the last bit equal themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lifelong.kernels import FastWeightOutput, MomentumState, fast_weight_attention, fast_weight_step, huber, power
from lifelong.kernels.native import available

from .inputs import Inputs, assert_close, flatten, gradients, make_inputs

pytestmark = pytest.mark.skipif(not available(), reason="no usable C compiler")

RULES: dict[str, dict[str, Any]] = {
    "delta": {"decay": None},
    "delta, no reset": {"decay": None, "reset_rate": 0.0},
    "gated delta": {},
    "write rates above one": {"rate": 1.9},
    "write rates of zero": {"rate": 0.0},
    "decay per channel": {"decay": "channel"},
    "hebbian": {"decay": None, "erase": False},
    "hebbian with decay": {"erase": False},
    "gated linear attention": {"decay": "channel", "erase": False},
    "mixed heads": {"erase": [True, False]},
    "separate erase key": {"erase_key": True},
    "comba": {"erase_key": True, "error_before_decay": True},
    "comba, decay per channel": {"decay": "channel", "erase_key": True, "error_before_decay": True},
    "learned reset": {"learned_reset": True},
    "learned reset, decay per channel, mixed heads": {
        "decay": "channel",
        "erase_key": True,
        "learned_reset": True,
        "erase": [True, False],
    },
    "comba, learned reset, mixed heads": {
        "erase_key": True,
        "error_before_decay": True,
        "learned_reset": True,
        "erase": [True, False],
    },
    "huber": {"error_function": huber(1.5)},
    "huber, mixed heads, learned reset": {
        "error_function": huber(1.5),
        "erase": [False, True],
        "learned_reset": True,
    },
    "momentum": {"momentum": True},
    "momentum, no decay, no reset": {"momentum": True, "decay": None, "reset_rate": 0.0},
    "momentum, error after decay, learned reset, mixed heads": {
        "momentum": True,
        "error_before_decay": False,
        "learned_reset": True,
        "erase": [False, True],
    },
    "momentum, decay per channel, separate erase key": {"momentum": True, "decay": "channel", "erase_key": True},
    "momentum, huber": {"momentum": True, "error_function": huber(1.5), "learned_reset": True},
    "power": {"error_function": power(3.0), "decay": "channel"},
}


def reference(inputs: Inputs) -> FastWeightOutput:
    return inputs.run("reference")


def native(inputs: Inputs) -> FastWeightOutput:
    return inputs.run("native")


def check(inputs: Inputs, tolerance: float = 1e-12) -> None:
    assert_close(flatten(native(inputs)), flatten(reference(inputs)), tolerance)
    assert_close(gradients(inputs, native), gradients(inputs, reference), tolerance)


def check_single(inputs: Inputs, tolerance: float) -> None:
    """float32 against the reference in float64, on the same float32 numbers."""
    single = inputs.to(torch.float32)
    double = single.to(torch.float64)
    assert_close(flatten(native(single)), flatten(reference(double)), tolerance)
    assert_close(gradients(single, native), gradients(double, reference), tolerance)


def assert_identical(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 2, 19])
def test_every_rule_equals_the_reference(rule: str, length: int) -> None:
    check(make_inputs(length=length, **RULES[rule]))


@pytest.mark.parametrize("rule", [name for name in RULES if name != "power"])
def test_every_rule_in_single_precision(rule: str) -> None:
    check_single(make_inputs(3, 40, 2, 16, 24, **RULES[rule]), 5e-6)


@pytest.mark.parametrize(
    ("key_width", "value_width"),
    [(1, 1), (3, 2), (8, 8), (16, 16), (17, 31), (24, 40), (32, 32), (48, 33), (64, 64), (128, 128), (20, 130)],
)
@pytest.mark.parametrize("decay", ["scalar", "channel"])
def test_every_width_of_head(key_width: int, value_width: int, decay: str) -> None:
    inputs = make_inputs(1, 9, 2, key_width, value_width, decay=decay)
    check(inputs)
    check_single(inputs, 5e-6)


@pytest.mark.parametrize("keys", ["alike", "same"])
@pytest.mark.parametrize("rate", [0.95, 1.9])
def test_correlated_keys_stay_accurate_in_single_precision(keys: str, rate: float) -> None:
    check_single(make_inputs(2, 128, 2, 32, 32, keys=keys, rate=rate, decay=None, reset_rate=1 / 32), 1e-4)


@pytest.mark.parametrize("log_decay", [-4.0, -16.0, -50.0, -200.0])
def test_decay_gradients_under_strong_decay_have_small_absolute_errors(log_decay: float) -> None:
    inputs = make_inputs(2, 32, 2, 16, 16).to(torch.float32)
    inputs = replace(inputs, log_decay=torch.full_like(inputs.write_rate, log_decay))
    found = gradients(inputs, native)["log_decay"].double()
    expected = gradients(inputs.to(torch.float64), reference)["log_decay"]
    assert (found - expected).abs().max() < 2e-5


@settings(max_examples=40, deadline=None)
@given(
    lives=st.integers(1, 3),
    length=st.integers(1, 24),
    heads=st.integers(1, 3),
    key_width=st.integers(1, 40),
    value_width=st.integers(1, 40),
    decay=st.sampled_from([None, "scalar", "channel"]),
    erase_key=st.booleans(),
    learned_reset=st.booleans(),
    reset_rate=st.sampled_from([0.0, 0.2, 1.0]),
    error_before_decay=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_any_resets(seed: int, **shape: Any) -> None:
    check(make_inputs(seed=seed, **shape), 1e-11)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fold_of_steps_is_the_sequence_to_the_last_bit(rule: str, dtype: torch.dtype) -> None:
    for width in (8, 32, 41):
        inputs = make_inputs(2, 12, 2, width, 24, **RULES[rule]).to(dtype)
        with torch.no_grad():
            assert_identical(flatten(inputs.fold("native")), flatten(native(inputs)))


@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_the_fold_of_steps_are_those_of_the_sequence(rule: str) -> None:
    inputs = make_inputs(length=9, **RULES[rule])
    assert_close(gradients(inputs, lambda i: i.fold("native")), gradients(inputs, native), 1e-12)


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 29), seed=st.integers(0, 2**16), decay=st.sampled_from([None, "scalar", "channel"]))
def test_a_sequence_can_be_cut_anywhere(cut: int, seed: int, decay: str | None) -> None:
    inputs = make_inputs(2, 30, 2, 16, 12, decay=decay, seed=seed)

    def in_two(whole: Inputs) -> FastWeightOutput:
        first = native(whole.between(0, cut, whole.state()))
        second = native(whole.between(cut, 30, first.state))
        joined = (torch.cat([a, b], 1) for a, b in ((first.output, second.output), (first.surprise, second.surprise)))
        output, surprise = joined
        return FastWeightOutput(output, second.state, surprise)

    single = inputs.to(torch.float32)
    assert_identical(flatten(in_two(single)), flatten(native(single)))
    assert_close(gradients(inputs, in_two), gradients(inputs, native), 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_no_gradient_crosses_a_reset(rule: str) -> None:
    inputs = make_inputs(2, 12, 2, **RULES[rule])
    inputs = replace(inputs, reset=torch.arange(12).expand(2, 12) == 7).with_gradients()
    result = native(inputs)
    loss = result.output[:, 7:].sum() + result.surprise[:, 7:].sum()
    loss = loss + sum(state.square().sum() for name, state in flatten(result).items() if name in ("weights", "running"))
    loss.backward()
    for name, tensor in inputs.floating().items():
        if name in ("weights", "running"):
            assert tensor.grad is not None
            assert torch.count_nonzero(tensor.grad) == 0, name
        elif name != "reset_state":
            assert tensor.grad is not None
            assert torch.count_nonzero(tensor.grad[:, :7]) == 0, name
    if inputs.log_decay is not None and inputs.reset_state is None:
        assert torch.count_nonzero(inputs.log_decay.grad[:, 7]) == 0


def test_what_a_reset_drops_may_be_infinite() -> None:
    inputs = make_inputs(1, 6, 2).to(torch.float32)
    inputs = replace(inputs, reset=torch.arange(6).expand(1, 6) == 3)
    clean = native(inputs)
    inputs.value[:, 2] = torch.inf
    dirty = native(inputs)
    assert torch.equal(dirty.output[:, 3:], clean.output[:, 3:])
    assert torch.equal(flatten(dirty)["weights"], flatten(clean)["weights"])


@pytest.mark.parametrize("rule", ["gated delta", "decay per channel"])
def test_a_life_does_not_depend_on_its_neighbours_to_the_last_bit(rule: str) -> None:
    together = make_inputs(5, 20, 3, 32, 32, **RULES[rule]).to(torch.float32)
    alone = together._map(lambda tensor: tensor[2:3])
    assert_identical(flatten(native(alone)), {name: t[2:3] for name, t in flatten(native(together)).items()})

    def squares(inputs: Inputs) -> dict[str, Tensor]:
        inputs = inputs.with_gradients()
        loss = sum(tensor.square().sum() for tensor in flatten(native(inputs)).values())
        return dict(zip(inputs.floating(), torch.autograd.grad(loss, list(inputs.floating().values())), strict=True))

    assert_identical(squares(alone), {name: grad[2:3] for name, grad in squares(together).items()})


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifelong.kernels.native_library.WORK_PER_THREAD", 1)
    inputs = make_inputs(7, 20, 3, 32, 32, learned_reset=True).to(torch.float32)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(flatten(native(inputs)) | gradients(inputs, native))
    finally:
        torch.set_num_threads(before)
    assert_identical(found[1], found[0])
    assert_identical(found[2], found[0])


def test_everything_returned_is_written() -> None:
    inputs = make_inputs(2, 9, 2, 17, 19, decay="channel", erase_key=True, learned_reset=True)
    fill, deterministic = (
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.are_deterministic_algorithms_enabled(),
    )
    try:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(True)
        found = flatten(native(inputs)) | gradients(inputs, native)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill
    assert all(torch.isfinite(tensor).all() for tensor in found.values())


def test_more_lives_and_heads_than_a_gpu_grid_axis_has() -> None:
    inputs = make_inputs(16_500, 2, 4, 2, 2)
    check(inputs)


def test_tokens_may_lie_more_than_two_to_the_31_elements_apart(tmp_path: Path) -> None:
    """Lives and steps of a file that is nearly all hole."""
    inputs = make_inputs(2, 2, 1, 4, 4, reset_rate=0.0).to(torch.float32)
    far: dict[str, Tensor] = {}
    for name, strides in {"query": (2**31, 8, 4, 1), "key": (8, 2**31, 4, 1), "value": (8, 2**31, 4, 1)}.items():
        file = torch.from_file(str(tmp_path / name), shared=True, size=2**31 + 64)
        far[name] = file.as_strided((2, 2, 1, 4), strides).copy_(getattr(inputs, name))
    assert_identical(flatten(replace(inputs, **far).run("native")), flatten(inputs.run("native")))


def test_only_some_of_the_results_may_be_used() -> None:
    inputs = make_inputs(erase_key=True)
    for name in flatten(native(inputs)):
        found = []
        for run in (native, reference):
            attached = inputs.with_gradients()
            flatten(run(attached))[name].square().sum().backward()
            found.append({key: tensor.grad for key, tensor in attached.floating().items() if tensor.grad is not None})
        left, right = found
        assert_close({key: left[key] for key in right}, right, 1e-12)


def test_tensors_may_be_slices_of_a_projection() -> None:
    inputs = make_inputs(3, 10, 2, 8, 8)
    merged = torch.stack([inputs.query, inputs.key, inputs.value], 2)  # [B, T, 3, H, D]
    query, key, value = merged.unbind(2)
    sliced = replace(inputs, query=query, key=key, value=value, write_rate=inputs.write_rate.mT.contiguous().mT)
    assert not sliced.query.is_contiguous()
    assert not sliced.write_rate.is_contiguous()
    transposed = replace(
        inputs, value=inputs.value.mT.contiguous().mT, query=inputs.query.transpose(0, 1).contiguous().transpose(0, 1)
    )
    for other in (sliced, transposed):
        assert_identical(flatten(native(other)), flatten(native(inputs)))
        assert_identical(gradients(other, native), gradients(inputs, native))


@pytest.mark.parametrize("rule", RULES)
def test_a_step_in_place_writes_over_the_state_and_agrees_with_one_out_of_place(rule: str) -> None:
    inputs = make_inputs(4, 1, 2, 24, 17, reset_rate=0.5, **{k: v for k, v in RULES[rule].items() if k != "reset_rate"})
    token = {
        name: value[:, 0] if isinstance(value, Tensor) and name not in ("reset_state", "erase") else value
        for name, value in inputs.keywords().items()
    }
    old = inputs.state()
    expected = fast_weight_step(state=old, implementation="native", **token)
    state = MomentumState(*(tensor.clone() for tensor in old)) if isinstance(old, MomentumState) else old.clone()
    tensors = state if isinstance(state, MomentumState) else (state,)
    addresses = [tensor.data_ptr() for tensor in tensors]
    found = fast_weight_step(state=state, implementation="native", in_place=True, **token)
    assert_identical(flatten(found), flatten(expected))
    returned = found.state if isinstance(found.state, MomentumState) else (found.state,)
    assert [tensor.data_ptr() for tensor in returned] == addresses


def test_a_step_in_place_is_seen_by_autograd_as_a_change() -> None:
    inputs = make_inputs(1, 1, 1, 4, 4, decay=None, reset_rate=0.0)
    state = inputs.weights
    factor = torch.ones_like(state).requires_grad_()
    loss = (factor * state).sum()
    with torch.no_grad():
        fast_weight_step(
            inputs.query[:, 0], inputs.key[:, 0], inputs.value[:, 0], inputs.write_rate[:, 0],
            state=state, in_place=True, implementation="native",
        )  # fmt: skip
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_half_precision_tokens_are_computed_in_single_precision() -> None:
    inputs = make_inputs(2, 10, 2, 16, 16).to(torch.float32)
    half = replace(inputs, query=inputs.query.bfloat16(), key=inputs.key.bfloat16(), value=inputs.value.bfloat16())
    result = native(half)
    assert result.output.dtype == torch.bfloat16
    widened = replace(inputs, query=half.query.float(), key=half.key.float(), value=half.value.float())
    assert torch.equal(result.output, native(widened).output.bfloat16())
    assert torch.equal(flatten(result)["weights"], flatten(native(widened))["weights"])


def test_a_life_of_two_hundred_thousand_steps_stays_within_1e_4_of_double_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    single: Tensor = torch.zeros(1, 1, 16, 16)
    double = single.double()
    with torch.no_grad():
        for _ in range(10):
            inputs = make_inputs(
                1, 20_000, 1, 16, 16, reset_rate=0.0, seed=int(torch.randint(2**31, (), generator=generator))
            )
            inputs = replace(inputs, log_decay=inputs.log_decay * 0.01).to(torch.float32)
            tokens = inputs.keywords()
            found = fast_weight_attention(initial_state=single, implementation="native", **tokens)
            expected = fast_weight_attention(
                initial_state=double, implementation="native", **inputs.to(torch.float64).keywords()
            )
            single, double = found.state, expected.state
    assert_close({"output": found.output[:, -100:]}, {"output": expected.output[:, -100:]}, 1e-4)
    assert single.norm() < 100
