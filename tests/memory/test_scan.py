"""The linear scan against a loop in plain numbers, in both ways of computing it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lifelong.memory import scan
from lifelong.memory.scan import linear_scan

BATCH, STEPS, WIDTH = 3, 13, 5


@pytest.fixture(autouse=True, params=["sweep", "doubling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(scan, "_SMALL_STEP", 0 if request.param == "sweep" else 10**9)
    chosen: str = request.param
    return chosen


def loop(
    decay: Tensor, inputs: Tensor, start: Tensor, reset: Tensor | None = None, reset_state: Tensor | None = None
) -> Tensor:
    """The definition, a life and a step at a time."""
    decay = decay.expand_as(inputs)
    lives = []
    for b in range(len(inputs)):
        state, states = start[b], []
        for t in range(inputs.shape[1]):
            if reset is not None and reset[b, t]:
                state = torch.zeros_like(state) if reset_state is None else reset_state
            state = decay[b, t] * state + inputs[b, t]
            states.append(state)
        lives.append(torch.stack(states))
    return torch.stack(lives)


def problem(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decays of size at most 1, inputs, start, reset state."""
    torch.manual_seed(0)
    decay = torch.randn(BATCH, STEPS, *shape, dtype=dtype)
    decay = decay / decay.abs().clamp_min(1.0)
    tensors = (decay, torch.randn_like(decay), torch.randn_like(decay[:, 0]), torch.randn_like(decay[0, 0]))
    return tuple(tensor.requires_grad_() for tensor in tensors)  # type: ignore[return-value]


RESET = torch.zeros(BATCH, STEPS, dtype=torch.bool)
RESET[0, [3, 4, 9]] = True
RESET[1] = True
RESET[2, [0, STEPS - 1]] = True


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
@pytest.mark.parametrize("learned", [False, True], ids=["zero", "learned"])
@pytest.mark.parametrize("reset", [None, RESET], ids=["without resets", "with resets"])
def test_it_is_the_loop_in_values_and_gradients(dtype: torch.dtype, learned: bool, reset: Tensor | None) -> None:
    decay, inputs, start, learned_state = problem(dtype, WIDTH, 2)
    reset_state = learned_state if learned else None
    found, wanted = (run(decay, inputs, start, reset, reset_state) for run in (linear_scan, loop))
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-12)
    weights, sources = torch.randn_like(found), [decay, inputs, start, learned_state]
    gradients = [
        torch.autograd.grad((states * weights).sum().abs(), sources, materialize_grads=True)
        for states in (found, wanted)
    ]
    for of_scan, of_loop in zip(*gradients, strict=True):
        torch.testing.assert_close(of_scan, of_loop, rtol=0.0, atol=1e-11)


def test_by_hand() -> None:
    decay, inputs = torch.tensor([[[0.5], [0.5], [2.0]]]), torch.tensor([[[1.0], [2.0], [3.0]]])
    start, reset = torch.tensor([[4.0]]), torch.tensor([[False, False, True]])
    assert linear_scan(decay, inputs, start).flatten().tolist() == [3.0, 3.5, 10.0]
    assert linear_scan(decay, inputs, start, reset).flatten().tolist() == [3.0, 3.5, 3.0]
    assert linear_scan(decay, inputs, start, reset, torch.tensor([0.5])).flatten().tolist() == [3.0, 3.5, 4.0]


def test_it_may_be_cut_anywhere() -> None:
    decay, inputs, start, _ = problem(torch.float64, WIDTH)
    whole = linear_scan(decay, inputs, start, RESET)
    for cut in range(1, STEPS):
        head = linear_scan(decay[:, :cut], inputs[:, :cut], start, RESET[:, :cut])
        tail = linear_scan(decay[:, cut:], inputs[:, cut:], head[:, -1], RESET[:, cut:])
        torch.testing.assert_close(torch.cat([head, tail], 1), whole, rtol=0.0, atol=1e-12)


def test_second_derivatives_and_maps_are_right() -> None:
    decay, inputs, start, _ = problem(torch.float64, 2)
    assert torch.autograd.gradgradcheck(linear_scan, (decay[:, :4], inputs[:, :4], start))

    def loss(decay: Tensor, start: Tensor) -> Tensor:
        return linear_scan(decay, inputs, start, RESET).square().sum()

    several = torch.stack([decay.detach() * size for size in (0.2, 0.5, 0.9)])
    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(several, start)
    for row, found in zip(several, mapped, strict=True):
        torch.testing.assert_close(found, torch.func.grad(loss)(row, start), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 1e-30, 0.5, 1.0 - 2.0**-24, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
def test_long_sequences_of_extreme_decays_stay_finite_and_exact_in_single_precision(
    decay: float, dtype: torch.dtype
) -> None:
    steps = 2048
    torch.manual_seed(1)
    inputs = torch.randn(1, steps, 2, dtype=dtype).requires_grad_()
    decays = torch.full((1, steps, 2), decay, dtype=dtype).requires_grad_()
    reset = torch.rand(1, steps) < 1e-3
    states = linear_scan(decays, inputs, torch.zeros(1, 2, dtype=dtype), reset)
    gradients = torch.autograd.grad(states.abs().sum(), [inputs, decays])
    assert all(bool(torch.isfinite(tensor.abs()).all()) for tensor in (states, *gradients))

    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = loop(decays.detach().to(wide), inputs.detach().to(wide), torch.zeros(1, 2, dtype=wide), reset)
    torch.testing.assert_close(states.to(wide), exact, rtol=0.0, atol=1e-4 * float(exact.abs().max()))


def test_nothing_crosses_a_reset_not_even_a_rounding_error() -> None:
    decay, inputs, start, _ = problem(torch.float32, WIDTH)
    reset = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    reset[:, 6] = True
    states = linear_scan(decay, inputs, start, reset)
    gradients = torch.autograd.grad(states[:, 6:].square().sum(), [inputs, start, decay])
    assert not gradients[0][:, :6].any()
    assert not gradients[1].any()
    assert not gradients[2][:, :7].any()
