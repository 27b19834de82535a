"""A segment: T steps of B lives, and what was in memory before them.

    TensorDict({"steps": [B, T], "memory": [B]}, [B])

so that indexing by lives indexes both. ``steps`` holds observation, action, action_log_prob, state_value, reset,
soft_reset and, under ``next``, reward, done, terminated, truncated and state_value; tensors that TorchRL's losses
and estimators read have their last dimension 1. ``memory`` holds the core's state and the last transition. The state
is kept here and nowhere else: once per segment.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.objectives.value import GAE

from lifelong.agents.distributed import ALONE, Group


def add_advantages(segment: TensorDict, gamma: float, gae_lambda: float) -> None:
    """Write ``advantage`` and ``value_target`` into ``steps``: generalised advantage estimation from the stored values.

        delta_t = r_t + gamma V'_t (1 - terminated_t) - V_t,      A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}

    V'_t is V(o_{t+1}), the value of the final observation where a life was truncated, and the bootstrap at the
    segment's end; it was stored at collection, so the core is not run again. A soft reset changes nothing: the return
    goes on. r is ``learned_reward`` where there is one (``lifelong.agents.reward_scale``). (Schulman et al. 2016, eq.
    16; TorchRL's GAE with ``value_network=None``.)
    """
    estimator = GAE(gamma=gamma, lmbda=gae_lambda, value_network=None)
    if "learned_reward" in segment["steps", "next"].keys():  # noqa: SIM118 - a TensorDict
        estimator.set_keys(reward="learned_reward")
    estimator(segment["steps"])


def standardize(advantage: Tensor, group: Group = ALONE, counted: bool = True) -> Tensor:
    """Mean 0 and deviation 1 over the minibatch: over the parts of it on all ranks whose part is ``counted``."""
    return (advantage - group.mean(advantage, counted)) / (group.std(advantage, counted) + 1e-8)


def explained_variance(segment: TensorDict, group: Group = ALONE) -> Tensor:
    """1 - Var(target - V) / Var(target) over the segment: 1 is a perfect critic, 0 one that says the mean."""
    target, value = segment["steps", "value_target"], segment["steps", "state_value"]
    return 1 - group.var(target - value) / group.var(target).clamp_min(torch.finfo(target.dtype).tiny)
