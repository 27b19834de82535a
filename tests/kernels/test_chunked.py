"""The chunked form equals the reference, in values and all gradients, wherever resets, cuts and chunk edges fall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lifelong.kernels import FastWeightOutput, MomentumState, fast_weight_step, huber

from .inputs import OVER_TIME, Inputs, assert_close, flatten, gradients, make_inputs

RULES: dict[str, dict[str, Any]] = {
    "delta": {"decay": None},
    "delta, no reset": {"decay": None, "reset_rate": 0.0},
    "gated delta": {},
    "write rates above one": {"rate": 1.9},
    "write rates of zero": {"rate": 0.0},
    "hebbian": {"decay": None, "erase": False},
    "hebbian with decay": {"erase": False},
    "mixed heads": {"erase": [True, False]},
    "separate erase key": {"erase_key": True},
    "comba": {"erase_key": True, "error_before_decay": True},
    "learned reset": {"learned_reset": True},
    "comba, learned reset, mixed heads": {
        "erase_key": True,
        "error_before_decay": True,
        "learned_reset": True,
        "erase": [True, False],
    },
    "kda": {"decay": "channel"},
    "gla": {"decay": "channel", "erase": False},
    "kda, learned reset, mixed heads": {"decay": "channel", "learned_reset": True, "erase": [True, False]},
    "kda, error before decay, learned reset": {
        "decay": "channel",
        "error_before_decay": True,
        "erase_key": True,
        "learned_reset": True,
    },
    "momentum": {"momentum": True},
    "momentum, no decay, no reset": {"momentum": True, "decay": None, "reset_rate": 0.0},
    "momentum, error after decay, learned reset": {
        "momentum": True,
        "error_before_decay": False,
        "learned_reset": True,
        "erase": [False, True],
    },
}


def reference(inputs: Inputs) -> FastWeightOutput:
    return inputs.run("reference")


def chunked(inputs: Inputs) -> FastWeightOutput:
    return inputs.run("chunked")


def check(inputs: Inputs, tolerance: float = 1e-12) -> None:
    assert_close(flatten(chunked(inputs)), flatten(reference(inputs)), tolerance)
    assert_close(gradients(inputs, chunked), gradients(inputs, reference), tolerance)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 7, 16, 17, 37])
def test_every_rule_at_every_kind_of_length(rule: str, length: int) -> None:
    check(make_inputs(length=length, **RULES[rule]))


@pytest.mark.parametrize("rule", RULES)
def test_the_fold_of_steps_is_the_sequence(rule: str) -> None:
    inputs = make_inputs(**RULES[rule])
    folded, whole = flatten(inputs.fold("chunked")), flatten(chunked(inputs))
    assert_close(folded, whole, 1e-12)
    assert_close(gradients(inputs, lambda i: i.fold("chunked")), gradients(inputs, chunked), 1e-12)


@pytest.mark.parametrize("width", [8, 16, 24, 64, 128])
@pytest.mark.parametrize("length", [8, 64])
def test_every_width_of_head(width: int, length: int) -> None:
    check(make_inputs(1, length, 2, width, width // 2))


@pytest.mark.parametrize("rule", RULES)
def test_cut_anywhere_with_the_state_carried_over(rule: str) -> None:
    inputs = make_inputs(length=18, **RULES[rule])
    whole, whole_gradients = flatten(chunked(inputs)), gradients(inputs, chunked)
    for cut in range(1, inputs.length):

        def in_two(inputs: Inputs, cut: int = cut) -> FastWeightOutput:
            first = chunked(inputs.between(0, cut, inputs.state()))
            second = chunked(inputs.between(cut, inputs.length, first.state))
            return FastWeightOutput(
                torch.cat([first.output, second.output], 1),
                second.state,
                torch.cat([first.surprise, second.surprise], 1),
            )

        assert_close(flatten(in_two(inputs)), whole, 1e-12)
        assert_close(gradients(inputs, in_two), whole_gradients, 1e-12)


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
def test_a_reset_is_a_call_of_its_own(implementation: str, learned: bool, momentum: bool) -> None:
    at = 11
    inputs = make_inputs(reset_rate=0.0, learned_reset=learned, momentum=momentum)
    reset = torch.zeros(2, inputs.length, dtype=torch.bool)
    reset[:, at] = True
    whole = replace(inputs, reset=reset).run(implementation)
    first = inputs.between(0, at, inputs.state()).run(implementation)
    fresh: Any = inputs.reset_state.expand_as(inputs.weights) if learned else torch.zeros_like(inputs.weights)
    if momentum:
        fresh = MomentumState(fresh, torch.zeros_like(fresh))
    second = inputs.between(at, inputs.length, fresh).run(implementation)
    joined = FastWeightOutput(
        torch.cat([first.output, second.output], 1), second.state, torch.cat([first.surprise, second.surprise], 1)
    )
    assert_close(flatten(whole), flatten(joined), 1e-12)


@pytest.mark.parametrize("rule", [rule for rule, options in RULES.items() if options.get("reset_rate") != 0.0])
@pytest.mark.parametrize("at", [0, 1, 15, 16, 17, 31, 32, 33])
def test_nothing_crosses_a_reset_at_or_beside_a_chunk_edge(rule: str, at: int) -> None:
    """A loss after the reset has exactly no gradient before it, nor in the initial state."""
    inputs = make_inputs(length=34, **RULES[rule])
    reset = torch.zeros(2, inputs.length, dtype=torch.bool)
    reset[:, at] = True
    inputs = replace(inputs, reset=reset).with_gradients()
    result = chunked(inputs)
    later = [result.output[:, at:], result.surprise[:, at:]]
    later += [result.state] if isinstance(result.state, Tensor) else list(result.state)
    named = {name: tensor for name, tensor in inputs.floating().items() if name != "reset_state"}
    found = torch.autograd.grad(sum(part.square().sum() for part in later), list(named.values()), allow_unused=True)
    for name, gradient in zip(named, found, strict=True):
        if gradient is None:
            continue
        before = gradient if name in ("weights", "running") else gradient[:, :at]
        assert torch.equal(before, torch.zeros_like(before)), name
    check(inputs)


def test_lives_that_always_and_never_reset_stand_beside_each_other() -> None:
    inputs = make_inputs(lives=3)
    reset = torch.zeros(3, inputs.length, dtype=torch.bool)
    reset[0] = True
    reset[1, ::2] = True
    check(replace(inputs, reset=reset))


@pytest.mark.parametrize("keys", ["alike", "same"])
@pytest.mark.parametrize("rate", [1.0, 1.9])
@pytest.mark.parametrize("decay", [0.0, -50.0])
def test_float32_holds_when_keys_are_alike(keys: str, rate: float, decay: float) -> None:
    inputs = make_inputs(2, 64, 2, 16, 16, keys=keys, rate=rate)
    check_float32(replace(inputs, log_decay=torch.full_like(inputs.write_rate, decay)), 1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_float32_is_as_exact_as_float32_can_be(rule: str) -> None:
    check_float32(make_inputs(2, 64, 2, 16, 16, **RULES[rule]), 5e-6)


def test_weak_decays_keep_their_digits_beside_strong_ones() -> None:
    inputs = make_inputs(2, 64, 2, 16, 16)
    strong = torch.zeros_like(inputs.write_rate, dtype=torch.bool)
    strong[:, ::5] = True
    log_decay = torch.where(strong, -200.0, -0.01).double()
    check_float32(replace(inputs, log_decay=log_decay), 5e-6)
    check_float32(replace(inputs, log_decay=log_decay[..., None].expand(inputs.key.shape).clone()), 5e-6)


def check_float32(inputs: Inputs, tolerance: float) -> None:
    inputs = inputs.to(torch.float32)
    exact = inputs.to(torch.float64)
    assert_close(flatten(chunked(inputs)), flatten(reference(exact)), tolerance)
    single, double = gradients(inputs, chunked), gradients(exact, reference)
    # Under strong decay the gradient of the decay is a small difference of large terms: its error is absolute.
    for found in (single, double):
        decay = found.pop("log_decay", torch.zeros(1))
        found["log_decay beside values"] = torch.cat([decay.double().flatten(), found["value"].double().flatten()])
    assert_close(single, double, tolerance)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_shape_any_resets_any_cut(data: st.DataObject) -> None:
    def number(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    rule = data.draw(st.sampled_from(sorted(RULES)))
    inputs = make_inputs(number(1, 3), number(2, 40), 2, number(1, 9), number(1, 9), seed=number(0, 99), **RULES[rule])
    resets = data.draw(st.lists(st.booleans(), min_size=inputs.length, max_size=inputs.length))
    inputs = replace(inputs, reset=torch.tensor(resets).expand(inputs.query.shape[0], -1))
    check(inputs, 1e-11)
    cut = number(1, inputs.length - 1)
    first = chunked(inputs.between(0, cut, inputs.state()))
    second = chunked(inputs.between(cut, inputs.length, first.state))
    assert_close({"output": torch.cat([first.output, second.output], 1)}, {"output": reference(inputs).output}, 1e-11)


def test_inputs_of_bfloat16_give_bfloat16_outputs_and_a_float32_state() -> None:
    inputs = make_inputs().to(torch.float32)
    low = replace(inputs, **{name: getattr(inputs, name).bfloat16() for name in ("query", "key", "value")})
    for implementation in ("reference", "chunked"):
        result = low.run(implementation)
        assert result.output.dtype == torch.bfloat16
        assert result.state.dtype == result.surprise.dtype == torch.float32
        assert_close(flatten(result), flatten(reference(low.to(torch.float32))), 5e-3)


def test_autocast_does_not_reach_the_state() -> None:
    inputs = make_inputs().to(torch.float32)
    plain = chunked(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = chunked(inputs)
    assert torch.equal(plain.output, cast.output)


@pytest.mark.parametrize("erase", [True, False, [True, False]])
def test_a_batch_of_gradients_by_vmap(erase: bool | list[bool]) -> None:
    inputs = make_inputs(erase=erase)
    maps = torch.randn(3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(matrix: Tensor, implementation: str) -> Tensor:
        result = replace(inputs, query=inputs.query @ matrix, key=inputs.key @ matrix / 4).run(implementation)
        return result.output.square().sum() + result.surprise.sum() + result.state.sum()

    found = torch.func.vmap(torch.func.grad(lambda matrix: loss(matrix, "chunked")))(maps)
    expected = torch.stack([torch.func.grad(lambda matrix: loss(matrix, "reference"))(matrix) for matrix in maps])
    assert_close({"": found}, {"": expected}, 1e-12)


def test_compiles_into_one_graph() -> None:
    inputs = make_inputs()
    compiled = torch.compile(lambda i: flatten(i.run("chunked")), fullgraph=True, backend="aot_eager")
    assert_close(compiled(inputs), flatten(chunked(inputs)), 1e-14)


@pytest.mark.parametrize("rule", ["gated delta", "learned reset", "momentum", "kda"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_step_compiles_into_one_graph(rule: str, in_place: bool) -> None:
    inputs = make_inputs(length=1, reset_rate=0.5, **RULES[rule])
    token = {name: x[:, 0] if name in OVER_TIME and x is not None else x for name, x in inputs.keywords().items()}

    def step(state: Any) -> dict[str, Tensor]:
        return flatten(fast_weight_step(state=state, implementation="chunked", in_place=in_place, **token))

    def fresh() -> Any:
        state = inputs.state()
        return state.clone() if isinstance(state, Tensor) else MomentumState(*(part.clone() for part in state))

    with torch.no_grad():
        compiled = torch.compile(step, fullgraph=True, backend="eager")(fresh())
        assert_close(compiled, step(fresh()), 1e-14)


def test_more_heads_and_lives_than_a_sixteen_bit_index_counts() -> None:
    inputs = make_inputs(lives=65_537, length=3, heads=1, key_width=1, value_width=1).to(torch.float32)
    one = inputs._map(lambda x: x[-1:] if x.dim() > 0 and x.shape[0] == 65_537 else x)
    assert_close({"": chunked(inputs).output[-1:]}, {"": reference(one).output}, 1e-6)


def test_second_and_forward_derivatives_fail_aloud() -> None:
    inputs = make_inputs().with_gradients()
    (gradient,) = torch.autograd.grad(chunked(inputs).output.sum(), inputs.key, create_graph=True)
    with pytest.raises(NotImplementedError, match='implementation="reference"'):
        gradient.sum().backward()
    with pytest.raises(NotImplementedError):
        torch.func.jvp(lambda key: chunked(replace(inputs, key=key)).output, (inputs.key,), (inputs.key,))


def test_an_error_that_is_not_linear_is_refused() -> None:
    with pytest.raises(ValueError, match="momentum with a decay per channel"):
        chunked(make_inputs(decay="channel", momentum=True))
    inputs = make_inputs(error_function=huber(1.0))
    with pytest.raises(ValueError, match=r'implementation="chunked" cannot serve this call.*huber'):
        chunked(inputs)
    assert inputs.run("auto").output.shape == inputs.value.shape


def test_torch_empty_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are written before they are read: poisoned ones change nothing."""
    expected = gradients(make_inputs(), chunked)
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda self, *shape: new_empty(self, *shape).fill_(torch.nan))
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **options: empty_like(tensor, **options).fill_(torch.nan))
    assert_close(gradients(make_inputs(), chunked), expected, 0.0)
