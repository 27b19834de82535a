"""The parametric core, and how a point of its design space gets a name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import MemoryCore
from lifelong.memory.design import Design
from lifelong.memory.fast_weights import FastWeightLayer
from lifelong.memory.feed_forward import FeedForward
from lifelong.memory.registry import register_core


class ParametricCore(MemoryCore):
    """Layers of fast weights, each followed by a feed-forward block if ``feed_forward`` is not 0.

    The output is the residual stream, not normalised: heads that follow should begin with a norm.

    State: a TensorDict per layer, ``layer_0``, ``layer_1``, ..., as ``FastWeightLayer`` describes it.

    Args:
        dim: width of inputs and outputs.
        design: every choice.
    """

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


def named_point(name: str, **choices: Any) -> Callable[[type[ParametricCore]], type[ParametricCore]]:
    """Class decorator: register a point of the design space, whose options are those of ``Design``.

    Example:
        >>> @named_point("huber_attention", objective="huber", retention="none")
        >>> class HuberAttention(ParametricCore):
        >>>     \"\"\"What it computes, and whose idea it is.\"\"\"
    """

    def add(core: type[ParametricCore]) -> type[ParametricCore]:
        # `lifelong.memory.registry` reads options, their types and defaults off the constructor.
        def build(self: ParametricCore, dim: int, **options: Any) -> None:
            ParametricCore.__init__(self, dim, Design(**{**choices, **options}))

        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(each, keyword) for each in ("self", "dim")]
        for field in fields(Design):
            default = choices.get(field.name, field.default)
            assert default is not MISSING
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default))
        build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        build.__annotations__ = {"dim": int, **get_type_hints(Design)}
        core.__init__ = build  # type: ignore[method-assign, assignment]
        return register_core(name)(core)  # type: ignore[return-value]

    return add
