"""Run a core over rows that are cut into pieces of unequal length, each from a state of its own."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.memory.core import MemoryCore


def run_pieces(
    core: MemoryCore, inputs: Tensor, stored: TensorDict, starts: Tensor
) -> tuple[Tensor, Tensor, TensorDict]:
    """Load ``stored[b, t]`` at the first step of every row and wherever ``starts[b, t]``, and run on from there.

    The pieces run together, without padding and without a loop over T: a piece of 13 steps is run as 8 + 4 + 1, all
    pieces that have an 8 in one call, then all that have a 4, and so on, at most log2(T) + 1 calls. (A core may be
    cut anywhere.)

    Args:
        core: any core.
        inputs: [B, T, D].
        stored: the states to load, batch [B, T] of which only the steps named above are read.
        starts: [B, T] bool.

    Returns:
        outputs [B, T, D]; where the P pieces end, [P] int64, as indices into the flattened [B * T]; their last
        states, batch [P].
    """
    batch, steps, width = inputs.shape
    if not bool(starts[:, 1:].any()):
        outputs, state = core(inputs, stored[:, 0], None)
        return outputs, torch.arange(1, batch + 1, device=inputs.device) * steps - 1, state

    first = starts.clone()
    first[:, 0] = True
    begin = first.flatten().nonzero().squeeze(1)
    lengths = torch.diff(begin, append=begin.new_tensor([batch * steps]))
    flat = inputs.reshape(batch * steps, width)
    state = stored[begin // steps, begin % steps]
    at, outputs_of_stages, places = begin.clone(), [], []
    for stage in reversed(range(int(lengths.max()).bit_length())):
        span = 1 << stage
        chosen = (lengths & span).nonzero().squeeze(1)
        if not len(chosen):
            continue
        index = at[chosen].unsqueeze(1) + torch.arange(span, device=inputs.device)
        outputs, after = core(flat[index], state[chosen], None)
        state = _replace(state, chosen, after)
        at[chosen] += span
        outputs_of_stages.append(outputs.reshape(-1, outputs.shape[-1]))
        places.append(index.flatten())
    outputs = torch.cat(outputs_of_stages)[torch.cat(places).argsort()]
    return outputs.view(batch, steps, -1), begin + lengths - 1, state


def _replace(state: TensorDict, rows: Tensor, new: TensorDict) -> TensorDict:
    """``state`` with ``rows`` replaced, out of place, so that gradients pass through both."""
    replaced = TensorDict({}, state.batch_size)
    for key in state.keys(True, True):
        replaced.set(key, state.get(key).index_copy(0, rows, new.get(key)))
    return replaced
