"""Read-out: from what the heads of a memory answer to what a layer adds to its input."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lifelong.memory.normalise import scale_to_length

# Under the square root of a norm: an empty memory reads zeros, and what is read shortly after is not blown up by more
# than 1/sqrt(1e-5), about 300.
_EPSILON = 1.0e-5
# A head that counts grows with what it counts; this brings some tens to the size of the other heads.
_COUNT_SCALE = 0.1
_OPENINGS: dict[str, Callable[[Tensor], Tensor]] = {"silu": nn.functional.silu, "sigmoid": torch.sigmoid}


class ReadOut(nn.Module):
    """y = W (norm(o) * gate), from readings o [..., H, Dv] and, with a gate, its pre-activations [..., H * Dv].

    norm is o / rms(o) per head, or the identity; the last ``counting`` heads are multiplied by 0.1 instead. gate is
    silu, sigmoid, or absent. Initialisation: as nn.Linear.
    """

    def __init__(self, dim: int, heads: int, value_dim: int, norm: str, gate: str, counting: int = 0) -> None:
        super().__init__()
        self.heads, self.value_dim, self.norm, self.gate, self.counting = heads, value_dim, norm, gate, counting
        self.projection = nn.Linear(heads * value_dim, dim)

    def forward(self, readings: Tensor, gate: Tensor | None) -> Tensor:
        """[..., H, Dv] and [..., H * Dv] or None -> [..., dim]."""
        if self.counting:
            answers, counts = readings.split([self.heads - self.counting, self.counting], -2)
            readings = torch.cat([self._normed(answers), _COUNT_SCALE * counts], -2)
        else:
            readings = self._normed(readings)
        flat = readings.flatten(-2)
        projected: Tensor = self.projection(flat if gate is None else flat * _OPENINGS[self.gate](gate))
        return projected

    def _normed(self, readings: Tensor) -> Tensor:
        if self.norm == "none":
            return readings
        return scale_to_length(readings, math.sqrt(self.value_dim), self.value_dim * _EPSILON)
