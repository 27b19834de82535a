"""Fast and forgetful memory: traces that fade and turn at fixed, learned rates."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lifelong.memory.layered import LayeredCore
from lifelong.memory.linear_recurrence import LinearRecurrence
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.registry import register_core

# What is left of a trace after its horizon (beta in the paper).
_FORGOTTEN = 0.01


class FFMLayer(LinearRecurrence):
    """See ``FFMCore``."""

    def __init__(
        self, dim: int, traces: int, contexts: int, horizon_min: float, horizon_max: float, reset_state: str
    ) -> None:
        super().__init__(dim, (traces, contexts), True, reset_state)
        rates = -math.log(_FORGOTTEN) / torch.tensor([horizon_min, horizon_max])
        self.decay_rate = nn.Parameter(torch.linspace(float(rates[0]), float(rates[1]), traces))  # alpha
        self.frequency = nn.Parameter(2.0 * math.pi / torch.linspace(1.0, horizon_max, contexts))  # omega
        self.written = nn.Linear(dim, traces)  # l_1
        self.write_gate = nn.Linear(dim, traces)  # l_2
        self.readout = nn.Linear(2 * traces * contexts, dim)  # l_3
        self.read_gate = nn.Linear(dim, dim)  # l_4
        self.skip = nn.Linear(dim, dim)  # l_5
        self.read_norm = nn.LayerNorm(dim, elementwise_affine=False)

    def write(self, features: Tensor) -> tuple[Tensor, Tensor]:
        decay = torch.polar((-self.decay_rate.abs()).exp().unsqueeze(1), -self.frequency.unsqueeze(0))
        written = (self.written(features) * self.write_gate(features).sigmoid()).unsqueeze(-1)
        return decay, torch.complex(written, torch.zeros_like(written)).expand(*written.shape[:-1], *decay.shape[1:])

    def read(self, states: Tensor, features: Tensor) -> Tensor:
        gate = self.read_gate(features).sigmoid()
        read = self.read_norm(self.readout(states.flatten(-3)))
        return torch.lerp(self.skip(features), read, gate)


@register_core("ffm")
class FFMCore(LayeredCore):
    """Fast and forgetful memory (Morad, Kortvelesy, Liwicki, Prorok 2023, eq. 1 to 9), in residual blocks. With u =
    LayerNorm(x), m ``traces`` and c ``contexts``:

        w = l_1(u) * sigmoid(l_2(u))                                    what is written, R^m
        S <- gamma * S + w 1^T,   gamma_jk = exp(-|alpha_j|) exp(-i omega_k)         S, gamma in C^{m x c}
        r = LN(l_3([Re S, Im S])),   g = sigmoid(l_4(u))
        y = x + r * g + l_5(u) * (1 - g)                                l_i affine, LN without parameters

    The authors compute S over a sequence from exp(alpha t), which overflows unless t is bounded; their S here is the
    recurrence itself, which knows no t: a life may be as long as one likes.

    Initialisation: alpha evenly spaced such that 1 % of a trace is left after ``horizon_min`` ... ``horizon_max``
    steps; omega = 2 pi / period, periods evenly spaced from 1 to ``horizon_max`` steps.

    State: per layer ``trace`` [B, traces, contexts, 2], real and imaginary parts.

    Args:
        dim: width of inputs and outputs.
        traces: m, how many numbers are written in a step.
        contexts: c, by how many frequencies each is turned.
        layers: number of layers.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        horizon_min: steps after which 1 % of the fastest trace is left, initially.
        horizon_max: the same for the slowest trace (t_e in the paper).
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(
        self,
        dim: int,
        traces: int = 32,
        contexts: int = 4,
        layers: int = 1,
        feed_forward: float = 0.0,
        horizon_min: float = 50.0,
        horizon_max: float = 1024.0,
        reset_state: str = "zero",
    ) -> None:
        check_at_least(1, traces=traces, contexts=contexts, horizon_min=horizon_min)
        if not horizon_max >= horizon_min:
            raise ValueError(f"horizon_max must be horizon_min={horizon_min} or more, not {horizon_max}")
        super().__init__(
            dim, layers, feed_forward, lambda: FFMLayer(dim, traces, contexts, horizon_min, horizon_max, reset_state)
        )
