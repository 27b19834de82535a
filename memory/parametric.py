"""The parametric cores: stacks of fast-weight layers that differ in their update rule."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.kernels import implementation_names
from lifelong.memory.core import MemoryCore
from lifelong.memory.fast_weights import KEY_MAPS, FastWeightLayer, UpdateRule
from lifelong.memory.feed_forward import FeedForward
from lifelong.memory.registry import did_you_mean, register_core


class ParametricCore(MemoryCore):
    """``layers`` fast-weight layers, each followed by a feed-forward block if ``feed_forward`` is not 0.

    The output is the residual stream, not normalised: heads that follow should begin with a norm.

    State: a TensorDict per layer, ``layer_0``, ``layer_1``, ..., as ``FastWeightLayer`` describes it.
    """

    def __init__(
        self,
        dim: int,
        rule: UpdateRule,
        *,
        layers: int,
        heads: int,
        head_dim: int,
        value_dim: int | None,
        convolution_taps: int,
        feed_forward: float,
        write_rate: float,
        key_map: str,
        implementation: str,
    ) -> None:
        super().__init__(dim)
        value_dim = head_dim if value_dim is None else value_dim
        _check_options(rule, layers, heads, head_dim, value_dim, convolution_taps, feed_forward, write_rate)
        _check_word("kernel implementation", implementation, ["auto", *implementation_names()])
        _check_word("key_map", key_map, list(KEY_MAPS))
        self.layers = nn.ModuleList(
            FastWeightLayer(
                dim, rule, heads, head_dim, value_dim, convolution_taps, write_rate, key_map, implementation
            )
            for _ in range(layers)
        )
        self.feed_forward = nn.ModuleList(FeedForward(dim, feed_forward) for _ in range(layers if feed_forward else 0))
        self._names = [f"layer_{index}" for index in range(layers)]

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


@register_core("gated_delta")
class GatedDeltaCore(ParametricCore):
    """Gated delta rule (Yang, Kautz, Hatamizadeh 2025): the squared error, with a learned decay per head.

        S^- = a S,   S <- S^- + b (v - S^- k) k^T,   o = S q

    A write replaces what the memory answered to its key, and old pairs fade at a pace of their own in every head.

    Args:
        dim: width of inputs and outputs.
        layers: number of fast-weight layers.
        heads: number of memories per layer.
        head_dim: width of queries and keys of a head.
        value_dim: width of the values of a head; None for ``head_dim``.
        convolution_taps: window of the short causal convolution in front of the projections, 2 or more; 0 for none.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        write_rate: initial write rate b, in (0, 1).
        key_map: what is done to keys before they are scaled to unit length, ``"silu"`` or ``"identity"``.
        horizon_min: initial horizon of the fastest head, in steps.
        horizon_max: initial horizon of the slowest head, in steps.
        implementation: of the kernel; ``"auto"``, or a name that ``lifelong.kernels`` knows.
    """

    def __init__(
        self,
        dim: int,
        layers: int = 1,
        heads: int = 4,
        head_dim: int = 32,
        value_dim: int | None = None,
        convolution_taps: int = 4,
        feed_forward: float = 0.0,
        write_rate: float = 0.5,
        key_map: str = "silu",
        horizon_min: float = 32.0,
        horizon_max: float = 1.0e5,
        implementation: str = "auto",
    ) -> None:
        super().__init__(
            dim,
            UpdateRule("squared_error", (horizon_min, horizon_max)),
            layers=layers,
            heads=heads,
            head_dim=head_dim,
            value_dim=value_dim,
            convolution_taps=convolution_taps,
            feed_forward=feed_forward,
            write_rate=write_rate,
            key_map=key_map,
            implementation=implementation,
        )


@register_core("linear_attention")
class LinearAttentionCore(ParametricCore):
    """Linear attention (Katharopoulos et al. 2020), Hebbian: the dot product, nothing erased and nothing forgotten.

        S <- S + b v k^T,   o = S q

    The state is a sum over the whole life and grows at most linearly, |S_t| <= t max|v|. The RMS norm of the read-out
    divides the growth out (in place of the sum of keys that the paper divides by, which may pass through zero for
    keys of either sign): what is read is a direction, in which one write of a life of t steps weighs about 1 / t.
    float32 holds such a sum to about 10^7 steps.

    Args: as ``gated_delta``, without the horizons.
    """

    def __init__(
        self,
        dim: int,
        layers: int = 1,
        heads: int = 4,
        head_dim: int = 32,
        value_dim: int | None = None,
        convolution_taps: int = 4,
        feed_forward: float = 0.0,
        write_rate: float = 0.5,
        key_map: str = "silu",
        implementation: str = "auto",
    ) -> None:
        super().__init__(
            dim,
            UpdateRule("dot_product", None),
            layers=layers,
            heads=heads,
            head_dim=head_dim,
            value_dim=value_dim,
            convolution_taps=convolution_taps,
            feed_forward=feed_forward,
            write_rate=write_rate,
            key_map=key_map,
            implementation=implementation,
        )


def _check_word(kind: str, word: str, known: list[str]) -> None:
    if word not in known:
        raise ValueError(f"unknown {kind} {word!r}; known: {', '.join(known)}{did_you_mean(word, known)}")


def _check_options(
    rule: UpdateRule,
    layers: int,
    heads: int,
    head_dim: int,
    value_dim: int,
    convolution_taps: int,
    feed_forward: float,
    write_rate: float,
) -> None:
    for name, size in (("layers", layers), ("heads", heads), ("head_dim", head_dim), ("value_dim", value_dim)):
        if size < 1:
            raise ValueError(f"{name} must be 1 or more, not {size}")
    if convolution_taps < 0 or convolution_taps == 1:
        raise ValueError(f"convolution_taps must be 0 (no convolution) or 2 or more, not {convolution_taps}")
    if feed_forward < 0:
        raise ValueError(f"feed_forward must be 0 (none) or more, not {feed_forward}")
    if not 0.0 < write_rate < 1.0:
        raise ValueError(f"write_rate must lie between 0 and 1, not {write_rate}")
    if rule.horizons is not None and not 1.0 < rule.horizons[0] <= rule.horizons[1]:
        shortest, longest = rule.horizons
        raise ValueError(f"horizons need 1 < horizon_min <= horizon_max, not {shortest} and {longest}")
