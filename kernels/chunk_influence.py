"""How much of each write, and of the entry state, is left at each step of a chunk, with resets as segment masks.

A reset inside a chunk cuts it into segments: a write at j is seen at i >= j only if no reset lies in (j, i], and the
entry state only if none lies in [0, i]. That is a comparison of segment numbers, so nothing finite leaks
across a reset, be it values or gradients, though NaN times zero is NaN; a log-decay of minus infinity would give NaN,
and a large finite one costs the survivors digits.

Sums of log-decays over (j, i] are taken as a product with a constant 0/1 matrix, not as differences of a running sum:
after strong decays those differences lose the digits of weak ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Influence(NamedTuple):
    """Scalar weights of one chunk, for writes at a rate of one; `...` is `[N, B, H]`, or broadcasts to it.

    P planes make up the state: the fast weights; with momentum, the running update; with a learned reset state, that.
    The first C rows belong to the states that the errors are measured at, the next C to the states that are read.

    entry:       `[..., 2 C, P]` weight of each plane of the entry state
    writes:      `[..., 2 C, C]` weight of the write of step j
    exit_entry:  `[..., P, P]`, and
    exit_writes: `[..., P, C]`, the same in each plane of the state after the chunk
    """

    entry: Tensor
    writes: Tensor
    exit_entry: Tensor
    exit_writes: Tensor


def influence_without_momentum(
    size: int,
    log_decay: Tensor | None,
    reset: Tensor | None,
    like: Tensor,
    *,
    error_before_decay: bool,
    learned_reset: bool,
) -> Influence:
    """C = size; log_decay `[N, B, H, C]`, reset `[N, B, C]`; dtype and device as `like`."""
    kept = visible(size, reset, like.device).to(like.dtype)
    if log_decay is not None:
        # No exponent is positive, so nothing overflows, and masking after the exponential is safe.
        sums = finite(log_decay) @ _intervals(size, error_before_decay, like)
        kept = sums.exp().unflatten(-1, kept.shape[-2:]) * kept
    # The last row, that of the exit, is once more that of the last reader.
    (entry, exit_entry), (writes, exit_writes) = (part.split([2 * size, 1], -2) for part in kept.split([1, size], -1))
    if learned_reset and reset is not None:
        fresh = _reset_state_weights(writes[..., size:, :], log_decay, reset, error_before_decay)
        entry = torch.cat([entry.expand_as(fresh), fresh], -1)
        exit_entry, exit_writes = _with_constant_plane(entry[..., -1:, :], exit_writes)
    return Influence(entry, writes, exit_entry, exit_writes)


def influence_with_momentum(
    log_decay: Tensor | None,
    momentum: Tensor,
    reset: Tensor | None,
    *,
    error_before_decay: bool,
    learned_reset: bool,
    padding: int,
) -> Influence:
    """As above, by walking the two-vector (weights, momentum) of every column through the chunk.

    `padding` is the number of steps at the end of the last chunk that are none: even a step that writes nothing would
    add the momentum to the weights.
    """
    size = momentum.shape[-1]
    planes = 3 if learned_reset else 2
    columns = torch.eye(planes + size, dtype=momentum.dtype, device=momentum.device)
    in_weights, in_momentum = (columns[plane].expand(*momentum.shape[:-1], -1) for plane in (0, 1))
    decay = None if log_decay is None else log_decay.exp()

    read, erase = [], []
    for i in range(size):
        if reset is not None:
            dropped = reset[:, :, None, i, None]
            in_weights = torch.where(dropped, columns[2] if learned_reset else 0.0, in_weights)
            in_momentum = torch.where(dropped, 0.0, in_momentum)
        decayed = in_weights if decay is None else decay[..., i, None] * in_weights
        erase.append(in_weights if error_before_decay else decayed)
        new_momentum = momentum[..., i, None] * in_momentum + columns[planes + i]
        new_weights = decayed + new_momentum
        if i >= size - padding:
            new_momentum = torch.cat([new_momentum[:-1], in_momentum[-1:]])
            new_weights = torch.cat([new_weights[:-1], in_weights[-1:]])
        in_weights, in_momentum = new_weights, new_momentum
        read.append(in_weights)

    after = [in_weights, in_momentum]
    if learned_reset:
        after.append(columns[2].expand_as(in_weights))
    entry, writes = torch.stack(erase + read, -2).split([planes, size], -1)
    exit_entry, exit_writes = torch.stack(after, -2).split([planes, size], -1)
    return Influence(entry, writes, exit_entry, exit_writes)


def visible(size: int, reset: Tensor | None, device: torch.device) -> Tensor:
    """`[N, B, 1, 2 C + 1, 1 + C]` bool: whether a row sees the entry state (column 0) or the write of step j (1 + j).

    The error of step i sees the writes before it, the reader of step i its own too; the last row is the exit.
    """
    steps = torch.arange(size, device=device)
    starts = torch.arange(-1, size, device=device)
    causal = torch.cat([starts < steps[:, None], starts <= steps[:, None], starts[None] < size])
    if reset is None:
        return causal
    segment = reset.cumsum(-1)
    written_in = torch.nn.functional.pad(segment, (1, 0))
    rows = torch.cat([segment, segment, segment[..., -1:]], -1)
    return (causal & (rows[..., :, None] == written_in[..., None, :]))[:, :, None]


def finite(log_decay: Tensor) -> Tensor:
    """Log-decays with minus infinity replaced by what keeps nothing either: infinity times zero would be NaN."""
    return log_decay.clamp_min(-1e4)


def _intervals(size: int, error_before_decay: bool, like: Tensor) -> Tensor:
    """`[C, (2 C + 1) (1 + C)]` of zeros and ones: which log-decays lie between a write and a row of `visible`."""
    steps = torch.arange(size, device=like.device)
    starts = torch.arange(-1, size, device=like.device)
    last = torch.cat([steps - 1 if error_before_decay else steps, steps, steps[-1:]])
    between = (steps[:, None, None] > starts) & (steps[:, None, None] <= last[:, None])
    return between.flatten(1).to(like.dtype)


def _reset_state_weights(between: Tensor, log_decay: Tensor | None, reset: Tensor, error_before_decay: bool) -> Tensor:
    """`[..., 2 C, 1]` weight of the learned reset state; between `[..., C, C]` are the weights of readers."""
    # A reset at j acts as a write of the reset state at j, which the decay of step j already shrinks.
    written = reset[:, :, None].to(between.dtype) * (1.0 if log_decay is None else log_decay.exp())
    read = between @ written[..., None]
    if not error_before_decay:
        return torch.cat([read, read], -2)
    earlier = torch.cat([torch.zeros_like(read[..., :1, :]), read[..., :-1, :]], -2)
    return torch.cat([earlier.masked_fill(reset[:, :, None, :, None], 1.0), read], -2)


def _with_constant_plane(exit_entry: Tensor, exit_writes: Tensor) -> tuple[Tensor, Tensor]:
    """Append the row of the learned reset state, which no chunk changes."""
    constant = torch.zeros_like(exit_entry)
    constant[..., 1] = 1.0
    return torch.cat([exit_entry, constant], -2), torch.cat([exit_writes, torch.zeros_like(exit_writes)], -2)
