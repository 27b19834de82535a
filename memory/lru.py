"""Linear recurrent unit: complex eigenvalues inside the unit circle."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lifelong.memory.layered import LayeredCore
from lifelong.memory.linear_recurrence import LinearRecurrence
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.registry import register_core


class LRULayer(LinearRecurrence):
    """See ``LRUCore``."""

    def __init__(
        self, dim: int, state_dim: int, radius_min: float, radius_max: float, max_phase: float, reset_state: str
    ) -> None:
        super().__init__(dim, (state_dim,), True, reset_state)
        squared = torch.empty(state_dim).uniform_(radius_min**2, radius_max**2).clamp_(1e-12)
        self.log_decay_rate = nn.Parameter((-0.5 * squared.log()).log())  # nu
        self.log_phase = nn.Parameter(torch.empty(state_dim).uniform_(0.0, max_phase).clamp_(1e-6).log())  # theta
        self.log_scale = nn.Parameter(0.5 * torch.log1p(-squared))  # gamma
        self.input_projection = nn.Linear(dim, 2 * state_dim, bias=False)  # B
        self.readout = nn.Linear(2 * state_dim, dim, bias=False)  # Re(C .)
        self.skip = nn.Parameter(torch.randn(dim))  # D
        self.gate = nn.Linear(dim, 2 * dim)
        with torch.no_grad():
            self.input_projection.weight.normal_(std=(2 * dim) ** -0.5)
            self.readout.weight.normal_(std=state_dim**-0.5)

    def write(self, features: Tensor) -> tuple[Tensor, Tensor]:
        decay = torch.polar((-self.log_decay_rate.exp()).exp(), self.log_phase.exp())
        written = self.input_projection(features).unflatten(-1, (-1, 2)) * self.log_scale.exp().unsqueeze(-1)
        return decay, torch.view_as_complex(written)

    def read(self, states: Tensor, features: Tensor) -> Tensor:
        outputs = nn.functional.gelu(self.readout(states.flatten(-2)) + self.skip * features)
        return nn.functional.glu(self.gate(outputs))


@register_core("lru")
class LRUCore(LayeredCore):
    """Linear recurrent unit (Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu, De 2023, eq. 5 to 7 and appendix A), in
    its residual block. With u = LayerNorm(x):

        lambda = exp(-exp(nu) + i exp(theta)),   h <- lambda h + exp(gamma) B u      complex, elementwise
        o = Re(C h) + D u,   y = x + (W_1 gelu(o) + b_1) * sigmoid(W_2 gelu(o) + b_2)

    Initialisation: lambda uniform on the ring between the radii, its phase on [0, max_phase];
    exp(gamma) = sqrt(1 - |lambda|^2), so that white noise gives h the same variance at every radius; real and
    imaginary parts of B ~ N(0, 1 / (2 dim)), of C ~ N(0, 1 / state_dim); D ~ N(0, 1).

    State: per layer ``trace`` [B, state_dim, 2], real and imaginary parts.

    Args:
        dim: width of inputs and outputs.
        state_dim: complex numbers in the state of a layer; None for ``dim``.
        layers: number of layers.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        radius_min, radius_max: smallest and largest |lambda| initially; a unit keeps about 1 / (1 - |lambda|) steps.
        max_phase: largest angle of lambda initially, in radians.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(
        self,
        dim: int,
        state_dim: int | None = None,
        layers: int = 1,
        feed_forward: float = 0.0,
        radius_min: float = 0.9,
        radius_max: float = 0.999,
        max_phase: float = 6.28,
        reset_state: str = "zero",
    ) -> None:
        width = dim if state_dim is None else state_dim
        check_at_least(1, state_dim=width)
        if not 0 <= radius_min <= radius_max < 1:
            raise ValueError(f"radii need 0 <= radius_min <= radius_max < 1, not {radius_min} and {radius_max}")
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"max_phase must be above 0 and at most 2 pi, not {max_phase}")
        super().__init__(
            dim, layers, feed_forward, lambda: LRULayer(dim, width, radius_min, radius_max, max_phase, reset_state)
        )
