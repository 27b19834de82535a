"""How much of each write, and of the entry state, is left at each step of a chunk, with resets as segment masks.

A reset inside a chunk cuts it into segments: a write at j is seen at i >= j only if no reset lies in (j, i], and the
entry state only if none lies in [0, i]. That is a comparison of segment numbers, so nothing leaks across a reset, be it
values or gradients; a log-decay of minus infinity would give NaN, and a large finite one costs the survivors digits.

Sums of log-decays over (j, i] are taken as a product with a constant 0/1 matrix, not as differences of a running sum:
after strong decays those differences lose the digits of weak ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Influence(NamedTuple):
    """Scalar weights of one chunk; `...` is `[N, B, H]`, or anything that broadcasts to it.

    P planes make up the state: the fast weights; with momentum, the running update; with a learned reset state, that.

    read_entry, erase_entry:   `[..., C, P]` weight of each plane of the entry state in the state that step i reads, and
                               in the state that the error of step i is measured at
    read_writes, erase_writes: `[..., C, C]` the same for the write of step j (erase: only j < i is meaningful)
    exit_entry, exit_writes:   `[..., P, P]`, `[..., P, C]` the same in each plane of the state after the chunk
    """

    read_entry: Tensor
    read_writes: Tensor
    erase_entry: Tensor
    erase_writes: Tensor
    exit_entry: Tensor
    exit_writes: Tensor


def influence_without_momentum(
    write_rate: Tensor,
    log_decay: Tensor | None,
    reset: Tensor | None,
    *,
    error_before_decay: bool,
    learned_reset: bool,
) -> Influence:
    """write_rate, log_decay `[N, B, H, C]`, reset `[N, B, C]`."""
    kept = kept_between(log_decay, visible(write_rate.shape[-1], reset, write_rate.device), write_rate.dtype)
    entry, between = kept[..., :1], kept[..., 1:]
    if learned_reset and reset is not None:
        # A reset at j acts as a write of the reset state at j, which the decay of step j already shrinks.
        fresh = reset[:, :, None].to(kept.dtype) * (1.0 if log_decay is None else log_decay.exp())
        fresh = between @ fresh[..., None]
        entry = torch.cat([entry.expand_as(fresh), fresh], -1)

    erase_entry, erase_between = entry, between
    if error_before_decay:
        erase_entry, erase_between = _one_step_earlier(entry, between, reset)

    rate = write_rate[..., None, :]
    exit_entry, exit_writes = entry[..., -1:, :], between[..., -1:, :] * rate
    if entry.shape[-1] == 2:
        exit_entry, exit_writes = _with_constant_plane(exit_entry, exit_writes)
    return Influence(entry, between * rate, erase_entry, erase_between * rate, exit_entry, exit_writes)


def influence_with_momentum(
    write_rate: Tensor,
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
    size = write_rate.shape[-1]
    planes = 3 if learned_reset else 2
    columns = torch.eye(planes + size, dtype=write_rate.dtype, device=write_rate.device)
    in_weights, in_momentum = (columns[plane].expand(*write_rate.shape[:-1], -1) for plane in (0, 1))
    decay = None if log_decay is None else log_decay.exp()

    read, erase = [], []
    for i in range(size):
        if reset is not None:
            dropped = reset[:, :, None, i, None]
            in_weights = torch.where(dropped, columns[2] if learned_reset else 0.0, in_weights)
            in_momentum = torch.where(dropped, 0.0, in_momentum)
        decayed = in_weights if decay is None else decay[..., i, None] * in_weights
        erase.append(in_weights if error_before_decay else decayed)
        new_momentum = momentum[..., i, None] * in_momentum + write_rate[..., i, None] * columns[planes + i]
        new_weights = decayed + new_momentum
        if i >= size - padding:
            new_momentum = torch.cat([new_momentum[:-1], in_momentum[-1:]])
            new_weights = torch.cat([new_weights[:-1], in_weights[-1:]])
        in_weights, in_momentum = new_weights, new_momentum
        read.append(in_weights)

    after = [in_weights, in_momentum]
    if learned_reset:
        after.append(columns[2].expand_as(in_weights))
    split = [torch.stack(rows, -2).split([planes, size], -1) for rows in (read, erase, after)]
    return Influence(*(part for pair in split for part in pair))


def visible(size: int, reset: Tensor | None, device: torch.device) -> Tensor:
    """`[N, B, 1, C, 1 + C]` bool: whether step i sees the entry state (column 0) and the write of j (column 1 + j)."""
    steps = torch.arange(size, device=device)
    causal = steps[:, None] >= torch.arange(-1, size, device=device)
    if reset is None:
        return causal
    segment = reset.cumsum(-1)
    written_in = torch.nn.functional.pad(segment, (1, 0))
    return (causal & (segment[..., :, None] == written_in[..., None, :]))[:, :, None]


def kept_between(log_decay: Tensor | None, seen: Tensor, dtype: torch.dtype) -> Tensor:
    """`[..., C, 1 + C]` what the decays after step j (column 1 + j; column 0: after the entry) leave up to step i."""
    if log_decay is None:
        return seen.to(dtype)
    size = log_decay.shape[-1]
    steps = torch.arange(size, device=log_decay.device)
    starts = torch.arange(-1, size, device=log_decay.device)
    # lies_between[s, i, j]: the decay of step s lies in (j, i]
    lies_between = (steps[:, None, None] <= steps[:, None]) & (steps[:, None, None] > starts)
    sums = (log_decay @ lies_between.flatten(1).to(dtype)).unflatten(-1, (size, size + 1))
    return sums.masked_fill(~seen, -torch.inf).exp()


def _one_step_earlier(entry: Tensor, between: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weights in the state before the decay of step i: those after step i - 1, or those of a reset at i."""
    first = torch.zeros_like(entry[..., :1, :])
    first[..., 0] = 1.0
    entry = torch.cat([first, entry[..., :-1, :]], -2)
    between = torch.cat([torch.zeros_like(between[..., :1, :]), between[..., :-1, :]], -2)
    if reset is None:
        return entry, between
    dropped = reset[:, :, None, :, None]
    fresh = torch.zeros(entry.shape[-1], dtype=entry.dtype, device=entry.device)
    fresh[1:] = 1.0
    return torch.where(dropped, fresh, entry), between.masked_fill(dropped, 0.0)


def _with_constant_plane(exit_entry: Tensor, exit_writes: Tensor) -> tuple[Tensor, Tensor]:
    """Append the row of the learned reset state, which no chunk changes."""
    constant = torch.zeros_like(exit_entry)
    constant[..., 1] = 1.0
    return torch.cat([exit_entry, constant], -2), torch.cat([exit_writes, torch.zeros_like(exit_writes)], -2)
