"""The least-squares memory: the reference against the regression it claims to solve, the rest against the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.kernels import MesaOutput, MesaState, mesa_attention

from .inputs import Inputs, assert_close, make_inputs

REGULARISER = torch.linspace(0.5, 2.0, 16, dtype=torch.float64).view(2, 8)


def start(inputs: Inputs) -> MesaState:
    """A state that data could have led to: the key moment is positive semidefinite."""
    root = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return MesaState(inputs.weights, root @ root.mT)


def run(
    inputs: Inputs, state: MesaState | None, implementation: str, regulariser: Tensor = REGULARISER, **options: Any
) -> MesaOutput:
    return mesa_attention(
        inputs.query, inputs.key, inputs.value, inputs.write_rate, regulariser.to(inputs.query.dtype),
        inputs.log_decay, inputs.reset, state, implementation, **options,
    )  # fmt: skip


def flat(result: MesaOutput) -> dict[str, Tensor]:
    return {"output": result.output, "values": result.state.values, "keys": result.state.keys}


def test_what_is_read_is_the_optimum_of_the_weighted_regression() -> None:
    inputs = make_inputs(1, 15, 2, reset_rate=0.0)
    result = run(inputs, None, "reference")
    for head in range(2):
        decay = inputs.log_decay[0, :, head].cumsum(0)
        for t in (0, 6, 14):
            weights = inputs.write_rate[0, : t + 1, head] * (decay[t] - decay[: t + 1]).exp()
            keys, values = inputs.key[0, : t + 1, head], inputs.value[0, : t + 1, head]
            # Least squares on the rows sqrt(w) k, and rows sqrt(lambda) for the regulariser.
            rows = torch.cat([weights.sqrt()[:, None] * keys, REGULARISER[head].sqrt().diag()])
            targets = torch.cat([weights.sqrt()[:, None] * values, torch.zeros(8, 5, dtype=torch.float64)])
            fit = torch.linalg.lstsq(rows, targets).solution
            assert torch.allclose(result.output[0, t, head], inputs.query[0, t, head] @ fit, rtol=1e-10)


@pytest.mark.parametrize("length", [1, 37])
@pytest.mark.parametrize("decay", [None, "scalar"])
@pytest.mark.parametrize("reset_rate", [0.0, 0.15])
@pytest.mark.parametrize("iterations", [None, 30], ids=["directly", "by conjugate gradients"])
def test_chunked_is_the_reference_in_values_and_gradients(
    length: int, decay: str | None, reset_rate: float, iterations: int | None
) -> None:
    inputs = make_inputs(length=length, decay=decay, reset_rate=reset_rate)
    found = {}
    for implementation in ("reference", "chunked"):
        learned = inputs.with_gradients()
        state = MesaState(*(part.detach().requires_grad_() for part in start(inputs)))
        regulariser = REGULARISER.clone().requires_grad_()
        result = run(
            learned,
            state,
            implementation,
            regulariser,
            iterations=None if implementation == "reference" else iterations,
        )
        loss = result.output.sin().sum() + result.state.values.square().sum() + result.state.keys.square().sum()
        named = {n: t for n, t in learned.floating().items() if n != "weights"} | state._asdict()
        named["regulariser"] = regulariser
        gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        found[implementation] = flat(result), gradients
    # Only the symmetric part of the gradient in the symmetric H is meaningful.
    for _, gradients in found.values():
        gradients["keys"] = (gradients["keys"] + gradients["keys"].mT) / 2
    for chunked, reference in zip(found["chunked"], found["reference"], strict=True):
        assert_close(chunked, reference, 1e-9)


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_two_steps_by_hand(implementation: str) -> None:
    """Lambda = 1, decay 1/2, rate 1. Keys (1, 0), (1, 1) with values 2, 3; queries (1, 0), (0, 1).

    Step 1: H + 1 = diag(2, 1), V = (2, 0): reads 2 * 1/2 = 1.
    Step 2: H = (1/2 + 1, 1; 1, 1), V = (1 + 3, 3). H + 1 = (5/2, 1; 1, 2) has determinant 4, and times (-1/4, 5/8) is
    (0, 1). So it reads 4 * -1/4 + 3 * 5/8 = 7/8.
    """

    def tensor(*steps: Any) -> Tensor:
        return torch.tensor(steps, dtype=torch.float64)[None, :, None]

    one = torch.ones(1, 2, 1, dtype=torch.float64)
    result = mesa_attention(
        tensor([1.0, 0.0], [0.0, 1.0]), tensor([1.0, 0.0], [1.0, 1.0]), tensor([2.0], [3.0]), one,
        torch.ones(1, 2, dtype=torch.float64), (one / 2).log(), implementation=implementation,
    )  # fmt: skip
    assert result.output.flatten().tolist() == pytest.approx([1.0, 0.875], abs=1e-12)
    assert result.state.keys.flatten().tolist() == pytest.approx([1.5, 1.0, 1.0, 1.0])
    assert result.state.values.flatten().tolist() == pytest.approx([4.0, 3.0])


@pytest.mark.parametrize("iterations", [None, 30], ids=["directly", "by conjugate gradients"])
@pytest.mark.parametrize("decay", [None, "scalar"])
def test_a_reset_state_is_that_of_the_reference_in_values_and_gradients(
    decay: str | None, iterations: int | None
) -> None:
    inputs = make_inputs(length=37, decay=decay, reset_rate=0.15)
    assert inputs.reset is not None
    generator = torch.Generator().manual_seed(6)
    values = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)
    root = torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)
    found = []
    for implementation in ("reference", "chunked"):
        leaves = [tensor.clone().requires_grad_() for tensor in (values, root)]
        fresh = MesaState(leaves[0], leaves[1] @ leaves[1].mT)
        solver = None if implementation == "reference" else iterations
        result = run(inputs, start(inputs), implementation, iterations=solver, reset_state=fresh)
        loss = result.output.sin().sum() + result.state.values.square().sum() + result.state.keys.square().sum()
        gradients = torch.autograd.grad(loss, leaves)
        found.append(flat(result) | dict(zip(("of_values", "of_root"), gradients, strict=True)))
    assert found[0]["of_root"].any()
    assert_close(found[1], found[0], 1e-9)


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_a_reset_is_a_start_from_the_reset_state(implementation: str) -> None:
    inputs, fresh = (
        make_inputs(length=20, reset_rate=0.0),
        MesaState(torch.ones(2, 5, 8).double(), torch.eye(8).expand(2, 8, 8).double()),
    )
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[:, 11] = True
    whole = run(replace(inputs, reset=reset), start(inputs), implementation, reset_state=fresh)
    started = MesaState(*(moment.expand(2, *moment.shape) for moment in fresh))
    alone = run(inputs.between(11, 20, None), started, implementation)
    torch.testing.assert_close(whole.output[:, 11:], alone.output, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(whole.state.keys, alone.state.keys, rtol=0.0, atol=1e-10)


def test_cut_anywhere_with_the_state_carried_over() -> None:
    inputs = make_inputs(length=18)
    whole = run(inputs, start(inputs), "chunked")
    for cut in range(1, 18):
        first = run(inputs.between(0, cut, None), start(inputs), "chunked")
        second = run(inputs.between(cut, 18, None), first.state, "chunked")
        joined = MesaOutput(torch.cat([first.output, second.output], 1), second.state)
        assert_close(flat(joined), flat(whole), 1e-10)


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_no_gradient_crosses_a_reset(implementation: str) -> None:
    inputs = make_inputs()
    reset = torch.zeros(2, inputs.length, dtype=torch.bool)
    reset[:, 9] = True
    inputs = replace(inputs, reset=reset).with_gradients()
    state = MesaState(*(part.detach().requires_grad_() for part in start(inputs)))
    loss = run(inputs, state, implementation).output[:, 9:].sum()
    for tensor in (inputs.query, inputs.key, inputs.value, inputs.write_rate, inputs.log_decay):
        (gradient,) = torch.autograd.grad(loss, tensor, retain_graph=True)
        assert torch.equal(gradient[:, :9], torch.zeros_like(gradient[:, :9]))
    assert all(g is None or not g.any() for g in torch.autograd.grad(loss, list(state), allow_unused=True))


@pytest.mark.parametrize("keys", ["random", "alike", "same"])
def test_float32_reads_what_float64_reads(keys: str) -> None:
    inputs = make_inputs(2, 64, 2, decay="scalar", keys=keys)
    single = run(inputs.to(torch.float32), None, "chunked")
    assert_close({"o": single.output}, {"o": run(inputs, None, "reference").output}, 2e-5)


def test_it_recalls_what_one_gradient_step_blurs() -> None:
    """Eight values under eight correlated keys come back whole, given little regularisation."""
    generator = torch.Generator().manual_seed(0)
    key = torch.nn.functional.normalize(1 + 0.5 * torch.randn(1, 8, 1, 8, generator=generator), dim=-1).double()
    value = torch.randn(1, 8, 1, 4, generator=generator).double()
    little = torch.full((1, 8), 1e-8, dtype=torch.float64)
    last = MesaState(torch.zeros(1, 1, 4, 8).double(), torch.zeros(1, 1, 8, 8).double())
    last = mesa_attention(key, key, value, torch.ones(1, 8, 1).double(), little, initial_state=last).state
    zero = torch.zeros_like(key)
    read = mesa_attention(key, zero, value, torch.zeros(1, 8, 1).double(), little, initial_state=last)
    assert torch.allclose(read.output, value, atol=1e-3)


def test_what_does_not_fit_is_named() -> None:
    inputs = make_inputs()
    arguments = (inputs.query, inputs.key, inputs.value, inputs.write_rate)
    with pytest.raises(ValueError, match=r"regulariser must be \[2, 8\], got \[3\]"):
        mesa_attention(*arguments, torch.ones(3))
    with pytest.raises(ValueError, match=r"implementation must be auto, reference or chunked, got \"triton\""):
        mesa_attention(*arguments, REGULARISER, implementation="triton")
    with pytest.raises(ValueError, match=r"initial_state.keys must be \[B, H, Dk, Dk\] of torch.float64, got"):
        mesa_attention(*arguments, REGULARISER, initial_state=MesaState(inputs.weights, inputs.weights))
    with pytest.raises(ValueError, match=r"log_decay must be \[B, T, H\], got \[2, 21, 2, 8\]"):
        mesa_attention(*arguments, REGULARISER, inputs.key * 0)
