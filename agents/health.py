"""The health of a memory, read off its state: growth and breakage show here long before they show in the reward."""

from __future__ import annotations

import torch
from tensordict import TensorDict


@torch.no_grad()
def memory_health(state: TensorDict) -> dict[str, float]:
    """Over all floating-point tensors of the state: root mean square, largest |entry|, share that is not finite; and
    its bytes per life.
    """
    leaves = list(state.values(include_nested=True, leaves_only=True))
    size = sum(leaf.numel() * leaf.element_size() for leaf in leaves) / max(state.shape[0], 1)
    floats = [leaf.flatten() for leaf in leaves if leaf.is_floating_point()]
    metrics = {"memory/state_bytes": float(size)}
    if floats:
        flat = torch.cat(floats)
        finite = torch.isfinite(flat)
        kept = torch.where(finite, flat, torch.zeros_like(flat)).double()
        metrics["memory/state_rms"] = float(kept.square().mean().sqrt())
        metrics["memory/state_max"] = float(kept.abs().max())
        metrics["memory/state_non_finite"] = float((~finite).double().mean())
    return metrics
