"""The contract of a memory core.

One convention everywhere: ``reset[b, t] = True`` means that life b drops its memory *before* step t.

A core is a causal map from a stream of inputs to a stream of outputs with a state of constant size. Three ways of running it are
equal, values and gradients: ``step`` folded over T; one call over [B, T]; calls over any cuts of [B, T] with the state carried over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from tensordict import TensorDict
from torch import Tensor, nn


class MemoryCore(nn.Module, ABC):
    """Base class of all memory cores.

    Attributes:
        dim: width D of inputs and outputs.
    """

    dim: int

    @abstractmethod
    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        """Run over a sequence.

        Args:
            inputs: [B, T, D].
            state: as ``initial_state`` or an earlier call returned it, batch [B]. It is never changed in place.
            reset: [B, T] bool, or None for no reset.

        Returns:
            outputs [B, T, D] and the state after step T.
        """

    @abstractmethod
    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        """Run one step: inputs [B, D], reset [B] bool or None. Equal to ``forward`` with T = 1."""

    @abstractmethod
    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        """The state before the first step of a life: a (possibly nested) TensorDict of fixed-shape tensors, batch [batch_size]."""

    def state_bytes(self) -> int:
        """Bytes of state that one life needs."""
        return sum(leaf.numel() * leaf.element_size() for leaf in self.initial_state(1).values(True, True))
