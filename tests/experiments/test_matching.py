"""Cores brought to the same size."""

from __future__ import annotations

import pytest

from lifelong.experiments.matching import match
from lifelong.memory import core_names, make_core

DIM = 16
REMEMBERING = [name for name in core_names() if name != "none"]


def parameters(core) -> int:
    return sum(parameter.numel() for parameter in core.parameters())


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_core_is_matched_to_a_state_size_or_says_by_how_much_it_misses(name):
    matched = match(name, {}, DIM, state_bytes=2048)
    assert make_core(name, DIM, **matched.options).state_bytes() == matched.state_bytes
    assert abs(matched.state_bytes / 2048 - 1) <= 0.1 or "asked for" in matched.note, str(matched)


def test_the_width_found_is_the_nearest_there_is():
    # 4 heads of n x n and a tail of 3 x 16 floats: 1,060 at n = 16 is nearer to 1,000 than 948 at n = 15
    assert match("gated_delta", {}, DIM, state_bytes=4 * 1000).options["head_dim"] == 15
    assert match("gated_delta", {}, DIM, state_bytes=4 * 1030).options["head_dim"] == 16
    assert match("lstm", {}, DIM, state_bytes=4 * 100).options["hidden"] == 50


@pytest.mark.parametrize("name", ["gated_delta", "lstm", "gru", "none"])
def test_parameters_can_be_matched_too(name):
    matched = match(name, {}, DIM, parameters=20_000)
    assert parameters(make_core(name, DIM, **matched.options)) == matched.parameters
    assert matched.parameters == pytest.approx(20_000, rel=0.03)


def test_other_options_stay_as_given():
    matched = match("gated_delta", {"heads": 1, "convolution_taps": 0}, DIM, state_bytes=4 * 256)
    assert matched.options == {"heads": 1, "convolution_taps": 0, "head_dim": 16}
    assert matched.state_bytes == 4 * 256
    assert not matched.note


def test_what_cannot_be_matched_says_so():
    assert match("none", {}, DIM, state_bytes=4096).note == "it has no bytes of state to match"
    # The tail of the convolution alone is larger.
    assert "above the 40 bytes of state asked for" in match("gated_delta", {}, DIM, state_bytes=40).note
    for wrong in ({}, {"state_bytes": 4, "parameters": 4}, {"state_bytes": 0}):
        with pytest.raises(ValueError, match="match"):
            match("lstm", {}, DIM, **wrong)
    with pytest.raises(ValueError, match="no option"):
        match("lstm", {"hiden": 3}, DIM, state_bytes=2048)
