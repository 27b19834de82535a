"""A state that does not belong to a core is refused in one line."""

from __future__ import annotations

import pytest

from lifelong.memory import core_names, make_core


@pytest.mark.parametrize("name", core_names())
def test_a_core_takes_its_own_state(name: str) -> None:
    core = make_core(name, 8)
    core.check_state(core.initial_state(3))


def test_the_state_of_another_core_or_of_other_options_is_named() -> None:
    gru, lstm = make_core("gru", 8), make_core("lstm", 8)
    words = r"not one of gru with its options: it lacks nothing, and what it has instead is cell \[1, 8\]$"
    with pytest.raises(ValueError, match=words):
        gru.check_state(lstm.initial_state(3))
    words = r"not one of softmax_window .* lacks layer_0\.keys \[64, 4, 32\], .* instead is hidden \[1, 8\]$"
    with pytest.raises(ValueError, match=words):
        make_core("softmax_window", 8).check_state(gru.initial_state(3))
    with pytest.raises(ValueError, match=r"lacks hidden \[1, 8\], and what it has instead is hidden \[1, 9\]"):
        gru.check_state(make_core("gru", 8, hidden=9).initial_state(3))
