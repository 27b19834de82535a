"""minGRU: a gated recurrent unit whose gate does not look at the state, so that time can be run in parallel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lifelong.memory.layered import LayeredCore
from lifelong.memory.linear_recurrence import LinearRecurrence
from lifelong.memory.option_checks import check_at_least, check_word
from lifelong.memory.registry import register_core

_CANDIDATES = ["linear", "positive"]


class MinGRULayer(LinearRecurrence):
    """See ``MinGRUCore``."""

    def __init__(self, dim: int, hidden: int, candidate: str, reset_state: str) -> None:
        super().__init__(dim, (hidden,), False, reset_state)
        self.hidden, self.candidate = hidden, candidate
        self.projection = nn.Linear(dim, 2 * hidden)
        self.output_projection = nn.Linear(hidden, dim)

    def write(self, features: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate = self.projection(features).chunk(2, -1)
        if self.candidate == "positive":
            candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
        return torch.sigmoid(-gate), gate.sigmoid() * candidate

    def read(self, states: Tensor, features: Tensor) -> Tensor:
        read: Tensor = self.output_projection(states)
        return read


@register_core("min_gru")
class MinGRUCore(LayeredCore):
    """minGRU (Feng, Tung, Ahmed, Bengio, Hajimirsadeghi 2024, "Were RNNs All We Needed?", sect. 3.1), in residual
    blocks. With u = LayerNorm(x):

        z = sigmoid(W_z u + b_z),   n = W_n u + b_n,   h <- (1 - z) h + z n,   y = x + W_o h + b_o

    ``candidate="positive"`` is the form the authors use in the log domain (appendix B.2): n = g(W_n u + b_n) with
    g(v) = v + 1/2 for v >= 0, else sigmoid(v). Here both run without logarithms.

    State: per layer ``trace`` [B, hidden].

    Args:
        dim: width of inputs and outputs.
        hidden: width of the state; None for ``dim``.
        layers: number of layers.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        candidate: ``"linear"`` or ``"positive"``.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        layers: int = 1,
        feed_forward: float = 0.0,
        candidate: str = "linear",
        reset_state: str = "zero",
    ) -> None:
        width = dim if hidden is None else hidden
        check_at_least(1, hidden=width)
        check_word("candidate", candidate, _CANDIDATES)
        super().__init__(dim, layers, feed_forward, lambda: MinGRULayer(dim, width, candidate, reset_state))
