"""Chunks that every life counts for itself: where its steps lie, and how much of each write is left at each of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.kernels.chunk_influence import influence_without_momentum


class LifeChunks(NamedTuple):
    """`[B, T]` as N chunks a life of at most C steps, cut at the edges of that life and at its resets.

    A chunk is filled up with blank steps, and a life of fewer chunks with blank chunks. A reset is always the first
    step of its chunk, so no chunk has one inside.
    """

    number: int
    size: int
    place: Tensor | None  # [B * T] index of each step in the flattened [B, N, C]; None: it is the same order
    real: Tensor  # [N, B, C] bool, not blank
    fresh: Tensor  # [N, B] bool, whether a reset comes before the chunk
    done: Tensor  # [N, B] bool, whether the chunk ends at an edge
    last: Tensor  # [N, B] bool, whether it is the last of its life
    phase: Tensor  # [B] int64, steps since the last edge after step T

    @classmethod
    def of(cls, length: int, chunk: int, phase: Tensor, reset: Tensor | None) -> LifeChunks:
        lives, step = phase.shape[0], torch.arange(length, device=phase.device)
        since = step + phase[:, None]
        if reset is None:
            reset = torch.zeros(lives, length, dtype=torch.bool, device=phase.device)
        else:
            born = torch.where(reset, step, -1).cummax(1).values
            since = torch.where(born >= 0, step - born, since)
        within = since % chunk
        starts = within == 0
        starts[:, 0] = True
        index = starts.cumsum(1) - 1
        number, size = int(index[:, -1].max()) + 1, min(chunk, length)

        def of_chunks(flags: Tensor) -> Tensor:
            return torch.zeros(lives, number, dtype=torch.int64, device=phase.device).scatter_add_(1, index, flags)

        slot = step - torch.where(starts, step, 0).cummax(1).values
        place = None
        if number * size != length:
            first = torch.arange(lives, device=phase.device)[:, None] * number
            place = ((first + index) * size + slot).flatten()
        lengths = of_chunks(torch.ones_like(index))
        return cls(
            number,
            size,
            place,
            (step[:size] < lengths[..., None]).transpose(0, 1),
            of_chunks(reset.long()).bool().T,
            of_chunks((within == chunk - 1).long()).bool().T,
            torch.arange(number, device=phase.device)[:, None] == index[:, -1],
            (within[:, -1] + 1) % chunk,
        )

    def spread(self, tensor: Tensor) -> Tensor:
        """`[B, T, R, H, ...]` as `[N, B, H, C * R, ...]`, zero at blank steps."""
        lives, rest = tensor.shape[0], tensor.shape[2:]
        if self.place is not None:
            slots = tensor.new_zeros(lives * self.number * self.size, *rest)
            tensor = slots.index_copy(0, self.place, tensor.flatten(0, 1))
        tensor = tensor.reshape(lives, self.number, self.size, *rest)
        return tensor.movedim((1, 4), (0, 2)).flatten(3, 4).contiguous()

    def collect(self, tensor: Tensor) -> Tensor:
        """`[N, B, H, C, ...]` as `[B, T, H, ...]`."""
        flat = tensor.movedim((0, 2), (1, 3)).flatten(0, 2)
        if self.place is not None:
            flat = flat.index_select(0, self.place)
        return flat.view(tensor.shape[1], -1, *flat.shape[1:])


class Kept(NamedTuple):
    """What is left, at each step of a chunk, of the state at its entry and of writes at a rate of one.

    in_weights: `[..., C, P + C]`, P = 1 (weights) or 2 (weights, momentum) planes of the entry state, then the writes
    in_momentum: `[..., 1 + C]` at the exit, of the entry's momentum and of the writes; None: there is no momentum
    all: whether nothing ever fades: what is kept is 1, once it is written
    """

    in_weights: Tensor
    in_momentum: Tensor | None
    all: bool


def kept(size: int, log_decay: Tensor | None, momentum: Tensor | None, real: Tensor, like: Tensor) -> Kept:
    """log_decay, momentum `[N, B, H, C]`, zero at blank steps; real `[N, B, C]`; what is kept is `[N, B, H, ...]`.

    M_t is a product of momenta for every earlier write, and W_t the sum of the M_i, decayed from i to t: the matrix of
    decays times the matrix of momenta.
    """
    decays = influence_without_momentum(size, log_decay, None, like, error_before_decay=True, learned_reset=False)
    entry, added = decays.entry[..., size:, :], decays.writes[..., size:, :]
    if momentum is None:
        return Kept(torch.cat([entry, added], -1).expand(*like.shape[:3], -1, -1), None, log_decay is None)
    blank = ~real[:, :, None]
    products = _products(momentum.masked_fill(blank, 1.0))
    added = added.masked_fill(blank[..., None, :], 0.0)  # a blank step adds no momentum to the weights
    weights = torch.cat([entry.expand(*products.shape[:-1], 1), added @ products], -1)
    return Kept(weights, products[..., -1, :], False)


def _products(factors: Tensor) -> Tensor:
    """`[..., C]` as `[..., C, 1 + C]`: row t, column j: the product of the factors j + 1 to t, counted from 1."""
    size = factors.shape[-1]
    later = torch.ones(size, 1 + size, dtype=torch.bool, device=factors.device).tril()  # t >= j, t from 1, j from 0
    rows = torch.where(later, factors[..., :, None], 1.0).cumprod(-2)
    return rows.tril(1)
