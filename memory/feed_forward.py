"""The position-wise feed-forward block, and the memoryless core that consists of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import MemoryCore
from lifelong.memory.registry import register_core


class FeedForward(nn.Module):
    """Pre-norm residual block  y = x + W2 silu(W1 LayerNorm(x)),  hidden width ``multiplier * dim``."""

    def __init__(self, dim: int, multiplier: float) -> None:
        super().__init__()
        hidden = int(multiplier * dim)
        if hidden < 1:
            raise ValueError(
                f"feed_forward={multiplier} leaves no hidden unit at dim={dim}; use 0 to leave the block out"
            )
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, hidden)
        self.narrow = nn.Linear(hidden, dim)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.narrow(nn.functional.silu(self.widen(self.norm(inputs))))


@register_core("none")
class NoMemory(MemoryCore):
    """No memory: a stack of residual feed-forward blocks. What an agent reaches without remembering.

    With ``feed_forward=0`` it is the identity. State: an empty TensorDict, batch [B].

    Args:
        dim: width of inputs and outputs.
        layers: number of blocks.
        feed_forward: hidden width of a block, as a multiple of ``dim``; 0 leaves the blocks out.
    """

    lacks: ClassVar[Mapping[str, str]] = {"reset_state": "it remembers nothing, so a life has no state to begin with"}

    def __init__(self, dim: int, layers: int = 1, feed_forward: float = 2.0) -> None:
        super().__init__(dim)
        if layers < 1 or feed_forward < 0:
            raise ValueError(f"core 'none' needs layers >= 1 and feed_forward >= 0, not {layers} and {feed_forward}")
        blocks = [FeedForward(dim, feed_forward) for _ in range(layers)] if feed_forward else []
        self.blocks = nn.Sequential(*blocks)

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        return TensorDict({}, [batch_size], device=device)

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        return self.blocks(inputs), state

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        return self.blocks(inputs), state
