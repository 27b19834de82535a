"""Softmax attention as memory: over the whole life (a state that grows), or over the last steps (a state that drops).

They are what the parametric cores are compared with: the same place in the network, the same labels, and a cache of
pairs in place of a model that is trained on them. A life begins with an empty cache, so they have no learned reset
state (``EMPTY_CACHE``): there is nothing in it to learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.attention_cache import AttentionStack, FullCache, ShiftCache, Timeline
from lifelong.memory.option_checks import check_above, check_at_least
from lifelong.memory.registry import register_core
from lifelong.memory.rotary import Rotary
from lifelong.memory.short_convolution import ShortConvolution

# Why an option of other cores is none here.
EMPTY_CACHE: Mapping[str, str] = {
    "reset_state": "a life begins with an empty cache, in which there is nothing to learn"
}


class SoftmaxLayer(nn.Module):
    """Pre-norm residual layer with softmax attention over what is cached and the present step. With x the input:

        h = ShortConvolution(LayerNorm(x))
        q = turn(W_q h, p),  k = turn(W_k h, p),  v = W_v h             per head, at p steps since the last reset
        o = sum_j softmax_j(q . k_j / sqrt(D)) v_j                      over the steps j that the cache makes visible
        y = x + W_o o

    Keys are cached as they were turned (rotary positions: Su et al. 2021, eq. 16), so that q . k_j depends on the lag.

    State: ``keys`` and ``values`` [B, C, H, D], zero where nothing is cached, and, with convolution, ``tail``
    [B, taps - 1, dim].
    """

    def __init__(
        self, dim: int, slots: int, heads: int, head_dim: int, convolution_taps: int, rotary_ratio: float
    ) -> None:
        super().__init__()
        self.slots, self.heads, self.head_dim = slots, heads, head_dim
        self.norm = nn.LayerNorm(dim)
        self.convolution = ShortConvolution(dim, convolution_taps) if convolution_taps else None
        self.rotary = Rotary(["with"] * heads, head_dim, rotary_ratio)
        self.projection = nn.Linear(dim, 3 * heads * head_dim)
        self.output_projection = nn.Linear(heads * head_dim, dim)

    def initial_state(self, batch_size: int, device: torch.device | str, dtype: torch.dtype) -> TensorDict:
        state = {
            name: torch.zeros(batch_size, *shape, device=device, dtype=dtype) for name, shape in self.cached().items()
        }
        if self.convolution is not None:
            tail = (batch_size, self.convolution.taps - 1, self.norm.normalized_shape[0])
            state["tail"] = torch.zeros(tail, device=device, dtype=dtype)
        return TensorDict(state, [batch_size])

    def cached(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what one life caches."""
        pairs = (self.slots, self.heads, self.head_dim)
        return {"keys": pairs, "values": pairs}

    def forward(
        self, inputs: Tensor, state: TensorDict, cache: FullCache | ShiftCache, reset: Tensor | None
    ) -> tuple[Tensor, TensorDict]:
        """[B, T, dim] -> [B, T, dim]."""
        features, new_state = self.norm(inputs), TensorDict({}, [len(inputs)])
        if self.convolution is not None:
            features, new_state["tail"] = self.convolution(features, state.get("tail"), reset)
        query, key, value = self.projection(features).unflatten(-1, (3, self.heads, self.head_dim)).unbind(-3)
        turning, _ = self.rotary({"position": cache.timeline.held}, inputs.shape[1], reset, inputs.dtype)
        query, key = turning.turn(query, key)
        attended = self._attend(query, key, value, state, cache, new_state)
        return inputs + self.output_projection(attended.flatten(-2)), new_state

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: TensorDict,
        cache: FullCache | ShiftCache,
        new_state: TensorDict,
    ) -> Tensor:
        """[B, T, H, D] each -> [B, T, H, D]; what is to be cached is written into ``new_state``."""
        keys, values = cache.extend(state.get("keys"), key), cache.extend(state.get("values"), value)
        new_state["keys"] = cache.store(state.get("keys"), key)
        new_state["values"] = cache.store(state.get("values"), value)
        attended = nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), cache.visible.unsqueeze(1)
        )
        return attended.transpose(1, 2)


@register_core("softmax")
class SoftmaxCore(AttentionStack):
    """Causal softmax attention over the whole life (Vaswani et al. 2017, with rotary positions since the last reset).

    Nothing is forgotten, so what is needed grows with the life: ``state_bytes_at(life_step)``. The contract wants a
    fixed shape, so the cache has ``capacity`` steps from the start, and a life that outgrows it is an error that
    names the life and its step; nothing is ever dropped in silence. A step copies the cache (states are never changed
    in place) and reads the filled part of it.

    State: ``life_step``, and per layer as ``SoftmaxLayer`` with C = capacity; slot p holds the step at position p.

    Args:
        dim: width of inputs and outputs.
        capacity: longest life, in steps.
        layers: number of layers.
        heads: attention heads per layer.
        head_dim: width of queries, keys and values of a head, even.
        convolution_taps: window of the short causal convolution in front of the projections, 2 or more; 0 for none.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        rotary_ratio: between the rates of neighbouring pairs of entries of a key; the fastest turns pi a step.
    """

    lacks: ClassVar[Mapping[str, str]] = EMPTY_CACHE

    def __init__(
        self,
        dim: int,
        capacity: int = 1024,
        layers: int = 1,
        heads: int = 4,
        head_dim: int = 32,
        convolution_taps: int = 4,
        feed_forward: float = 0.0,
        rotary_ratio: float = 2.0,
    ) -> None:
        super().__init__(dim)
        check_at_least(1, capacity=capacity, layers=layers, heads=heads, head_dim=head_dim)
        check_above(1, rotary_ratio=rotary_ratio)
        self.capacity = capacity
        sizes = (capacity, heads, head_dim, convolution_taps, rotary_ratio)
        self._set_layers([SoftmaxLayer(dim, *sizes) for _ in range(layers)], feed_forward)

    def _cache(self, timeline: Timeline) -> FullCache:
        return FullCache(timeline, self.capacity)

    def state_bytes_at(self, life_step: int) -> int:
        """Bytes that a life needs after ``life_step`` steps, capacity or not."""
        slot = sum(leaf[0, 0].numel() * leaf.element_size() for leaf in self._cached())
        return self.state_bytes() + slot * (life_step - self.capacity)

    def _cached(self) -> list[Tensor]:
        layers = (state for name, state in self.initial_state(1).items() if name != "life_step")
        return [layer[name] for layer in layers for name in ("keys", "values")]


@register_core("softmax_window")
class SoftmaxWindowCore(AttentionStack):
    """Softmax attention over the last ``window`` steps of the life and the present one; what is older is dropped.

    State: ``life_step``, and per layer as ``SoftmaxLayer`` with C = window, newest last.

    Args: as ``softmax``, with ``window``, in steps, in place of the capacity.
    """

    lacks: ClassVar[Mapping[str, str]] = EMPTY_CACHE

    def __init__(
        self,
        dim: int,
        window: int = 64,
        layers: int = 1,
        heads: int = 4,
        head_dim: int = 32,
        convolution_taps: int = 4,
        feed_forward: float = 0.0,
        rotary_ratio: float = 2.0,
    ) -> None:
        super().__init__(dim)
        check_at_least(1, window=window, layers=layers, heads=heads, head_dim=head_dim)
        check_above(1, rotary_ratio=rotary_ratio)
        self.window = window
        sizes = (window, heads, head_dim, convolution_taps, rotary_ratio)
        self._set_layers([SoftmaxLayer(dim, *sizes) for _ in range(layers)], feed_forward)

    def _cache(self, timeline: Timeline) -> ShiftCache:
        return ShiftCache(timeline, self.window)
