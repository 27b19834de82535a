"""The design space: each objective, retention and optimiser against its equation, token by token in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.memory import core_names, core_options, make_core
from lifelong.memory.design import Design

HEADS, KEY, VALUE, DIM, STEPS = 2, 4, 3, 6, 9
RESETS = torch.zeros(1, STEPS, dtype=torch.bool)
RESETS[0, [0, 5]] = True

DESIGNS: list[dict[str, Any]] = [
    {"objective": "dot_product", "retention": "none"},
    {"objective": "squared_error", "retention": "none", "read_gate": "none"},
    {"objective": "squared_error", "retention": "constant", "read_gate": "sigmoid"},
    {"objective": "squared_error", "retention": "per_channel", "read_norm": "none"},
    {"objective": "squared_error", "retention": "pull"},
    {"objective": "dot_product", "retention": "pull", "write_rate_max": 2.0},
    {"objective": "squared_error", "reset_state": "learned"},
    {"objective": "huber", "huber_threshold": 0.3},
    {"objective": "power", "power": 1.5},
    {"objective": "windowed_squared_error", "window": 3},
    {"objective": "squared_error", "pairs": 2, "write_rate_max": 2.0},
    {"objective": "squared_error", "optimiser": "implicit", "unit_keys": False, "retention": "none"},
    {"objective": "squared_error", "optimiser": "momentum"},
    {"objective": "huber", "optimiser": "momentum", "retention": "pull"},
    {"objective": "squared_error", "closed_loop": True},
    {"objective": "squared_error", "closed_loop": True, "retention": "pull"},
    {"objective": "huber", "closed_loop": True, "retention": "pull", "huber_threshold": 0.3},
    {"objective": "dot_product", "write_gate": "exponential", "unit_keys": False},
    {"objective": "dot_product", "write_gate": "exponential", "reset_state": "learned", "retention": "constant"},
    {"objective": "squared_error", "heads": ["counting", "plain"]},
    {"objective": "squared_error", "heads": ["counting", "rotary"], "retention": "pull"},
]


def build(options: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(0)
    common = {"heads": HEADS, "head_dim": KEY, "value_dim": VALUE, "convolution_taps": 0, "horizon_min": 3.0}
    core = make_core("gated_delta", DIM, **{**common, **options}).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return core


def bent(error: Tensor, design: Design) -> Tensor:
    if design.objective == "huber":
        return error * min(1.0, design.huber_threshold / float(error.norm()))
    if design.objective == "power":
        return error.sign() * error.abs() ** (design.power - 1.0)
    return error


def head_by_definition(layer: Any, design: Design, head: int, x: Tensor) -> Tensor:
    """What one head reads at each token: the equations of ``Design``, one pair after the other."""
    rule, kind = layer.rule, design.kinds[head]
    labels, _ = layer.labels(x, {"position": torch.zeros(1, dtype=torch.int64)}, RESETS)
    gates = [gate[0] for gate in labels.gates]
    rates, *gates = gates[1:] if design.read_gate != "none" else gates
    erases = design.objective != "dot_product" and not kind.counts
    learned = rule.reset_state.get("fast_weights")
    goal = rule.goal[head] if design.retention == "pull" else torch.zeros(VALUE, KEY).double()
    start = goal if learned is None else learned[head]
    horizon = design.horizons()[head]
    running = torch.zeros(VALUE, KEY).double()
    latest: list[tuple[Tensor, Tensor, Tensor]] = []
    memory, normaliser, readings = start, torch.zeros(KEY).double(), []
    for t in range(STEPS):
        query = labels.query[0, t, head]
        keys, values = (
            labels.key[0, t].view(-1, HEADS, KEY)[:, head],
            labels.value[0, t].view(-1, HEADS, VALUE)[:, head],
        )
        rate = rates[t].view(-1, HEADS)[:, head]
        rate = rate.exp() if design.write_gate == "exponential" else design.write_rate_max * rate.sigmoid()
        if RESETS[0, t]:
            memory, running, latest, normaliser = start, torch.zeros_like(running), [], torch.zeros(KEY).double()
            if learned is not None and design.write_gate == "exponential":
                memory, normaliser = start[:VALUE], start[VALUE]
        kept = torch.ones(KEY).double()
        if design.retention == "constant":
            kept = kept * rule.retention.constant[head].exp()
            torch.testing.assert_close(kept, (1.0 - 1.0 / horizon) * torch.ones(KEY).double(), rtol=0.0, atol=1e-6)
        elif design.retention != "none":
            kept = kept * gates[0][t].view(HEADS, -1)[head].sigmoid()
        before, memory, normaliser = memory, goal + kept * (memory - goal), normaliser * kept
        latest = [*latest, *zip(keys, values, rate, strict=True)]
        latest = latest[-design.window :] if design.objective == "windowed_squared_error" else latest[-design.pairs :]
        for k, v, b in latest:
            if design.optimiser == "implicit":
                b = b / (1.0 + b * k @ k)
            measured_at = memory
            if design.closed_loop:
                d = rule.feedback[head].sigmoid()
                measured_at, query = d * before, query - rule.correction[head] * d * k
            elif design.optimiser == "momentum":
                measured_at = before
            error = bent(v - measured_at @ k if erases else v, design)
            update = b * torch.outer(error, k)
            if design.optimiser == "momentum":
                running = gates[-1][t, head].sigmoid() * running + update
                update = running
            memory, normaliser = memory + update, normaliser + b * k
        read = memory @ query
        if design.write_gate == "exponential":
            read = read / max(abs(float(normaliser @ query)), 1.0)
        if kind.counts:
            read = 0.1 * read
        elif design.read_norm == "rms":
            read = read / (read.square().mean() + 1e-5).sqrt()
        readings.append(read)
    return torch.stack(readings)


@pytest.mark.parametrize("options", DESIGNS, ids=str)
@torch.no_grad()
def test_a_layer_computes_the_equations_of_the_design(options: dict[str, Any]) -> None:
    core, x = build(options), torch.randn(1, STEPS, DIM, generator=torch.Generator().manual_seed(1)).double()
    design = Design(**{"heads": HEADS, "head_dim": KEY, "value_dim": VALUE, "horizon_min": 3.0, **options})
    layer: Any = core.layers["layer_0"]  # type: ignore[index]
    readings = torch.cat([head_by_definition(layer, design, head, x) for head in range(HEADS)], -1)
    if design.read_gate != "none":
        gate = layer.labels.projection(layer.labels.norm(x[0]))
        first = HEADS * KEY * (1 + design.pairs) + HEADS * VALUE * design.pairs
        gate = gate[:, first : first + HEADS * VALUE]
        readings = readings * (gate.sigmoid() if design.read_gate == "sigmoid" else gate * gate.sigmoid())
    wanted = x[0] + layer.read_out.projection(readings)
    outputs, _ = core(x, core.initial_state(1), RESETS)
    torch.testing.assert_close(outputs[0], wanted, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "hubber"}, "objective must be one of dot_product, .*, not 'hubber'; did you mean 'huber'"),
        ({"turn": "wth"}, "turn must be one of none, with, against, learned, not 'wth'; did you mean 'with'"),
        ({"optimiser": "momentum", "pairs": 2}, "optimiser=momentum has .* with pairs=2; the nearest .*: pairs=1"),
        (
            {"write_gate": "exponential"},
            "with objective=squared_error; the nearest that has one: objective=dot_product",
        ),
        ({"objective": "huber", "optimiser": "implicit"}, "optimiser=implicit has no .* objective=squared_error"),
        ({"closed_loop": True, "objective": "dot_product"}, "closed_loop=true has no implementation"),
        ({"objective": "huber", "heads": ["counting"]}, "heads=counting has no .* with objective=huber"),
        ({"retention": "pull", "reset_state": "learned"}, "retention=pull has no .* with reset_state=learned"),
        ({"heads": []}, "at least one head"),
        ({"optimiser": "implicit", "heads": ["counting"]}, "optimiser=implicit has no .* with heads=counting"),
        ({"optimiser": "implicit", "closed_loop": True}, "optimiser=implicit has no .* with closed_loop=true"),
        ({"heads": ["plain*0"]}, "after the star comes how many"),
        ({"heads": ["rotary*²"]}, "after the star comes how many"),
        ({"power": 0.5}, "power must be 1 or more"),
        ({"huber_threshold": 0.0}, "huber_threshold must lie above 0"),
        ({"write_rate": 1.5}, "write_rate must lie between 0 and 1, not 1.5"),
        ({"write_rate_max": 3.0}, "write_rate_max must lie above 0 and be 2 at most"),
        ({"momentum": 1.0}, "momentum must lie between 0 and 1"),
        ({"key_map": "dpfp", "query_map": "silu"}, "query_map 'silu' makes queries 32 wide"),
        ({"head_dim": 5, "turn": "with"}, "head_dim must be even, not 5"),
    ],
    ids=str,
)
def test_what_has_no_meaning_or_no_implementation_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_core("gated_delta", 8, **options)


def test_an_exponential_gate_may_begin_with_any_weight_above_zero() -> None:
    core = make_core("mlstm", 8, heads=1, write_rate=1.5)
    layer = core.layers["layer_0"]  # type: ignore[index]
    assert layer.rule.gates()[0].bias.exp().item() == pytest.approx(1.5)
    with pytest.raises(ValueError, match="write_rate must lie above 0, not 0"):
        make_core("mlstm", 8, write_rate=0.0)


PARAMETRIC = [name for name in core_names() if "huber_threshold" in core_options(name)]


@pytest.mark.parametrize("name", PARAMETRIC)
def test_any_named_point_can_be_moved_by_one_word(name: str) -> None:
    changes = [{"feed_forward": 1.0}, {"key_map": "dpfp"}, {"turn": "with"}, {"read_norm": "none"}]
    for change in changes:
        core = make_core(name, 8, head_dim=4, **change)
        outputs, _ = core(torch.randn(2, 3, 8), core.initial_state(2))
        assert torch.isfinite(outputs).all()


def test_heads_of_one_kind_share_the_range_of_horizons_and_counting_ones_have_their_own() -> None:
    design = Design(heads=["counting", "rotary*3", "plain"], horizon_min=10.0, horizon_max=1000.0)
    assert [kind.counts for kind in design.kinds] == [False] * 4 + [True]
    assert design.turns == ("with", "with", "with", "none", "none")
    torch.testing.assert_close(design.horizons(), torch.tensor([10.0, 100.0, 1000.0, 100.0, 1.6e5]).double())


def test_channels_of_a_head_have_horizons_of_their_own() -> None:
    design = Design(heads=2, retention="per_channel", horizon_min=10.0, horizon_max=1000.0)
    torch.testing.assert_close(design.horizons(3), torch.tensor([10.0, 100.0, 1000.0] * 2).double())


def test_the_momentum_of_a_life_ends_with_it() -> None:
    core = build({"optimiser": "momentum"})
    x = torch.randn(1, 4, DIM).double()
    _, state = core(x, core.initial_state(1))  # type: ignore[operator]
    _, fresh = core(x[:, :1], core.initial_state(1))  # type: ignore[operator]
    _, after = core(x[:, :1], state, torch.tensor([[True]]))
    torch.testing.assert_close(after["layer_0", "momentum"], fresh["layer_0", "momentum"])
