"""The parametric core: any point of the design space."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import MemoryCore
from lifelong.memory.design import Design
from lifelong.memory.fast_weights import FastWeightLayer
from lifelong.memory.feed_forward import FeedForward


class ParametricCore(MemoryCore):
    """Layers of fast weights, each followed by a feed-forward block if ``feed_forward`` is not 0.

    The output is the residual stream, not normalised: heads that follow should begin with a norm.

    State: a TensorDict per layer, ``layer_0``, ``layer_1``, ..., as ``FastWeightLayer`` describes it.

    Args:
        dim: width of inputs and outputs.
        design: every choice.
    """

    matrices = ("fast_weights",)

    def __init__(self, dim: int, design: Design) -> None:
        super().__init__(dim)
        self.layers = nn.ModuleList(FastWeightLayer(dim, design) for _ in range(design.layers))
        blocks = design.layers if design.feed_forward else 0
        self.feed_forward = nn.ModuleList(FeedForward(dim, design.feed_forward) for _ in range(blocks))
        self._names = [f"layer_{index}" for index in range(design.layers)]

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        states = {name: layer.initial_state(batch_size, device, dtype) for name, layer in self._by_name()}
        return TensorDict(states, [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        outputs, states = inputs, {}
        for index, (name, layer) in enumerate(self._by_name()):
            outputs, states[name] = layer(outputs, state.get(name), reset)
            if self.feed_forward:
                outputs = self.feed_forward[index](outputs)
        return outputs, TensorDict(states, [len(inputs)])

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        outputs, states = inputs, {}
        for index, (name, layer) in enumerate(self._by_name()):
            outputs, states[name] = layer.step(outputs, state.get(name), reset)
            if self.feed_forward:
                outputs = self.feed_forward[index](outputs)
        return outputs, TensorDict(states, [len(inputs)])

    def _by_name(self) -> list[tuple[str, FastWeightLayer]]:
        return list(zip(self._names, self.layers, strict=True))  # type: ignore[arg-type]
