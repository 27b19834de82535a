"""The softmax cores against the slow definition of their attention, and what each of them cannot do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.memory import LifeTooLong, MemoryCore, make_core
from lifelong.memory.attention_cache import Timeline
from lifelong.memory.softmax import SoftmaxLayer
from lifelong.memory.softmax_evicting import EvictingCache

DIM, HEADS, WIDTH = 6, 2, 4
SIZES: dict[str, Any] = {"heads": HEADS, "head_dim": WIDTH, "convolution_taps": 0}
CORES: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {"capacity": 12}),
    ("softmax_window", {"window": 3}),
    ("softmax_evicting", {"slots": 4, "recent": 2}),
    ("softmax_evicting", {"slots": 3, "recent": 3}),
]
RESET = torch.zeros(3, 11, dtype=torch.bool)
RESET[1, [0, 7]] = RESET[2, [1, 2]] = True


def build(name: str, **options: Any) -> MemoryCore:
    torch.manual_seed(0)
    core = make_core(name, DIM, **SIZES, **options).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(2.0)  # attention far from uniform
    return core


def inputs_of(steps: int, lives: int = 3) -> Tensor:
    return torch.randn(lives, steps, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def turned(vector: Tensor, position: int) -> Tensor:
    """Points (x_i, x_{i + n}) as complex numbers times exp(i p pi / 2^i)."""
    rates = math.pi / 2.0 ** torch.arange(WIDTH // 2, dtype=torch.float64)
    points = torch.complex(vector[: WIDTH // 2], vector[WIDTH // 2 :]) * torch.exp(1j * position * rates)
    return torch.cat([points.real, points.imag])


def by_definition(core: MemoryCore, inputs: Tensor, reset: Tensor) -> Tensor:
    """One head, one step, one pair at a time."""
    layer = core.layers[0]
    assert isinstance(layer, SoftmaxLayer)
    outputs = []
    for life, row in enumerate(inputs):
        position, held = 0, [[] for _ in range(HEADS)]  # per head: [key, value, attention received]
        for t, x in enumerate(row):
            if reset[life, t]:
                position, held = 0, [[] for _ in range(HEADS)]
            query, key, value = layer.projection(layer.norm(x)).view(3, HEADS, WIDTH)
            read = []
            for head, pairs in enumerate(held):
                pairs.append([turned(key[head], position), value[head], 0.0])
                scores = torch.stack([turned(query[head], position) @ pair[0] for pair in pairs]) / math.sqrt(WIDTH)
                weights = scores.softmax(0)
                read.append(sum(weight * pair[1] for weight, pair in zip(weights, pairs, strict=True)))
                for weight, pair in zip(weights, pairs, strict=True):
                    pair[2] += weight.item()
                forget(core, pairs)
            outputs.append(x + layer.output_projection(torch.cat(read)))
            position += 1
    return torch.stack(outputs).view_as(inputs)


def forget(core: Any, pairs: list[list[Any]]) -> None:
    """Drop what the core drops, after a step."""
    if hasattr(core, "window") and len(pairs) > core.window:
        del pairs[0]
    if hasattr(core, "slots") and len(pairs) > core.slots:
        received = [pair[2] for pair in pairs[: len(pairs) - core.recent]]
        del pairs[received.index(min(received))]


@pytest.mark.parametrize(("name", "options"), CORES, ids=str)
def test_it_is_the_attention_of_the_definition_in_values_and_gradients(name: str, options: dict[str, Any]) -> None:
    core, inputs = build(name, **options), inputs_of(11).requires_grad_()
    found, wanted = core(inputs, core.initial_state(3), RESET)[0], by_definition(core, inputs, RESET)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-12)
    weights = torch.randn_like(found)
    sources = [inputs, *core.parameters()]
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), sources) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-10)


def test_the_evictions_of_a_hand_worked_example() -> None:
    # Two slots, the newest one safe. Scores are log 1 or log 3, so that weights are quarters and halves.
    one, three = 0.0, math.log(3.0)
    scores = torch.tensor([[0, 0, one, one, one], [0, 0, three, one, one], [0, 0, one, three, one]])
    timeline = Timeline.of(torch.zeros(1, dtype=torch.int64), None, 3)
    kept = EvictingCache(timeline, slots=2, recent=1).keep(scores[None, None], torch.zeros(1, 1, 2))
    # Step 0: received (1). Step 1: weights 3/4, 1/4, received (1.75, 0.25), two are held. Step 2: three are held,
    # weights 1/5, 3/5, 1/5, received (1.95, 0.85, 0.2); the newest is safe, so step 1 goes.
    assert kept.visible[0, 0].long().tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert kept.alive[0, 0].long().tolist() == [0, 0, 1, 0, 1]
    torch.testing.assert_close(kept.received[0, 0], torch.tensor([0.0, 0.0, 1.95, 0.85, 0.2]))


def test_a_life_that_outgrows_the_capacity_is_an_error_that_names_life_and_step() -> None:
    core, inputs = build("softmax", capacity=5), inputs_of(9)
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[0, 4] = reset[1, 4] = reset[2, 2] = True  # lives of 4 and 5 steps, and of 2 and 7
    with pytest.raises(LifeTooLong, match=r"life 2 does not fit: its step 6 is one more than the capacity of 5 steps"):
        core(inputs, core.initial_state(3), reset)
    reset[2, 5] = True
    _, state = core(inputs, core.initial_state(3), reset)
    assert state["life_step"].tolist() == [5, 5, 4]
    with pytest.raises(LifeTooLong, match=r"life 0 does not fit: its step 6 "):
        core.step(inputs[:, 0], state)
    core.step(inputs[:, 0], state, torch.tensor([True, True, False]))


def test_the_bytes_that_a_life_needs_grow_with_it_in_softmax_alone() -> None:
    per_step = 2 * HEADS * WIDTH * 8
    softmax = build("softmax", capacity=10)
    assert softmax.state_bytes() == softmax.state_bytes_at(10) == 8 + 10 * per_step
    assert softmax.state_bytes_at(10**6) == 8 + 10**6 * per_step
    for name, options in CORES[1:]:
        core = build(name, **options)
        assert core.state_bytes_at(10**6) == core.state_bytes() == core.state_bytes_at(1)


@pytest.mark.parametrize(("name", "options"), [("softmax_window", {"window": 4}), ("gtrxl", {"memory_steps": 4})])
def test_what_left_the_window_has_no_weight_at_all(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    core, inputs = make_core(name, DIM, **options).double(), inputs_of(9, 1).requires_grad_()
    outputs, _ = core(inputs, core.initial_state(1))
    (gradient,) = torch.autograd.grad(outputs[0, -1].sum(), inputs)
    taps = 3 if name == "softmax_window" else 0  # the convolution in front reaches further back
    assert not gradient[0, : 4 - taps].any()
    assert gradient[0, 4:].any(1).all()


def test_angles_are_exact_after_ten_million_steps() -> None:
    core, inputs = build("softmax_window", window=5).float(), inputs_of(20).float()
    late = core.initial_state(3)
    late["life_step"] += 10**7
    (young, _), (old, state) = core(inputs, core.initial_state(3)), core(inputs, late)
    # What was in the cache of the old life, zeros, has left it after the window.
    torch.testing.assert_close(old[:, 5:], young[:, 5:], rtol=0.0, atol=1e-5)
    assert state["life_step"].tolist() == [10**7 + 20] * 3


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("softmax", {"capacity": 0}, "capacity must be 1 or more, not 0"),
        ("softmax", {"head_dim": 5}, "must be even, not 5"),
        ("softmax", {"rotary_ratio": 1.0}, "rotary_ratio must lie above 1, not 1.0"),
        ("softmax_window", {"windw": 3}, r"no option 'windw'; .*did you mean 'window'\?"),
        ("softmax_evicting", {"slots": 4, "recent": 5}, "recent=5 must not exceed slots=4"),
        ("gtrxl", {"feed_forward": 0.0}, "feed_forward=0.0 leaves no hidden unit at dim=6"),
    ],
    ids=str,
)
def test_bad_options_are_refused_in_one_line(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        make_core(name, DIM, **options)
    assert "\n" not in str(caught.value)
