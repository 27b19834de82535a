import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.envs.schedules import (
    Combined,
    Constant,
    Hazard,
    Markov,
    OrnsteinUhlenbeck,
    PiecewiseLinear,
    ReflectedWalk,
    Schedule,
    Sine,
    Square,
    make_schedule,
    standard_normal,
)

ALL: list[Schedule] = [
    Constant(2.5),
    Square(-1.0, 3.0, period=7),
    Sine(1.0, 2.0, period=10),
    PiecewiseLinear([0, 4, 10], [0.0, 1.0, -1.0]),
    PiecewiseLinear([0, 4, 10], [0.0, 1.0, -1.0], cycle=True, random_phase=True),
    Hazard(0.0, 2.0, hazard=0.1),
    Markov(5, hazard=0.2),
    OrnsteinUhlenbeck(1.0, theta=0.05, sigma=0.3),
    ReflectedWalk(-1.0, 2.0, deviation=0.2),
    Combined([Sine(0.0, 1.0, period=50), OrnsteinUhlenbeck(0.0, theta=0.1, sigma=0.1)]),
]
every_schedule = pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.name)


def unroll(schedule: Schedule, lives: int, steps: int, seed: int = 0) -> Tensor:
    """Values [T, B]."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(width: int) -> Tensor:
        return torch.rand(lives, width, generator=generator, dtype=torch.float64)

    state = schedule.begin(uniform(schedule.births))
    values = []
    for _ in range(steps):
        values.append(schedule.value(state))
        state = schedule.advance(state, uniform(schedule.draws))
    return torch.stack(values)


@every_schedule
def test_values_are_float64_per_life_and_the_state_keeps_its_size(schedule: Schedule) -> None:
    uniform = torch.rand(6, schedule.births, dtype=torch.float64)
    state = schedule.begin(uniform)
    for _ in range(30):
        after = schedule.advance(state, torch.rand(6, schedule.draws, dtype=torch.float64))
        assert after.shape == state.shape
        assert after.dtype == torch.float64
        value = schedule.value(after)
        assert (value.shape, value.dtype) == ((6,), torch.float64)
        assert bool(value.isfinite().all())
        state = after


@every_schedule
def test_a_schedule_is_a_pure_function_of_its_state_and_the_numbers(schedule: Schedule) -> None:
    state = schedule.begin(torch.rand(6, schedule.births, dtype=torch.float64))
    kept = state.clone()
    uniform = torch.rand(6, schedule.draws, dtype=torch.float64)
    first, second = schedule.advance(state, uniform), schedule.advance(state, uniform)
    assert torch.equal(first, second)
    assert torch.equal(state, kept)
    assert torch.equal(schedule.advance(state[2:3], uniform[2:3]), first[2:3])


def test_a_constant_stays() -> None:
    assert unroll(Constant(2.5), 3, 5).eq(2.5).all()


def test_a_square_is_high_in_the_first_half_of_its_period_and_lives_differ_in_phase() -> None:
    values = unroll(Square(-1.0, 0.1, period=6, random_phase=False), 1, 12)[:, 0]
    assert values.tolist() == [0.1, 0.1, 0.1, -1.0, -1.0, -1.0] * 2
    phased = unroll(Square(0.0, 1.0, period=6), 600, 6)
    assert phased.sum(0).eq(3).all()
    assert phased[0].mean().item() == pytest.approx(0.5, abs=0.07)


def test_a_sine_is_the_sine() -> None:
    values = unroll(Sine(1.0, 2.0, period=8, random_phase=False), 1, 16)[:, 0]
    expected = [1 + 2 * math.sin(2 * math.pi * t / 8) for t in range(16)]
    assert values.tolist() == pytest.approx(expected)


def test_a_period_longer_than_float32_can_count_is_kept_exactly() -> None:
    schedule = Square(0.0, 1.0, period=2**40, random_phase=False)
    state = torch.tensor([[2.0**39 - 1]], dtype=torch.float64)
    assert schedule.value(state).item() == 1.0
    assert schedule.value(schedule.advance(state, state[:, :0])).item() == 0.0


def test_piecewise_linear_goes_through_its_points_and_stays_or_cycles() -> None:
    expected = [0.0, 0.5, 1.0, 0.0, -1.0]
    stays = unroll(PiecewiseLinear([0, 2, 4], [0.0, 1.0, -1.0]), 1, 8)[:, 0]
    assert stays.tolist() == [*expected, -1.0, -1.0, -1.0]
    cycles = unroll(PiecewiseLinear([0, 2, 4], [0.0, 1.0, -1.0], cycle=True), 1, 8)[:, 0]
    assert cycles.tolist() == expected[:4] * 2


def test_a_hazard_changes_at_its_rate_to_uniform_values() -> None:
    values = unroll(Hazard(1.0, 3.0, hazard=0.05), 400, 500)
    changed = (values[1:] != values[:-1]).double()
    assert changed.mean().item() == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / changed.numel()))
    fresh = values[1:][changed.bool()]
    assert fresh.mean().item() == pytest.approx(2.0, abs=3 * 2 / math.sqrt(12 * len(fresh)))
    assert float(fresh.min()) >= 1.0
    assert float(fresh.max()) < 3.0


def test_markov_regimes_recur_uniformly_and_a_change_is_always_to_another_one() -> None:
    values = unroll(Markov(4, hazard=0.1), 400, 500)
    changed = (values[1:] != values[:-1]).double()
    assert changed.mean().item() == pytest.approx(0.1, abs=3 * math.sqrt(0.09 / changed.numel()))
    step = (values[1:] - values[:-1])[changed.bool()].remainder(4)
    shares = step.long().bincount(minlength=4) / len(step)
    assert shares.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.015)


def test_an_ornstein_uhlenbeck_process_has_its_stationary_law_and_correlation_from_the_first_step() -> None:
    schedule = OrnsteinUhlenbeck(1.0, theta=0.2, sigma=0.5)
    values = unroll(schedule, 20_000, 11)
    for t in (0, 10):
        assert values[t].mean().item() == pytest.approx(1.0, abs=3 * schedule.deviation / math.sqrt(20_000))
        assert values[t].std().item() == pytest.approx(0.5 / math.sqrt(0.4), rel=0.02)
    correlation = torch.corrcoef(values[[0, 10]])[0, 1].item()
    assert correlation == pytest.approx(math.exp(-2.0), abs=0.025)


def test_a_slow_ornstein_uhlenbeck_process_still_moves() -> None:
    values = unroll(OrnsteinUhlenbeck(0.0, theta=1e-17, sigma=1.0), 20_000, 2)
    assert (values[1] - values[0]).std().item() == pytest.approx(1.0, rel=0.02)


def test_a_reflected_walk_stays_uniform_between_its_ends() -> None:
    values = unroll(ReflectedWalk(-1.0, 2.0, deviation=0.7), 20_000, 30)
    for t in (0, 29):
        counts = torch.histc(values[t], bins=10, min=-1, max=2)
        assert float(((counts - 2000) ** 2 / 2000).sum()) < 27.9  # 99.9 % quantile, 9 degrees of freedom
    assert float(values.min()) >= -1.0
    assert float(values.max()) <= 2.0
    step = ReflectedWalk(0.0, 100.0, deviation=0.7)
    far = torch.full((20_000, 1), 50.0, dtype=torch.float64)
    moved = step.advance(far, torch.rand(20_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert (moved - far).std().item() == pytest.approx(0.7, rel=0.02)


def test_a_composite_is_the_sum_or_the_product_of_its_parts_with_numbers_of_their_own() -> None:
    parts = [Hazard(0.0, 1.0, hazard=0.5), Constant(2.0), Hazard(0.0, 1.0, hazard=0.5)]
    uniform = torch.rand(5, 2, dtype=torch.float64)
    total, product = Combined(parts), Combined(parts, combine="product")
    assert torch.equal(total.value(total.begin(uniform)), uniform[:, 0] + 2.0 + uniform[:, 1])
    assert torch.equal(product.value(product.begin(uniform)), uniform[:, 0] * 2.0 * uniform[:, 1])
    values = unroll(total, 2000, 2)
    assert values[1].var().item() == pytest.approx(2 / 12, rel=0.1)  # independent parts: variances add


def test_normal_numbers_are_standard_normal() -> None:
    sample = standard_normal(torch.rand(50_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert sample.shape == (50_000, 2)
    assert sample.mean().item() == pytest.approx(0, abs=0.01)
    assert sample.var().item() == pytest.approx(1, abs=0.02)
    assert (sample.abs() < 1.96).double().mean().item() == pytest.approx(0.95, abs=0.003)
    assert torch.corrcoef(sample.T)[0, 1].item() == pytest.approx(0, abs=0.015)
    assert standard_normal(torch.tensor([[0.0, 0.0]])).item() == 0.0  # the ends of [0, 1) stay finite


def test_schedules_are_made_by_name() -> None:
    assert make_schedule({"name": "square", "low": 0.0, "high": 1.0, "period": 10}) == Square(0.0, 1.0, 10)
    made = make_schedule({"name": "composite", "parts": [{"name": "constant", "level": 1.0}], "combine": "product"})
    assert isinstance(made, Combined)
    assert made.parts == [Constant(1.0)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "sqare"}, "unknown schedule 'sqare'; known: .*; did you mean 'square'?"),
        ({"name": "square", "low": 0.0, "high": 1.0, "perod": 3}, "has no option 'perod'; .*; did you mean 'period'?"),
        ({"name": "square", "low": 0.0, "high": 1.0}, "schedule 'square': missing 1 required .* 'period'"),
        ({"name": "square", "low": 1.0, "high": 1.0, "period": 3}, "high=1.0 .* allowed: a finite number above 1"),
        ({"name": "sine", "mean": 0.0, "amplitude": math.nan, "period": 3}, "amplitude=nan is not allowed"),
        ({"name": "sine", "mean": 0.0, "amplitude": 1.0, "period": 2**54}, "period=18014398509481984 is not allowed"),
        ({"name": "hazard", "low": 0.0, "high": 1.0, "hazard": 2}, "hazard: hazard=2 is no probability"),
        ({"name": "markov", "regimes": 1, "hazard": 0.1}, "markov: regimes=1 is not allowed"),
        ({"name": "ornstein_uhlenbeck", "mean": 0.0, "theta": 0.0, "sigma": 1.0}, "theta=0.0 is not allowed"),
        ({"name": "piecewise_linear", "times": [0, 5, 3], "values": [0, 1, 2]}, r"times=\[0, 5, 3\] are not allowed"),
        ({"name": "piecewise_linear", "times": [0, 5], "values": [0]}, "2 times and 1 values"),
        ({"name": "composite", "parts": []}, r"parts=\[\] is not allowed"),
        ({"name": "composite", "parts": [{"name": "constant"}], "combine": "mean"}, "allowed: sum, product"),
    ],
)
def test_wrong_schedules_are_named_with_what_is_allowed(config: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_schedule(config)
