"""The matrices of `chunk_scan` for a decay per channel, where each channel of a key has an influence of its own.

The influence of write j on step i is then sum_d x_i[d] k_j[d] exp(sum of the log-decays of channel d over (j, i]): no
product of keys times a scalar. Split into exp(G_i) and exp(-G_j), it overflows. So the chunk is halved again and again:
a pair that a midpoint parts is a product of the decay from j up to it and of the decay from it to i, neither of which
exceeds one, and every pair of steps is parted just once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lifelong.kernels.chunk_influence import finite, visible
from lifelong.kernels.chunk_scan import ChunkMatrices


def channel_matrices(
    readers: Tensor,
    written: Tensor,
    log_decay: Tensor,
    reset: Tensor | None,
    *,
    error_before_decay: bool,
    learned_reset: bool,
) -> ChunkMatrices:
    """The matrices of one call, with `[N, B, H]` in place of `[N, M]`; C a power of two.

    readers: `[N, B, H, 2, C, Dk]`, erase keys and queries; written: `[N, B, H, C, Dk]`, keys times write rates;
    log_decay: `[N, B, H, C, Dk]`; reset: `[N, B, C]`.
    """
    size = written.shape[-2]
    log_decay = finite(log_decay)
    seen = visible(size, reset, written.device).to(written.dtype)
    steps = torch.arange(size, device=written.device)
    up_to = torch.stack([steps - 1 if error_before_decay else steps, steps])  # the last decay before each reading

    def kept(start: Tensor, stop: Tensor) -> Tensor:
        """What the decays of steps start, ..., stop leave: `[..., Dk]`, the dimensions of start and stop before it."""
        included = (steps >= start[..., None]) & (steps <= stop[..., None])
        total = included.flatten(0, -2).to(written.dtype) @ log_decay
        return total.exp().unflatten(-2, included.shape[:-1])

    seen, exit_seen = seen[..., :-1, :], seen[..., -1, :]
    entry = seen[..., 0].unflatten(-1, (2, size))[..., None]
    planes = [readers * kept(torch.zeros_like(up_to), up_to) * entry]
    last = torch.full_like(steps, size - 1)
    writes = written * kept(steps + 1, last) * exit_seen[..., 1:, None]
    carry = (kept(steps[:1], last[:1]) * exit_seen[..., :1, None])[..., None, :]

    if learned_reset and reset is not None:
        fresh = _since_reset(log_decay, reset)
        before = torch.cat([torch.zeros_like(fresh[..., :1, :]), fresh[..., :-1, :]], -2)
        before = torch.where(reset[:, :, None, :, None], 1.0, before)
        planes.append(readers * torch.stack([before if error_before_decay else fresh, fresh], -3))
        writes = torch.cat([writes, torch.zeros_like(writes)], -1)
        zero, one = torch.zeros_like(carry), torch.ones_like(carry)
        carry = torch.cat([torch.cat([carry, fresh[..., -1:, None, :]], -2), torch.cat([zero, one], -2)], -3)

    coupling = _decayed_products(readers, written, up_to, kept) * seen[..., 1:].unflatten(-2, (2, size))
    keys, queries = torch.cat(planes, -1).unbind(-3)
    known, read = coupling.unbind(-3)
    return ChunkMatrices(keys, queries, known, read, writes, carry)


def _since_reset(log_decay: Tensor, reset: Tensor) -> Tensor:
    """`[..., C, Dk]` weight of the learned reset state after the decay of step i; zero before the first reset."""
    segment = reset.cumsum(-1)
    included = (segment[..., :, None] == segment[..., None, :]).tril()[:, :, None]
    return (included.to(log_decay.dtype) @ log_decay).exp() * (segment > 0)[:, :, None, :, None]


def _decayed_products(
    readers: Tensor, written: Tensor, up_to: Tensor, kept: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """`[..., 2, C, C]` lower triangular: sum_d readers[i, d] written[j, d] exp(log-decays of d over (j, up_to[i]])."""
    size = written.shape[-2]
    steps = torch.arange(size, device=written.device)
    blocks = torch.linalg.vecdot(readers, written[..., None, :, :])[..., None, None]
    half = 1
    while half < size:
        pairs = size // (2 * half)
        early, late = (part.flatten() for part in steps.view(pairs, 2, half).unbind(1))
        midpoint = late // half * half
        kept_after = kept(midpoint.expand(2, -1), up_to[:, late]).unflatten(-2, (pairs, half))
        kept_before = kept(early + 1, midpoint - 1).unflatten(-2, (pairs, half))
        reader, writer = _halves(readers, half)[1] * kept_after, _halves(written, half)[0] * kept_before
        across = reader @ writer[..., None, :, :, :].mT
        first, second = blocks.unflatten(-3, (pairs, 2)).unbind(-3)
        blocks = torch.cat([torch.cat([first, torch.zeros_like(across)], -1), torch.cat([across, second], -1)], -2)
        half *= 2
    return blocks.squeeze(-3)


def _halves(vectors: Tensor, half: int) -> tuple[Tensor, ...]:
    """`[..., C, Dk]` as the first and second halves, `[..., C / (2 half), half, Dk]`, of its blocks."""
    return vectors.unflatten(-2, (-1, 2, half)).unbind(-3)
