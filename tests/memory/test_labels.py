"""Labels against the equations of their docstring."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.memory.feature_maps import FEATURE_MAPS
from lifelong.memory.labels import Gate, LabelDesign, Labels, TokenLabels

DIM, LIVES, STEPS = 6, 3, 7
RESET = torch.zeros(LIVES, STEPS, dtype=torch.bool)
RESET[1, [0, 4]] = True
RESET[2, 2:4] = True

DESIGNS: list[dict[str, Any]] = [
    {"key_map": "silu", "convolution_taps": 3},
    {"key_map": "silu", "query_map": "elu_plus_one"},
    {"key_map": "identity", "turns": ("none", "with")},
    {"key_map": "dpfp", "pairs": 2, "turns": "against", "convolution_taps": 2},
    {"key_map": "polynomial", "unit_keys": False},
    {"key_map": "random_fourier", "turns": ("learned", "with"), "pairs": 2},
    {"key_map": "squared_relu", "unit_keys": False, "turns": "learned"},
]


def build(options: dict[str, Any]) -> TokenLabels:
    torch.manual_seed(0)
    made = TokenLabels(DIM, LabelDesign(heads=2, key_dim=4, value_dim=3, **options), [Gate(5), Gate(2, torch.ones(2))])
    made = made.double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def initial(made: TokenLabels) -> dict[str, Tensor]:
    state = {name: torch.zeros(LIVES, *shape, dtype=torch.float64) for name, shape in made.shapes().items()}
    return {**state, **{name: torch.zeros(LIVES, dtype=torch.int64) for name in made.counters()}}


def inputs() -> Tensor:
    return torch.randn(LIVES, STEPS, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tensors(labels: Labels, new: dict[str, Tensor]) -> list[Tensor]:
    return [*labels[:3], *labels.gates, *(new[name] for name in sorted(new))]


def rotated(vector: Tensor, angles: Tensor) -> Tensor:
    n = len(angles)
    points = torch.complex(vector[:n], vector[n:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([points.real, points.imag])


@pytest.mark.parametrize("options", DESIGNS, ids=str)
def test_labels_are_what_the_docstring_says(options: dict[str, Any]) -> None:
    made, x, pairs = build(options), inputs(), options.get("pairs", 1)
    found, _ = made(x, initial(made), RESET)
    turns = options.get("turns", "none")
    turns = (turns, turns) if isinstance(turns, str) else turns
    for life in range(LIVES):
        life_start = 0
        for t in range(STEPS):
            life_start = t if RESET[life, t] else life_start
            h = made.norm(x[life, t])
            if made.convolution is not None:
                taps = made.convolution.taps
                seen = [s for s in range(t - taps + 1, t + 1) if s >= life_start]
                h = sum(made.convolution.weight[taps - 1 - (t - s)] * made.norm(x[life, s]) for s in seen)
            q, k, v, gate, rate = made.projection(h).split([8, 8 * pairs, 6 * pairs, 5, 2])
            assert torch.allclose(found.gates[0][life, t], gate, atol=1e-12)
            assert torch.allclose(found.gates[1][life, t], rate, atol=1e-12)
            assert torch.allclose(found.value[life, t].flatten(), v, atol=1e-12)
            query, key = found.query[life, t], found.key[life, t].view(pairs, 2, -1)
            for head, turn in enumerate(turns):
                mine = [made.query_map(q.view(2, 4)[head])]
                mine += [made.key_map(k.view(pairs, 2, 4)[pair, head]) for pair in range(pairs)]
                if options.get("unit_keys", True):
                    mine = [z / (z.square().sum() + 1e-6).sqrt() for z in mine]
                else:
                    mine[1:] = [z / len(z) ** 0.5 for z in mine[1:]]
                if turn != "none":
                    points = len(mine[0]) // 2
                    w = torch.pi * (torch.arange(points, dtype=torch.float64) + 0.5) / points
                    rates = [-w if turn == "against" else w] + [w] * pairs
                    if turn == "learned":
                        index = [head for head, turn in enumerate(turns) if turn == "learned"].index(head)
                        learned = 2 * torch.pi * made.rotary.rates[:, index]
                        rates = [learned[0]] + [learned[1]] * pairs
                    mine = [rotated(z, (t - life_start) * rate) for z, rate in zip(mine, rates, strict=True)]
                assert torch.allclose(query[head], mine[0], atol=1e-10)
                for pair in range(pairs):
                    assert torch.allclose(key[pair, head], mine[1 + pair], atol=1e-10)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("options", DESIGNS, ids=str)
def test_steps_and_the_sequence_make_the_same_labels(options: dict[str, Any], gradients: bool) -> None:
    made, x = build(options), inputs()
    whole = tensors(*made(x, initial(made), RESET))
    with torch.set_grad_enabled(gradients):
        sequence = tensors(*made(x, initial(made), RESET))
        state, steps = initial(made), []
        for t in range(STEPS):
            labels, state = made.step(x[:, t], state, RESET[:, t])
            steps.append(labels)
    stacked = [torch.stack([labels[i] for labels in steps], 1) for i in range(3)]
    stacked += [torch.stack([labels.gates[i] for labels in steps], 1) for i in range(2)]
    for other in (sequence, [*stacked, *(state[name] for name in sorted(state))]):
        for a, b in zip(whole, other, strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=1e-12)


def test_gates_with_a_bias_begin_as_that_bias_whatever_the_token_is() -> None:
    made = TokenLabels(DIM, LabelDesign(2, 4, 3), [Gate(5), Gate(2, torch.tensor([0.5, -1.0])), Gate(1)])
    free, fixed, last = made(torch.randn(LIVES, STEPS, DIM), {}, None)[0].gates
    assert torch.equal(fixed, torch.tensor([0.5, -1.0]).expand(LIVES, STEPS, 2))
    assert free.std() > 0.0
    assert last.std() > 0.0


def test_labels_need_no_state_where_nothing_looks_back() -> None:
    made = TokenLabels(DIM, LabelDesign(2, 4, 3))
    assert made.shapes() == {}
    assert made.counters() == []


@pytest.mark.parametrize("key_map", FEATURE_MAPS)
def test_maps_that_widen_keys_widen_queries_too(key_map: str) -> None:
    made = TokenLabels(DIM, LabelDesign(2, 4, 3, key_map=key_map))
    labels, _ = made(torch.randn(LIVES, STEPS, DIM), {}, None)
    assert labels.query.shape == labels.key.shape == (LIVES, STEPS, 2, made.design.key_width)


def test_maps_of_different_width_are_refused() -> None:
    with pytest.raises(ValueError, match="query_map 'identity' makes queries 4 wide and key_map 'dpfp' keys 16"):
        TokenLabels(DIM, LabelDesign(2, 4, 3, key_map="dpfp", query_map="identity"))
