"""S5: a diagonal state space model with many inputs and outputs, discretised, resettable."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lifelong.memory.layered import LayeredCore
from lifelong.memory.linear_recurrence import LinearRecurrence
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.registry import register_core


class S5Layer(LinearRecurrence):
    """See ``S5Core``."""

    def __init__(
        self, dim: int, state_dim: int, blocks: int, step_min: float, step_max: float, reset_state: str
    ) -> None:
        super().__init__(dim, (state_dim,), True, reset_state)
        eigenvalues, vectors = hippo_normal(2 * state_dim // blocks)
        self.log_decay_rate = nn.Parameter((-eigenvalues.real).log().repeat(blocks))
        self.frequency = nn.Parameter(eigenvalues.imag.repeat(blocks))
        low, high = math.log(step_min), math.log(step_max)
        self.log_step = nn.Parameter(torch.empty(state_dim).uniform_(low, high))
        self.input_projection = nn.Linear(dim, 2 * state_dim, bias=False)  # B~
        self.readout = nn.Linear(2 * state_dim, dim, bias=False)  # 2 Re(C~ .)
        self.skip = nn.Parameter(torch.randn(dim))  # D
        self.gate = nn.Linear(dim, dim)
        with torch.no_grad():
            into = torch.randn(blocks, 2 * state_dim // blocks, dim) * dim**-0.5
            into = (vectors.mH @ into.to(vectors.dtype)).flatten(0, 1)
            self.input_projection.weight.copy_(torch.view_as_real(into).transpose(1, 2).reshape(2 * state_dim, dim))
            out_of = (
                torch.view_as_complex(torch.randn(dim, blocks, 2 * state_dim // blocks, 2)) * (4 * state_dim) ** -0.5
            )
            out_of = 2.0 * (out_of.transpose(0, 1) @ vectors).transpose(0, 1).flatten(1)
            self.readout.weight.copy_(torch.stack([out_of.real, -out_of.imag], -1).flatten(1))

    def write(self, features: Tensor) -> tuple[Tensor, Tensor]:
        step = self.log_step.exp()
        shrink, angle = -self.log_decay_rate.exp() * step, self.frequency * step
        decay = torch.polar(shrink.exp(), angle)
        # (exp(z) - 1) / z * step with z = shrink + i angle; the real part of exp(z) - 1 without cancellation
        grown = torch.complex(torch.expm1(shrink) - 2.0 * shrink.exp() * (0.5 * angle).sin().square(), decay.imag)
        held = grown / torch.complex(shrink, angle) * step
        return decay, held * torch.view_as_complex(self.input_projection(features).unflatten(-1, (-1, 2)))

    def read(self, states: Tensor, features: Tensor) -> Tensor:
        outputs = nn.functional.gelu(self.readout(states.flatten(-2)) + self.skip * features)
        return outputs * self.gate(outputs).sigmoid()


def hippo_normal(size: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues [size / 2] with positive imaginary part, and their eigenvectors [size, size / 2], of HiPPO-N:

        A_nk = -1/2 for n = k,  -sqrt((n + 1/2) (k + 1/2)) for n > k,  sqrt((n + 1/2) (k + 1/2)) for n < k

    (Smith et al. 2023, eq. 9 and appendix B.1.1; Gu et al. 2022.) A + 1/2 is skew-symmetric, so every eigenvalue has
    the real part -1/2, and they come in conjugate pairs.
    """
    root = (torch.arange(size, dtype=torch.float64) + 0.5).sqrt()
    product = torch.outer(root, root)
    skew = product.triu(1) - product.tril(-1)
    frequencies, vectors = torch.linalg.eigh(-1j * skew)
    positive = slice(size // 2, None)
    eigenvalues = torch.complex(torch.full_like(frequencies, -0.5), frequencies)[positive]
    return eigenvalues.to(torch.complex64), vectors[:, positive].to(torch.complex64)


@register_core("s5")
class S5Core(LayeredCore):
    """S5 (Smith, Warrington, Linderman 2023, sect. 3 and appendix B) with resets (Lu et al. 2023), in its residual
    block. With u = LayerNorm(x), and P / 2 = ``state_dim`` of the P conjugate eigenvalues:

        A = exp(lambda step),   h <- A h + lambda^-1 (A - 1) B u      complex, elementwise (zero-order hold)
        o = 2 Re(C h) + D u,    g = gelu(o),    y = x + g * sigmoid(W g + b)

    lambda = -exp(.) + i w, so that it cannot leave the left half plane (the authors clip or leave it free).
    Lu et al. put the reset into the operator of an associative scan; here it is a decay of zero, which is the same.

    Initialisation: lambda, B, C from ``blocks`` copies of HiPPO-N in its eigenbasis; log step uniform; D ~ N(0, 1).

    State: per layer ``trace`` [B, state_dim, 2], real and imaginary parts.

    Args:
        dim: width of inputs and outputs.
        state_dim: complex numbers in the state of a layer; None for ``dim``.
        layers: number of layers.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        blocks: number of HiPPO matrices that the eigenvalues are taken from; it divides ``state_dim``.
        step_min, step_max: smallest and largest step of the discretisation initially; with lambda = -1/2 + i w a unit
            remembers about 2 / step steps.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(
        self,
        dim: int,
        state_dim: int | None = None,
        layers: int = 1,
        feed_forward: float = 0.0,
        blocks: int = 1,
        step_min: float = 0.001,
        step_max: float = 0.1,
        reset_state: str = "zero",
    ) -> None:
        width = dim if state_dim is None else state_dim
        check_at_least(1, state_dim=width, blocks=blocks)
        if width % blocks:
            raise ValueError(f"blocks must divide state_dim={width}, not {blocks}")
        if not 0 < step_min <= step_max:
            raise ValueError(f"steps need 0 < step_min <= step_max, not {step_min} and {step_max}")
        super().__init__(
            dim, layers, feed_forward, lambda: S5Layer(dim, width, blocks, step_min, step_max, reset_state)
        )
