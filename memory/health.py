"""The health of a memory: what can be read off its state, and off one step watched from outside.

Growth, collapse and breakage show here long before they show in the reward. ``MemoryCore.health`` is the way in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor


class Write(NamedTuple):
    """One write into fast weights, as the layer that did it reports it.

    key:       [B, H, K], or [B, R, H, K] with several pairs a token
    value:     [B, H, V], or [B, R, H, V]
    log_decay: log a, [B, H] or per channel [B, H, K]; None for a = 1
    before:    S_{t-1}, [B, H, V, K]
    after:     S_t
    """

    key: Tensor
    value: Tensor
    log_decay: Tensor | None
    before: Tensor
    after: Tensor


_watched: ContextVar[list[Write] | None] = ContextVar("watched", default=None)


def report_write(key: Tensor, value: Tensor, log_decay: Tensor | None, before: Tensor, after: Tensor) -> None:
    """To be called by a fast-weight layer in its step; does nothing unless somebody watches. See ``Write``."""
    writes = _watched.get()
    if writes is not None:
        writes.append(Write(key, value, log_decay, before, after))


@contextmanager
def _watch() -> Iterator[list[Write]]:
    writes: list[Write] = []
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

    1 for a matrix of rank one, min(V, K) for an orthogonal one, in between the number of directions that carry the
    memory; NaN for the zero matrix (Roy and Vetterli 2007).
    """
    sigma = torch.linalg.svdvals(matrices.double())
    share = sigma / sigma.sum(-1, keepdim=True)
    return torch.special.entr(share).sum(-1).exp()


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
    step: Callable[[Tensor, TensorDict], tuple[Tensor, TensorDict]], state: TensorDict, inputs: Tensor | None
) -> dict[str, float]:
    """What ``MemoryCore.health`` returns, for a core with this ``step`` and a state of which nothing is to be reset."""
    found = state_health(state)
    weights = [state.get(key) for key in state.keys(True, True) if _is_fast_weights(key)]
    ranks = [effective_rank(leaf).flatten() for leaf in weights if bool(leaf.isfinite().all())]
    if ranks:
        found["effective_rank"] = float(torch.cat(ranks).nanmean())
    if inputs is None or not found:
        return {name: value for name, value in found.items() if value == value}
    with _watch() as writes:
        _, after = step(inputs, state)
    found.update(_of_writes(writes) if writes else {"write_size": _change(state, after)})
    return {name: value for name, value in found.items() if value == value}


def _is_fast_weights(key: str | tuple[str, ...]) -> bool:
    return (key if isinstance(key, str) else key[-1]).startswith("fast_weights")


def _change(before: TensorDict, after: TensorDict) -> float:
    """|s' - s| / |s'|, mean over lives."""

    def flat(state: TensorDict) -> Tensor:
        leaves = [leaf.flatten(1).double() for leaf in state.values(True, True) if leaf.is_floating_point()]
        return torch.cat(leaves, 1)

    old, new = flat(before), flat(after)
    return float(((new - old).norm(dim=1) / new.norm(dim=1)).nanmean())


def _of_writes(writes: list[Write]) -> dict[str, float]:
    """Means over layers, lives, heads and pairs."""
    sizes, before, after, horizons = [], [], [], []
    for write in writes:
        kept = write.before
        if write.log_decay is not None:
            decay = write.log_decay.exp()
            kept = kept * (decay[..., None, None] if decay.dim() == kept.dim() - 2 else decay.unsqueeze(-2))
            horizons.append(-torch.expm1(write.log_decay.double()).flatten())
        sizes.append(((write.after - kept).norm(dim=(-2, -1)) / write.after.norm(dim=(-2, -1))).flatten())
        before.append(_surprise(kept, write).flatten())
        after.append(_surprise(write.after, write).flatten())
    found = {
        "write_size": float(torch.cat(sizes).nanmean()),
        "surprise_before": float(torch.cat(before).mean()),
        "surprise_after": float(torch.cat(after).mean()),
    }
    if horizons:
        forgotten = torch.cat(horizons).clamp_min(torch.finfo(torch.float32).tiny)
        found["decay_horizon"] = float(forgotten.log().mean().neg().exp())
    return found


def _surprise(weights: Tensor, write: Write) -> Tensor:
    """|v - S k|."""
    if write.key.dim() == weights.dim():  # several pairs a token
        weights = weights.unsqueeze(1)
    answer = (weights @ write.key.unsqueeze(-1)).squeeze(-1)
    return (write.value - answer).norm(dim=-1)
