"""The reference is the definition: checked against numbers worked out by hand and against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.kernels import MomentumState, fast_weight_attention, fast_weight_step, huber, power

from .inputs import assert_close, flatten, make_inputs

RULES: dict[str, dict[str, Any]] = {
    "delta": {"decay": None},
    "gated delta": {},
    "kda": {"decay": "channel"},
    "hebbian with decay": {"erase": False},
    "mixed heads": {"erase": [True, False]},
    "separate erase key": {"erase_key": True},
    "comba": {"erase_key": True, "error_before_decay": True},
    "learned reset": {"learned_reset": True},
    "momentum": {"momentum": True},
    "momentum, error after decay": {"momentum": True, "error_before_decay": False, "learned_reset": True},
    "huber": {"error_function": huber(0.7)},
    "power": {"error_function": power(3.0)},
}


@pytest.mark.parametrize("rule", RULES)
def test_gradients_agree_with_finite_differences(rule: str) -> None:
    inputs = make_inputs(2, 4, 2, 3, 2, reset_rate=0.3, **RULES[rule])
    named = inputs.floating()

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        changed = inputs.__class__(**{**inputs.__dict__, **dict(zip(named, tensors, strict=True))})
        return tuple(flatten(changed.run("reference")).values())

    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in named.values()])


def one(*numbers: float) -> Tensor:
    """A sequence of one life, one head, width 1."""
    return torch.tensor(numbers, dtype=torch.float64)[None, :, None, None]


def gate(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[None, :, None]


def test_two_steps_of_the_gated_delta_rule_by_hand() -> None:
    result = fast_weight_attention(
        query=one(1, 2),
        key=one(1, 1),
        value=one(4, 6),
        write_rate=gate(0.5, 0.25),
        log_decay=gate(0.0, 0.5).log().clamp_min(-50),
        implementation="reference",
    )
    # S1 = 0.5 * 4 = 2; S2- = 1; e = 6 - 1 = 5; S2 = 1 + 0.25 * 5 = 2.25
    assert result.output.flatten().tolist() == pytest.approx([2.0, 4.5])
    assert result.surprise.flatten().tolist() == pytest.approx([4.0, 5.0])
    assert result.state.item() == pytest.approx(2.25)


def test_two_steps_with_momentum_by_hand() -> None:
    result = fast_weight_attention(
        query=one(1, 1),
        key=one(1, 1),
        value=one(4, 6),
        write_rate=gate(0.5, 0.5),
        log_decay=gate(0.5, 0.5).log(),
        momentum=gate(0.9, 0.5),
        implementation="reference",
    )
    # M1 = 2, S1 = 2; e = 6 - S1 = 4 (before the decay), M2 = 0.5 * 2 + 2 = 3, S2 = 1 + 3
    assert result.output.flatten().tolist() == pytest.approx([2.0, 4.0])
    assert result.surprise.flatten().tolist() == pytest.approx([4.0, 4.0])
    assert isinstance(result.state, MomentumState)
    assert result.state.momentum.item() == pytest.approx(3.0)


def test_a_reset_drops_the_memory_before_its_step_and_not_after() -> None:
    result = fast_weight_attention(
        query=one(1, 1, 1),
        key=one(1, 1, 0),
        value=one(4, 6, 0),
        write_rate=gate(1, 1, 1),
        erase=False,
        reset=torch.tensor([[False, True, False]]),
        implementation="reference",
    )
    assert result.output.flatten().tolist() == [4.0, 6.0, 6.0]


def test_without_erasing_it_is_masked_linear_attention() -> None:
    inputs = make_inputs(decay=None, reset_rate=0.0, erase=False)
    scores = (
        torch.einsum("bthd,bshd->bhts", inputs.query, inputs.key).tril() * inputs.write_rate.transpose(1, 2)[:, :, None]
    )
    expected = torch.einsum("bhts,bshv->bthv", scores, inputs.value)
    expected += torch.einsum("bhvk,bthk->bthv", inputs.weights, inputs.query)
    assert torch.allclose(inputs.run("reference").output, expected, rtol=1e-12)


def test_after_a_full_write_a_unit_key_reads_back_its_value() -> None:
    inputs = make_inputs(rate=1.0)
    result = inputs.__class__(**{**inputs.__dict__, "query": inputs.key}).run("reference")
    assert torch.allclose(result.output, inputs.value)


def test_robust_errors_bound_what_an_outlier_can_write() -> None:
    arguments = {"query": one(1), "key": one(1), "write_rate": gate(1), "implementation": "reference"}
    written = {
        name: fast_weight_attention(value=one(-50), error_function=function, **arguments).state.item()
        for name, function in {"huber": huber(2.0), "power": power(1.5), "least absolute": power(1.0)}.items()
    }
    assert written == pytest.approx({"huber": -2.0, "power": -(50**0.5), "least absolute": -1.0})


def test_an_error_of_zero_has_a_finite_gradient_under_every_error_function() -> None:
    for function in (huber(1.0), power(1.0), power(1.5)):
        value = one(0.0).requires_grad_()
        result = fast_weight_attention(
            one(1), one(1), value, gate(1), error_function=function, implementation="reference"
        )
        (gradient,) = torch.autograd.grad(result.output.sum() + result.surprise.sum(), value)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
@pytest.mark.parametrize("momentum", [False, True])
def test_a_step_in_place_writes_over_the_state_and_returns_it(implementation: str, momentum: bool) -> None:
    inputs = make_inputs(length=1, momentum=momentum, reset_rate=0.5)
    token = {
        "query": inputs.query[:, 0],
        "key": inputs.key[:, 0],
        "value": inputs.value[:, 0],
        "write_rate": inputs.write_rate[:, 0],
        "log_decay": inputs.log_decay[:, 0],
        "momentum": inputs.momentum[:, 0] if momentum else None,
        "reset": inputs.reset[:, 0],
        "implementation": implementation,
    }
    expected = flatten(fast_weight_step(state=inputs.state(), **token))
    before = inputs.weights.clone()
    assert torch.equal(inputs.weights, before), "a step that is not in place leaves its state alone"
    result = fast_weight_step(state=inputs.state(), in_place=True, **token)
    assert flatten(result)["weights"].data_ptr() == inputs.weights.data_ptr()
    assert_close(flatten(result), expected, 1e-15)
