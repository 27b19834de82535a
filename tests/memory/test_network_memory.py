"""What network memories and mesa promise beyond the contract of all cores."""

from __future__ import annotations

import pytest
import torch

from lifelong.memory import MemoryCore, make_core

NETWORKS = ["ttt_linear", "ttt_mlp", "titans_mlp", "atlas"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ttt_linear", {"model": "mpl"}, r"model must be one of matrix, mlp, not 'mpl'; did you mean 'mlp'\?"),
        ("ttt_linear", {"chunk": 0}, "chunk must be 1 or more, not 0"),
        ("ttt_linear", {"chunk": 16}, "write_rate must lie between 0 and 0.125, not 0.2"),
        ("titans_mlp", {"objective": "windowed_squared_error"}, "write_rate must lie between 0 and 0.125, not 0.2"),
        (
            "ttt_mlp",
            {"reset_state": "zero"},
            "with model=mlp: .*; the nearest that works: reset_state=learned",
        ),
        ("ttt_linear", {"reset_state": "zero"}, "together with inner_norm=true: .* or inner_norm=false"),
        (
            "atlas",
            {"key_map": "polynomial"},
            "keys 153 wide and values are 16; .*: inner_norm=false, or a key_map",
        ),
        (
            "ttt_linear",
            {"chunk": 16},
            r"between 0 and 0.125, not 0.2; the limit is .* / \(16 \* 1\)",
        ),
        ("atlas", {"momentum": 1.0}, "momentum must lie between 0 and 1, not 1.0"),
        ("titans_mlp", {"horizon_min": 1.0}, "horizons need 1 < horizon_min <= horizon_max"),
        ("mesa", {"regulariser": 0.2}, "regulariser must lie above 0.25, not 0.2"),
        ("mesa", {"retention": "pull"}, "retention must be one of none, scalar, not 'pull'"),
        ("mesa", {"implementation": "triton"}, "implementation must be one of auto, reference, chunked, not 'triton'"),
        ("mesa", {"convolution_taps": 1}, r"convolution_taps must be 0 \(no convolution\) or 2 or more, not 1"),
        ("mesa", {"heads": 0}, "heads must be 1 or more, not 0"),
    ],
)
def test_what_has_no_implementation_is_named(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_core(name, 8, **options)


@pytest.mark.parametrize(
    ("name", "options", "floats"),
    [
        # Weights and base, the biases in the last column; the convolution's tail.
        ("ttt_linear", {}, 2 * 4 * 32 * 33 + 3 * 8),
        ("ttt_linear", {"chunk": 1}, 4 * 32 * 33 + 3 * 8),
        ("ttt_mlp", {}, 2 * 4 * (32 * 17 + 16 * 33) + 3 * 8),
        ("titans_mlp", {}, 3 * 4 * (32 * 17 + 16 * 33) + 3 * 8),
        ("atlas", {"chunk": 1}, 2 * 4 * (32 * 17 + 16 * 33) + 3 * 4 * 33 + 3 * 8),
        ("mesa", {}, 2 * 4 * 16 * 16 + 3 * 8),
    ],
)
def test_a_state_holds_what_its_options_need_and_no_more(name: str, options: dict[str, object], floats: int) -> None:
    state = make_core(name, 8, **options).initial_state(1)
    assert sum(leaf.numel() for leaf in state.values(True, True) if leaf.is_floating_point()) == floats


def bound(name: str, **options: object) -> MemoryCore:
    """One head that stores what it sees: keys, values and queries are thirds of the input, untouched."""
    torch.manual_seed(0)
    core = make_core(name, 24, heads=1, head_dim=8, convolution_taps=0, key_map="identity", read_gate="none", **options)
    layer = core.layers["layer_0"]
    layer.labels.norm = torch.nn.Identity()
    with torch.no_grad():
        layer.labels.projection.weight[:24] = torch.eye(24)
        layer.read_out.projection.weight.copy_(torch.eye(24)[:, :8])
        layer.read_out.projection.bias.zero_()
    return core


@pytest.mark.parametrize("name", [*NETWORKS, "mesa"])
def test_what_was_written_is_read_back(name: str) -> None:
    """Three pairs, written in turns for a while, and then asked for: each reading is nearest to its own value."""
    core = bound(name, write_rate=0.45)
    keys = torch.eye(8)[:3]
    # At right angles, and of mean zero, as the layer norm wants them.
    values = torch.tensor([[1.0, -1.0] * 4, [1.0, 1.0, -1.0, -1.0] * 2, [1.0, -1.0, -1.0, 1.0] * 2])
    tokens = torch.cat([keys, keys, values], 1).repeat(24, 1)
    with torch.no_grad():
        outputs, _ = core(tokens[None], core.initial_state(1))
    answers = (outputs - tokens)[0, -3:, :8]
    closeness = torch.nn.functional.cosine_similarity(answers[:, None], values[None], dim=-1)
    assert closeness.argmax(1).tolist() == [0, 1, 2]
    assert closeness.diagonal().min() > 0.5


@pytest.mark.parametrize("name", [*NETWORKS, "mesa"])
def test_it_stays_finite_on_a_long_life_of_the_same_frame(name: str) -> None:
    """Every token alike, every write overlapping all others: where an unbounded step runs away."""
    torch.manual_seed(0)
    core = make_core(name, 8, heads=2, head_dim=8)
    state, frame = core.initial_state(2), torch.randn(2, 1, 8).expand(-1, 250, -1)
    with torch.no_grad():
        for _ in range(4):
            outputs, state = core(frame, state)
    assert bool(outputs.isfinite().all())
    assert all(float(leaf.abs().max()) < 1e3 for leaf in state.values(True, True))
