"""A core that is a stack of residual layers with a memory each, and feed-forward blocks between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import MemoryCore
from lifelong.memory.feed_forward import FeedForward
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.option_checks import check_at_least


class MemoryLayer(nn.Module, ABC):
    """One layer, by the contract of ``MemoryCore``: its output is x plus what the memory adds to it.

    ``reset_state`` states what is remembered, and what a life starts with; a layer whose parts remember more adds
    theirs in ``initial_state``.
    """

    reset_state: ResetState

    def initial_state(
        self, batch_size: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> TensorDict:
        """What ``batch_size`` new lives begin with; device and dtype are those of the weights unless given."""
        like = next(self.parameters())
        return TensorDict(self.reset_state.initial(batch_size, like, device, dtype), [batch_size])

    @abstractmethod
    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        """[B, T, D] -> [B, T, D]."""

    @abstractmethod
    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        """[B, D] -> [B, D]."""


class LayeredCore(MemoryCore):
    """``layers`` layers, each followed by a feed-forward block if ``feed_forward`` is not 0.

    The output is the residual stream, not normalised: heads that follow should begin with a norm.

    State: a TensorDict per layer, ``layer_0``, ``layer_1``, ...
    """

    def __init__(self, dim: int, layers: int, feed_forward: float, make_layer: Callable[[], MemoryLayer]) -> None:
        super().__init__(dim)
        check_at_least(1, layers=layers)
        check_at_least(0, feed_forward=feed_forward)
        self.layers = nn.ModuleDict({f"layer_{index}": make_layer() for index in range(layers)})
        self.feed_forward = nn.ModuleDict(
            {name: FeedForward(dim, feed_forward) for name in self.layers if feed_forward}
        )

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        states = {name: layer.initial_state(batch_size, device, dtype) for name, layer in self._by_name().items()}
        return TensorDict(states, [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        return self._through(list(self._by_name().values()), inputs, state, reset)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        return self._through([layer.step for layer in self._by_name().values()], inputs, state, reset)

    def _by_name(self) -> dict[str, MemoryLayer]:
        return dict(self.layers.items())  # type: ignore[arg-type]

    def _through(
        self,
        runs: list[Callable[..., tuple[Tensor, TensorDict]]],
        inputs: Tensor,
        state: TensorDict,
        reset: Tensor | None,
    ) -> tuple[Tensor, TensorDict]:
        outputs, states = inputs, {}
        for name, run in zip(self.layers, runs, strict=True):
            outputs, states[name] = run(outputs, state.get(name), reset)
            if self.feed_forward:
                outputs = self.feed_forward[name](outputs)
        return outputs, TensorDict(states, [len(inputs)])
