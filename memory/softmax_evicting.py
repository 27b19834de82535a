"""Softmax attention over a cache of fixed size that keeps what was attended to most, and evicts the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.memory.attention_cache import AttentionStack, Timeline
from lifelong.memory.option_checks import check_above, check_at_least
from lifelong.memory.registry import register_core
from lifelong.memory.softmax import EMPTY_CACHE, SoftmaxLayer


class EvictingCache(NamedTuple):
    """What the layers need to know of a call; who is visible is decided by each head of each layer."""

    timeline: Timeline
    slots: int
    recent: int

    def extend(self, cached: Tensor, new: Tensor) -> Tensor:
        """[B, H, C, ...] and [B, H, T, ...] -> [B, H, C + T, ...]."""
        return torch.cat([cached, new], 2)

    def keep(self, scores: Tensor, attention: Tensor) -> Kept:
        """Walk through the T steps: who is in the cache when each step looks, and who is after the last.

        Args:
            scores: [B, H, T, C + T], q . k / sqrt(D) of each step with everything that may still be there.
            attention: [B, H, C], what the cached steps have received so far.
        """
        batch, heads, steps, width = scores.shape
        slot = torch.arange(width, device=scores.device)
        held = self.timeline.held.clamp(max=self.slots)
        alive = (slot < self.slots) & (slot >= self.slots - held.unsqueeze(1))
        alive = alive.unsqueeze(1).expand(batch, heads, width).clone()
        received = torch.cat([attention, attention.new_zeros(batch, heads, steps)], 2)
        visible = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
        for t in range(steps):
            alive &= self.timeline.position[:, t, None, None] > 0
            alive[:, :, self.slots + t] = True
            visible[:, :, t] = alive
            received += scores[:, :, t].masked_fill(~alive, -torch.inf).softmax(-1)
            full = self.timeline.position[:, t] >= self.slots
            may_go = alive & (slot <= self.slots + t - self.recent)
            least = received.masked_fill(~may_go, torch.inf).argmin(-1, keepdim=True)
            alive.scatter_(2, least, alive.gather(2, least) & ~full[:, None, None])
        return Kept(visible, alive, received)

    def store(self, extended: Tensor, alive: Tensor) -> Tensor:
        """[B, H, C + T, ...] -> [B, H, C, ...]: who is alive, in the order of time, zero in front of them."""
        order = alive.to(torch.uint8).argsort(dim=-1, stable=True)[..., -self.slots :]
        some = (..., *[None] * (extended.dim() - 3))
        kept = extended.gather(2, order[some].expand(*order.shape, *extended.shape[3:]))
        return kept.masked_fill(~alive.gather(2, order)[some], 0.0)


class Kept(NamedTuple):
    """What ``EvictingCache.keep`` found."""

    visible: Tensor  # [B, H, T, C + T] bool
    alive: Tensor  # [B, H, C + T] bool, after the last step
    received: Tensor  # [B, H, C + T], attention received since a step was cached


class EvictingLayer(SoftmaxLayer):
    """``SoftmaxLayer`` whose heads evict.

    State: ``keys`` and ``values`` [B, H, C, D], ``attention`` [B, H, C], and ``tail``.
    """

    def cached(self) -> dict[str, tuple[int, ...]]:
        pairs = (self.heads, self.slots, self.head_dim)
        return {"keys": pairs, "values": pairs, "attention": pairs[:2]}

    def _attend(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, state: TensorDict, cache: EvictingCache, new_state: TensorDict
    ) -> Tensor:
        query, key, value = (z.transpose(1, 2) for z in (query, key, value))
        keys, values = cache.extend(state.get("keys"), key), cache.extend(state.get("values"), value)
        scores = query @ keys.mT / math.sqrt(self.head_dim)
        with torch.no_grad():
            kept = cache.keep(scores, state.get("attention"))
        weights = scores.masked_fill(~kept.visible, -torch.inf).softmax(-1)
        attention = cache.extend(state.get("attention"), weights.new_zeros(*weights.shape[:3]))
        # A constant is added, so that the gradient of what had been received passes and none comes of the decisions.
        attention = attention + (kept.received - attention).detach()
        for name, extended in (("keys", keys), ("values", values), ("attention", attention)):
            new_state[name] = cache.store(extended, kept.alive)
        return (weights @ values).transpose(1, 2)


@register_core("softmax_evicting")
class SoftmaxEvictingCore(AttentionStack):
    """Softmax attention over ``slots`` cached steps, of which each head keeps those it attended to most.

    The heavy hitters of Zhang et al. 2023 (H2O, algorithm 1). With a_j the attention that step j has received since it
    was cached, at every step and in every head:

        w_j = softmax_j(q . k_j / sqrt(D)),   o = sum_j w_j v_j         over the cache and the present step
        a_j <- a_j + w_j
        if more than ``slots`` steps are held: the one of least a_j goes, the ``recent`` newest excepted

    This is the sparse attention that the paper argues against: which write survives is decided by the past, and what
    has gone is gone. The decision carries no gradient.

    The decisions are made one step after the other; everything with a gradient is one masked attention per call.
    a_j is a float sum over the life: only the smallest ones are compared, so its rounding does not matter.

    State: ``life_step``, and per layer as ``EvictingLayer`` with C = slots, in the order of time, newest last.

    Args: as ``softmax``, with

        slots: steps in the cache, in place of the capacity.
        recent: how many of them are the newest, whatever was attended to; ``slots`` at most; None for half.
    """

    lacks: ClassVar[Mapping[str, str]] = EMPTY_CACHE

    def __init__(
        self,
        dim: int,
        slots: int = 64,
        recent: int | None = None,
        layers: int = 1,
        heads: int = 4,
        head_dim: int = 32,
        convolution_taps: int = 4,
        feed_forward: float = 0.0,
        rotary_ratio: float = 2.0,
    ) -> None:
        super().__init__(dim)
        recent = (slots + 1) // 2 if recent is None else recent
        check_at_least(1, slots=slots, recent=recent, layers=layers, heads=heads, head_dim=head_dim)
        if recent > slots:
            raise ValueError(f"recent={recent} must not exceed slots={slots}")
        check_above(1, rotary_ratio=rotary_ratio)
        self.slots, self.recent = slots, recent
        sizes = (slots, heads, head_dim, convolution_taps, rotary_ratio)
        self._set_layers([EvictingLayer(dim, *sizes) for _ in range(layers)], feed_forward)

    def _cache(self, timeline: Timeline) -> EvictingCache:
        return EvictingCache(timeline, self.slots, self.recent)
