"""A wrong argument of a rule of its own raises a ValueError that names it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lifelong.kernels import (
    MesaState,
    delta_product_attention,
    mesa_attention,
    mlp_memory,
    mlstm_attention,
    normalised_attention,
    replay_window,
)

ROWS = torch.full((1, 3, 2), 0.5)
TOKENS = torch.ones(1, 3, 2, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": None}, "query must be"),
        ({"key": None}, "key must be"),
        ({"regulariser": None}, "regulariser must be"),
        ({"regulariser": torch.zeros(2, 4)}, "regulariser must be > 0, got 0"),
        ({"regulariser": torch.ones(2, 4).double()}, "regulariser must be torch.float32"),
        ({"iterations": 0}, "iterations must be"),
        ({"iterations": 2.0}, "iterations must be"),
        ({"iterations": 3, "implementation": "reference"}, "iterations must be None"),
        ({"initial_state": torch.zeros(1, 2, 4, 4)}, "initial_state must be a MesaState"),
        ({"initial_state": MesaState(torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4).double())}, "initial_state.keys"),
    ],
)
def test_mesa_names_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    good = {"query": TOKENS, "key": TOKENS, "value": TOKENS, "write_rate": ROWS, "regulariser": torch.ones(2, 4)}
    mesa_attention(**good)
    with pytest.raises(ValueError, match=message):
        mesa_attention(**(good | changes))


LAYER = (torch.ones(2, 4, 4),)
PLAIN = mlp_memory(TOKENS, TOKENS, TOKENS, ROWS, LAYER).state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": None}, "query must be"),
        ({"key": None}, "key must be"),
        ({"value": TOKENS.double()}, "value must be of the precision"),
        ({"chunk": 2.0}, "chunk must be"),
        ({"newton_schulz": -1}, "newton_schulz must be"),
        ({"newton_schulz": 1.5}, "newton_schulz must be"),
        ({"initial_state": PLAIN, "momentum": ROWS}, "initial_state.momentum must be of 1 layers"),
        ({"initial_state": (LAYER, LAYER, (), None)}, "initial_state must be an MLPMemoryState"),
        ({"initial_state": PLAIN._replace(phase=torch.zeros(2, dtype=torch.int64))}, "initial_state.phase"),
        ({"initial_state": PLAIN._replace(weights=(torch.ones(2, 2, 4, 4),))}, "initial_state.weights"),
        ({"key": TOKENS[:, :, None][:, :, :0]}, "key must be"),
    ],
)
def test_mlp_memory_names_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    good = {"query": TOKENS, "key": TOKENS, "value": TOKENS, "write_rate": ROWS, "initial_weights": LAYER}
    with pytest.raises(ValueError, match=message):
        mlp_memory(**(good | changes))


def test_rules_name_what_does_not_fit() -> None:
    writes = TOKENS[:, :, None]
    with pytest.raises(ValueError, match=r"with R >= 1"):
        delta_product_attention(TOKENS, writes[:, :, :0], writes[:, :, :0], ROWS[:, :, None][:, :, :0])
    with pytest.raises(ValueError, match=r"must be one of erase, .* got 'momentum'"):
        delta_product_attention(TOKENS, writes, writes, ROWS[:, :, None], momentum=ROWS)
    with pytest.raises(ValueError, match="value must be of the precision of key"):
        replay_window(TOKENS, TOKENS.double(), ROWS, 2)
    with pytest.raises(ValueError, match="window must be >= 1, got True"):
        replay_window(TOKENS, TOKENS, ROWS, True)
    with pytest.raises(ValueError, match="epsilon must be > 0, got 'x'"):
        normalised_attention(TOKENS, TOKENS, TOKENS, ROWS, epsilon="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="log_input must be of the precision of query"):
        mlstm_attention(TOKENS, TOKENS, TOKENS, ROWS.double(), ROWS)
