"""The health of a memory: what can be read off its state, and off one step watched from outside.

Growth, collapse and breakage show here long before they show in the reward. ``MemoryCore.health`` is the way in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor


class _Write(NamedTuple):
    """What a layer reported of its step, each flattened; None where it does not apply."""

    size: Tensor  # |S_t - a S_{t-1}| / |S_t|
    before: Tensor  # |v - S k| before the write
    after: Tensor
    forgotten: Tensor | None  # 1 - a


_watched: ContextVar[list[_Write] | None] = ContextVar("watched", default=None)


def is_watched() -> bool:
    """Whether somebody watches: only then what a report needs has to be worked out."""
    return _watched.get() is not None


def report_write(key: Tensor, value: Tensor, log_decay: Tensor | None, before: Tensor, after: Tensor) -> None:
    """To be called by a layer of matrices in its step; does nothing unless somebody watches.

    Args:
        key: [B, H, K], or [B, R, H, K] with several pairs a token.
        value: [B, H, V], or [B, R, H, V].
        log_decay: log a, [B, H] or per channel [B, H, K]; None for a = 1.
        before, after: S_{t-1} and S_t, [B, H, V, K].
    """
    if not is_watched():
        return
    kept = before
    if log_decay is not None:
        decay = log_decay.exp()
        kept = kept * (decay[..., None, None] if decay.dim() == kept.dim() - 2 else decay.unsqueeze(-2))

    def answer(matrices: Sequence[Tensor]) -> Tensor:
        weights = matrices[0].unsqueeze(1) if key.dim() == matrices[0].dim() else matrices[0]
        return (weights @ key.unsqueeze(-1)).squeeze(-1)

    report_answers(value, answer, log_decay, [kept], [after])


def report_answers(
    value: Tensor,
    answer: Callable[[Sequence[Tensor]], Tensor],
    log_decay: Tensor | None,
    kept: Sequence[Tensor],
    after: Sequence[Tensor],
) -> None:
    """The same for a memory of any other kind, made of one matrix a head or of several.

    Args:
        value: [..., H, V], what the memory is shown.
        answer: what a memory of the matrices that it is given answers to the key, [..., H, V].
        log_decay: log a, of any shape; None for a = 1.
        kept, after: its matrices when they have decayed, before the write, and after it, [B, H, V', K'] each.
    """
    writes = _watched.get()
    if writes is None:
        return
    before, now = ((value - answer(matrices)).norm(dim=-1).flatten() for matrices in (kept, after))
    written = [new - old for new, old in zip(after, kept, strict=True)]
    writes.append(_Write((_size(written) / _size(after)).flatten(), before, now, _forgotten(log_decay)))


def _size(matrices: Sequence[Tensor]) -> Tensor:
    """The norm of all entries of each head's matrices together, [B, H]."""
    norms = [matrix.norm(dim=(-2, -1)) for matrix in matrices]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm(dim=0)


def _forgotten(log_decay: Tensor | None) -> Tensor | None:
    return None if log_decay is None else -torch.expm1(log_decay.double()).flatten()


@contextmanager
def watch() -> Iterator[list[_Write]]:
    """Inside, the steps of layers that learn pairs leave what they wrote in the list."""
    writes: list[_Write] = []
    token = _watched.set(writes)
    try:
        yield writes
    finally:
        _watched.reset(token)


def state_health(state: TensorDict) -> dict[str, float]:
    """Over all floating-point tensors of a state, batch [B]:

    state_norm        sqrt(sum s^2) of a life, mean over lives; entries that are not finite count as 0
    state_max         largest |s|, of those that are finite
    state_non_finite  share of entries that are not finite

    Nothing where a life has no such state.
    """
    floats = [leaf.flatten(1) for leaf in state.values(True, True) if leaf.is_floating_point()]
    if not floats or not len(state):
        return {}
    flat = torch.cat(floats, 1)
    finite = flat.isfinite()
    share = float(finite.logical_not().double().mean())
    kept = flat if share == 0.0 else flat.where(finite, 0.0)
    return {
        "state_norm": float(kept.double().norm(dim=1).mean()),
        "state_max": float(kept.abs().max()),
        "state_non_finite": share,
    }


def effective_rank(matrices: Tensor) -> Tensor:
    """exp(-sum_i p_i ln p_i), p_i = sigma_i / sum_j sigma_j, of matrices [..., V, K] with singular values sigma.

    1 for a matrix of rank one, min(V, K) for an orthogonal one, in between the number of directions that carry
    something; 0 for the zero matrix (Roy and Vetterli 2007).
    """
    sigma = torch.linalg.svdvals(matrices.double())
    total = sigma.sum(-1)
    share = sigma / total.unsqueeze(-1)
    return torch.special.entr(share).sum(-1).exp().where(total != 0, 0.0)


def find_non_finite(state: TensorDict) -> tuple[int, str] | None:
    """The first life with an entry that is not finite, and the name of the tensor; None if all is finite."""
    for key in state.keys(True, True):
        leaf = state.get(key)
        # A sum is not finite if an entry is not, and costs a third of looking at each; if it only overflowed, look.
        if leaf.is_floating_point() and not bool(leaf.sum().isfinite()) and not bool(leaf.isfinite().all()):
            life = int(leaf.isfinite().logical_not().nonzero()[0, 0])
            return life, ".".join(key) if isinstance(key, tuple) else key
    return None


@torch.no_grad()
def measure(
    step: Callable[[Tensor, TensorDict], tuple[Tensor, TensorDict]],
    matrices: Sequence[str],
    state: TensorDict,
    inputs: Tensor | None,
) -> dict[str, float]:
    """What ``MemoryCore.health`` returns, for a core with this ``step``, whose memory lies in the tensors of the names
    ``matrices``, and a state of which nothing is to be reset.
    """
    found = state_health(state)
    weights = [state.get(key) for key in state.keys(True, True) if _last_name(key) in matrices]
    ranks = [effective_rank(leaf).flatten() for leaf in weights if bool(leaf.isfinite().all())]
    held = [rank[rank > 0] for rank in ranks]  # a matrix that holds nothing yet says nothing of those that do
    if any(len(rank) for rank in held):
        found["effective_rank"] = float(torch.cat(held).mean())
    if inputs is None or not found:
        return {name: value for name, value in found.items() if value == value}
    with watch() as writes:
        _, after = step(inputs, state)
    found["write_size"] = _change(state, after)
    found.update(_means(writes))
    return {name: value for name, value in found.items() if value == value}


def _last_name(key: str | tuple[str, ...]) -> str:
    return key if isinstance(key, str) else key[-1]


def _change(before: TensorDict, after: TensorDict) -> float:
    """|s' - s| / |s'|, mean over lives."""

    names = [key for key in before.keys(True, True) if before.get(key).is_floating_point()]
    old, new = (torch.cat([state.get(key).flatten(1).double() for key in names], 1) for state in (before, after))
    return float(((new - old).norm(dim=1) / new.norm(dim=1)).nanmean())


def _means(writes: list[_Write]) -> dict[str, float]:
    """Over layers, lives, heads and pairs; nothing where nothing was reported."""
    if not writes:
        return {}
    found = {
        "surprise_before": float(torch.cat([write.before for write in writes]).mean()),
        "surprise_after": float(torch.cat([write.after for write in writes]).mean()),
    }
    found["write_size"] = float(torch.cat([write.size for write in writes]).nanmean())
    forgotten = [write.forgotten for write in writes if write.forgotten is not None]
    if forgotten:
        least = torch.finfo(torch.float32).tiny
        found["decay_horizon"] = float(torch.cat(forgotten).clamp_min(least).log().mean().neg().exp())
    return found
