"""What the cores with an elementwise linear recurrence share: norm, scan, state, residual."""

from __future__ import annotations

from abc import abstractmethod

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.layered import MemoryLayer
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.scan import linear_scan


class LinearRecurrence(MemoryLayer):
    """Pre-norm residual layer around a linear recurrence. With x the input and u = LayerNorm(x):

        h <- a(u) h + b(u)   elementwise,      y = x + read(h, u)

    State: ``trace`` [B, ...]; of complex numbers [B, ..., 2], real and imaginary parts.

    Args:
        dim: width of the input.
        shape: of h.
        is_complex: whether h is complex.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(self, dim: int, shape: tuple[int, ...], is_complex: bool, reset_state: str) -> None:
        super().__init__()
        self.is_complex = is_complex
        self.norm = nn.LayerNorm(dim)
        self.reset_state = ResetState(reset_state, {"trace": (*shape, 2) if is_complex else shape})

    @abstractmethod
    def write(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """u [..., dim] -> a, of any shape that broadcasts to that of b, and b [..., *shape]; |a| <= 1."""

    @abstractmethod
    def read(self, states: Tensor, features: Tensor) -> Tensor:
        """h [..., *shape] (complex as [..., *shape, 2]) and u [..., dim] -> [..., dim]."""

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        features = self.norm(inputs)
        decay, written = self.write(features)
        fresh = self.reset_state.get("trace")
        states = self._stored(
            linear_scan(
                decay, written, self._number(state.get("trace")), reset, None if fresh is None else self._number(fresh)
            )
        )
        return inputs + self.read(states, features), TensorDict({"trace": states[:, -1]}, [len(inputs)])

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        features = self.norm(inputs)
        decay, written = self.write(features)
        before = self._number(self.reset_state.restore("trace", state.get("trace"), reset))
        new = self._stored(decay * before + written)
        return inputs + self.read(new, features), TensorDict({"trace": new}, [len(inputs)])

    def _number(self, stored: Tensor) -> Tensor:
        return torch.view_as_complex(stored.contiguous()) if self.is_complex else stored

    def _stored(self, number: Tensor) -> Tensor:
        return torch.view_as_real(number) if self.is_complex else number
