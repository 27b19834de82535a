"""Small pieces that every core needs to honour ``reset``."""

from __future__ import annotations

from torch import Tensor


def clear(state: Tensor, reset: Tensor | None) -> Tensor:
    """``state`` [B, ...] with the rows of ``reset`` [B] set to zero: no weight and no gradient is left of them."""
    if reset is None:
        return state
    return state.masked_fill(reset.view(-1, *[1] * (state.dim() - 1)), 0.0)


def segments(reset: Tensor) -> Tensor:
    """Number of resets up to and including each step, [B, T] int64: 0 is still the life that came in with the state."""
    return reset.cumsum(1)
