"""Turning keys and queries by the time since the last reset."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.memory import make_core
from lifelong.memory.rotary import Rotary, positions

# pi to 50 digits, for angles that are exact where float64 is not.
_PI = Fraction(314159265358979323846264338327950288419716939937510, 10**50)


def cos_and_sin(rotary: Rotary, state: dict[str, Tensor], dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Cosines and sines of the angles of queries, then of keys, [..., H, n]: what becomes of points on the x-axis."""
    turning, _ = rotary.step(state, None, dtype)
    points = len(rotary.turns), 2 * len(rotary._rates)
    axis = torch.zeros(len(next(iter(state.values()))), *points, dtype=dtype)
    axis[..., : points[1] // 2] = 1.0
    return tuple(half for turned in turning.turn(axis, axis) for half in turned.chunk(2, -1))


def angles(turns: Tensor) -> dict[str, Tensor]:
    """What a float32 state keeps of learned angles, given in whole and broken turns, float64."""
    turns = turns - turns.round()
    angle = turns.float()
    return {"angle": angle, "angle_rest": (turns - angle.double()).float()}


def test_a_vector_is_turned_point_by_point() -> None:
    turning, _ = Rotary(["with"], 4, 2.0).step({"position": torch.tensor([1])}, None, torch.float64)
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]], dtype=torch.float64)  # rates: a half and a quarter of a turn
    wanted = torch.tensor([[[-1.0, -2.0, 0.0, 0.0]]], dtype=torch.float64)
    for turned in turning.turn(x, x):
        torch.testing.assert_close(turned, wanted, rtol=0.0, atol=1e-12)


def test_turning_has_the_gradient_of_its_definition() -> None:
    torch.manual_seed(0)
    rotary = Rotary(["with", "none", "learned", "against"], 6, None).double()
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64, requires_grad=True)
    angle = torch.rand(2, 2, 1, 3, dtype=torch.float64, requires_grad=True)
    reset = torch.tensor([[False, False, True], [False, False, False]])

    def run(x: Tensor, angle: Tensor, rates: Tensor) -> tuple[Tensor, ...]:
        state = {"position": torch.tensor([5, 7]), "angle": angle, "angle_rest": torch.zeros_like(angle)}
        turning, new = torch.func.functional_call(rotary, {"rates": rates}, (state, 3, reset, torch.float64))
        return *turning.turn(x, x), new["angle"]

    assert torch.autograd.gradcheck(run, (x, angle, rotary.rates))


def test_positions_count_from_the_last_reset() -> None:
    reset = torch.zeros(2, 5, dtype=torch.bool)
    reset[0, [1, 4]] = True
    found = positions(torch.tensor([7, 2]), 5, reset)
    assert found.tolist() == [[7, 0, 1, 2, 0], [2, 3, 4, 5, 6]]
    assert positions(torch.tensor([7, 2]), 2, None).tolist() == [[7, 8], [2, 3]]


@pytest.mark.parametrize("position", [0, 1, 12_345, 10**7, 10**9])
def test_angles_are_exact_however_old_the_life(position: int) -> None:
    rotary = Rotary(["with"], 8, 1.15)
    state = {"position": torch.tensor([position])}
    assert rotary.step(state, None, torch.float64)[1]["position"].tolist() == [position + 1]
    *_, cos, sin = cos_and_sin(rotary, state)
    for index in range(4):
        turns = Fraction(position) * Fraction(1, 2) / Fraction(1.15) ** index  # exact
        wanted = torch.tensor(float(2 * _PI * (turns - round(turns))), dtype=torch.float64)
        tolerance = max(1e-8, 1e-15 * position)
        torch.testing.assert_close(cos[0, 0, index], wanted.cos(), rtol=0.0, atol=tolerance)
        torch.testing.assert_close(sin[0, 0, index], wanted.sin(), rtol=0.0, atol=tolerance)
    torch.testing.assert_close(cos_and_sin(rotary, state, torch.float32)[3], sin.float(), rtol=0.0, atol=1e-6)


def scores(kind: str, query_at: int, key_at: Tensor) -> Tensor:
    """Inner products of one vector, turned as a query of a head of that kind and as a key at some positions."""
    rotary, vector = Rotary([kind], 8, 1.15), torch.randn(8, generator=torch.Generator().manual_seed(0)).double()
    of_query, _ = rotary.step({"position": torch.tensor([query_at])}, None, torch.float64)
    of_keys, _ = rotary.step({"position": key_at}, None, torch.float64)
    copies = vector.expand(len(key_at), 1, 8)
    return (of_query.turn(copies, copies)[0] * of_keys.turn(copies, copies)[1]).sum((-1, -2))


def test_turned_with_the_keys_a_query_meets_the_same_lag_at_every_position() -> None:
    lags = torch.arange(5)
    wanted = scores("with", 10, 10 - lags)
    torch.testing.assert_close(scores("with", 1_000_010, 1_000_010 - lags), wanted, rtol=0.0, atol=1e-8)
    assert wanted.argmax() == 0


def test_turned_against_the_keys_a_query_meets_earlier_keys_the_later_it_is() -> None:
    wanted = scores("against", 10, torch.tensor([8, 7, 6]))
    torch.testing.assert_close(scores("against", 11, torch.tensor([7, 6, 5])), wanted, rtol=0.0, atol=1e-10)
    assert not torch.allclose(scores("against", 11, torch.tensor([8, 7, 6])), wanted, atol=1e-3)


def test_heads_that_do_not_turn_are_left_as_they_are() -> None:
    rotary = Rotary(["none", "with", "against", "learned"], 6, 1.15)
    state = {"position": torch.tensor([5]), **angles(torch.full((1, 2, 1, 3), 0.125, dtype=torch.float64))}
    query_cos, query_sin, key_cos, key_sin = cos_and_sin(rotary, state, torch.float32)
    assert torch.equal(query_cos[0, 0], torch.ones(3))
    assert torch.equal(key_sin[0, 0], torch.zeros(3))
    assert torch.equal(query_sin[0, 1], key_sin[0, 1])
    assert torch.equal(query_sin[0, 2], -key_sin[0, 2])
    assert torch.equal(key_cos[0, 1], key_cos[0, 2])
    torch.testing.assert_close(key_sin[0, 3], torch.full((3,), 0.5**0.5))


def test_learned_rates_begin_as_the_fixed_ones_and_learn() -> None:
    fixed, learned = Rotary(["with"], 6, 1.15), Rotary(["learned"], 6, 1.15).double()
    zeros = torch.zeros(1, 2, 1, 3, dtype=torch.float64)
    state = {"position": torch.tensor([0]), "angle": zeros, "angle_rest": zeros}
    wanted, _ = fixed(state, 50, None, torch.float64)
    found, new = learned(state, 50, None, torch.float64)
    x = torch.randn(1, 50, 1, 6, dtype=torch.float64)
    for one, other in zip(found.turn(x, x), wanted.turn(x, x), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-4)
    (gradient,) = torch.autograd.grad(found.turn(x, x)[1].sum() + new["angle"].sum(), learned.rates)
    assert gradient[1].all()
    assert new["angle"].abs().max() <= 0.5


def learned_rotary() -> Rotary:
    """Two heads of three points, with rates that no float32 sum of them holds exactly."""
    torch.manual_seed(0)
    rotary = Rotary(["learned", "learned"], 6, None)
    with torch.no_grad():
        rotary.rates.add_(0.01 * torch.randn_like(rotary.rates))
    return rotary


def assert_turned_by(rotary: Rotary, state: dict[str, Tensor], turns: Tensor) -> None:
    """The next step of the state, and the first of a sequence from it, turn by ``turns`` [2, H, n], float64."""
    x = torch.zeros(1, 2, 6)
    x[..., :3] = 1.0  # points on the axis: their first halves become cosines, their second ones sines
    of_step = rotary.step(state, None, torch.float32)[0].turn(x, x)
    of_sequence = rotary(state, 1, None, torch.float32)[0].turn(x[:, None], x[:, None])
    angle = 2 * torch.pi * (turns - turns.round())
    for which in (0, 1):
        wanted = torch.cat([angle[which].cos(), angle[which].sin()], -1).float()
        torch.testing.assert_close(of_step[which][0], wanted, rtol=0.0, atol=1e-5)
        torch.testing.assert_close(of_sequence[which][0, 0], wanted, rtol=0.0, atol=1e-5)


@torch.no_grad()
def test_learned_angles_are_exact_after_twenty_thousand_steps_one_by_one() -> None:
    rotary, steps = learned_rotary(), 20_000
    start = angles(torch.zeros(1, 2, 2, 3, dtype=torch.float64))
    state = start
    for _ in range(steps):
        _, state = rotary.step(state, None, torch.float32)
    assert_turned_by(rotary, state, steps * rotary.rates.double())
    _, at_once = rotary(start, steps, None, torch.float32)
    for name, leaf in state.items():
        assert leaf.dtype == torch.float32
        torch.testing.assert_close(leaf, at_once[name], rtol=0.0, atol=1e-7)


@torch.no_grad()
def test_learned_angles_are_exact_at_step_ten_million() -> None:
    rotary, far = learned_rotary(), 10**7
    rates = rotary.rates.double()
    state = angles(far * rates.unsqueeze(0))
    assert_turned_by(rotary, state, far * rates)
    for _ in range(1000):  # steps go on as exactly from there
        _, state = rotary.step(state, None, torch.float32)
    assert_turned_by(rotary, state, (far + 1000) * rates)
    _, at_once = rotary(angles(torch.zeros(1, 2, 2, 3, dtype=torch.float64)), 10**6, None, torch.float32)
    assert_turned_by(rotary, at_once, 10**6 * rates)
    _, again = rotary.step(state, torch.tensor([True]), torch.float32)
    assert_turned_by(rotary, again, rates)  # a reset drops what was rounded off, too


@torch.no_grad()
def test_a_core_that_lived_step_by_step_goes_on_as_one_that_was_run_at_once() -> None:
    torch.manual_seed(0)
    core, steps = make_core("gated_delta", 6, turn="learned", heads=2, head_dim=6, convolution_taps=0), 20_000
    rotary = core.layers["layer_0"].labels.rotary
    rotary.rates.add_(0.01 * torch.randn_like(rotary.rates))
    _, state = core(torch.randn(1, 10, 6), core.initial_state(1))
    stepped = state["layer_0"].to_dict()
    for _ in range(steps):
        stepped.update(rotary.step(stepped, None, torch.float32)[1])
    at_once = {**state["layer_0"].to_dict(), **rotary(state["layer_0"], steps, None, torch.float32)[1]}
    inputs, reset = torch.randn(1, 40, 6), torch.zeros(1, 40, dtype=torch.bool)
    reset[0, 30] = True
    wanted, _ = core(inputs, TensorDict({"layer_0": TensorDict(at_once, [1])}, [1]), reset)
    found, state = [], TensorDict({"layer_0": TensorDict(stepped, [1])}, [1])
    for t in range(40):
        output, state = core.step(inputs[:, t], state, reset[:, t])
        found.append(output)
    torch.testing.assert_close(torch.stack(found, 1), wanted, rtol=0.0, atol=1e-5)


def test_the_gradient_of_a_learned_rate_is_the_time_since_the_reset_in_steps_and_in_a_sequence() -> None:
    rotary, reset = learned_rotary(), torch.zeros(1, 50, dtype=torch.bool)
    reset[0, 20] = True
    start = angles(torch.full((1, 2, 2, 3), 0.3, dtype=torch.float64))
    state = start
    for t in range(50):
        _, state = rotary.step(state, reset[:, t], torch.float32)
    for after in (state, rotary(start, 50, reset, torch.float32)[1]):
        (gradient,) = torch.autograd.grad(after["angle"].sum(), rotary.rates)
        assert (gradient == 30.0).all()


def test_a_network_memory_that_counts_its_chunks_may_turn_at_learned_rates() -> None:
    core = make_core("ttt_linear", 8, head_dim=8, turn="learned")  # its own `phase` is another thing
    inputs = torch.randn(2, 7, 8)
    wanted, _ = core(inputs, core.initial_state(2))
    state, found = core.initial_state(2), []
    for t in range(7):
        output, state = core.step(inputs[:, t], state)
        found.append(output)
    torch.testing.assert_close(torch.stack(found, 1), wanted, rtol=0.0, atol=1e-5)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="must be even, not 5"):
        Rotary(["with"], 5, 1.15)


def test_evenly_spaced_rates_make_keys_of_as_many_steps_as_they_are_wide_orthogonal() -> None:
    width = 16
    rotary = Rotary(["with"], width, None)
    turning, _ = rotary({"position": torch.tensor([12345])}, 2 * width, None, torch.float64)
    ones = torch.ones(1, 2 * width, 1, width, dtype=torch.float64)
    keys = turning.turn(ones, ones)[1][0, :, 0]
    products = keys @ keys.T / width
    exact = torch.eye(2 * width, dtype=torch.float64)
    lag = torch.arange(2 * width)
    exact[(lag[:, None] - lag[None, :]).abs() == width] = -1.0  # the key of 2 n steps ago, with its sign changed
    torch.testing.assert_close(products, exact, rtol=0.0, atol=1e-12)
