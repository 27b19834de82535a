"""The health of the lives' memories, as it is logged; and the refusal to go on with a broken one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.agents.faults import NonFinite
from lifelong.memory import MemoryCore
from lifelong.memory.health import find_non_finite, state_health, watch

if TYPE_CHECKING:
    from lifelong.agents.rollout import Lives

# Lives of which a step is watched and singular values are taken: keeps all of it below 1 % of an update.
_SAMPLE = 4


@torch.no_grad()
def memory_health(lives: Lives) -> dict[str, float]:
    """``memory/...``: bytes per life; norm, largest entry and share not finite over all lives; and what
    ``MemoryCore.health`` finds in the next step of the first four.

    To be called where ``lives.remember`` was.
    """
    state = lives.state
    tokens, few = _next_tokens(lives)
    leaves = state.values(True, True)
    found = {"state_bytes": sum(leaf.numel() * leaf.element_size() for leaf in leaves) / lives.env.num_lives}
    found |= lives.agent.core.health(state[few], tokens, lives.reset[few])
    found |= state_health(state)
    return {f"memory/{name}": float(value) for name, value in found.items()}


@torch.no_grad()
def memory_histograms(lives: Lives) -> dict[str, Tensor]:
    """``memory_histograms/...``: the state's entries, tensor by tensor, over all lives; and of the next step of the
    first four lives, how much is forgotten (1 - a, as its logarithm to base ten) and how surprised the memory is.

    To be called where ``lives.remember`` was.
    """
    found = {}
    for key, leaf in lives.state.items(True, True):
        if leaf.is_floating_point():
            found[key if isinstance(key, str) else "/".join(key)] = leaf.flatten()
    tokens, few = _next_tokens(lives)
    with watch() as writes:
        lives.agent.core.step(tokens, lives.agent.core.restarted(lives.state[few], lives.reset[few]))
    for name, parts in (
        ("log10_forgotten", [write.forgotten.log10() for write in writes if write.forgotten is not None]),
        ("surprise", [write.before for write in writes]),
    ):
        if parts:
            found[name] = torch.cat([part.float() for part in parts])
    return {f"memory_histograms/{name}": value for name, value in found.items()}


def _next_tokens(lives: Lives) -> tuple[Tensor, slice]:
    """What the cores of the first lives are about to see, [B', D], and which lives these are."""
    few = slice(_SAMPLE)
    assert lives.observation is not None, "lives that have not started have no health"
    observation = {key: value[few] for key, value in lives.observation.items()}
    return lives.agent.peek_token(observation, lives.reset[few], lives.agent.embed_previous(lives.last[few])), few


def refuse_broken_memory(core: MemoryCore, state: TensorDict, life_step: Tensor) -> None:
    """Raise if a state, batch [B], is not finite anywhere; ``life_step`` [B] says how old the lives are.

    Raises:
        NonFinite: names the core as configs do, the tensor, the life and its step.
    """
    broken = find_non_finite(state)
    if broken is not None:
        life, name = broken
        word = core.config_name or type(core).__name__
        raise NonFinite(f"memory {word}: {name} of life {life} is not finite at its step {int(life_step[life])}")
