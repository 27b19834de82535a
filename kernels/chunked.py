"""The fast-weight operation in parallel over the steps of a chunk, in torch: exact, on any device.

Inside a chunk every write influences every later read and erasure by a scalar, or for a decay per channel by a vector;
`chunk_influence` works those out. `chunk_scan` does the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lifelong.kernels import reference
from lifelong.kernels.chunk_channels import channel_matrices
from lifelong.kernels.chunk_influence import Influence, influence_with_momentum, influence_without_momentum
from lifelong.kernels.chunk_scan import ChunkMatrices, chunk_scan
from lifelong.kernels.chunking import Chunks
from lifelong.kernels.reference import pack_state
from lifelong.kernels.types import FastWeightCall, FastWeightOutput


def refusal(call: FastWeightCall) -> str | None:
    """Why this implementation cannot serve the call; None if it can."""
    if call.error_function.name != "squared":
        return (
            f'the "{call.error_function.name}" error is not linear in the state, so only a loop over time can follow it'
        )
    if call.per_channel_decay and call.momentum is not None and not call.is_step:
        return "momentum with a decay per channel has no chunk form here, only a loop over time can follow it"
    return None


def attention(call: FastWeightCall) -> FastWeightOutput:
    """All chunks of the sequence."""
    # Under autocast, torch would multiply in bfloat16; the state needs float32.
    with torch.autocast(call.query.device.type, enabled=False):
        result = _attention(call.in_state_dtype())
    return result._replace(output=result.output.to(call.value.dtype))


def step(call: FastWeightCall) -> FastWeightOutput:
    """A chunk of one step, by a few batched products that touch the state as seldom as possible."""
    if call.requires_grad:
        return reference.step(call)
    with torch.autocast(call.query.device.type, enabled=False):
        result = _step(call.in_state_dtype())
    return result._replace(output=result.output.to(call.value.dtype))


def _step(call: FastWeightCall) -> FastWeightOutput:
    weights, momentum, owned = _after_reset(call)
    lives, heads, value_width, key_width = weights.shape
    decay = None if call.log_decay is None else call.log_decay.exp()
    if decay is not None and not call.per_channel_decay:
        decay = decay[..., None]

    # What the decayed state answers to query and erase key is what the state answers to the decayed query and key:
    # one pass over the state, before it is written, reads for both.
    query = call.query if decay is None else call.query * decay
    erase_key = call.key if call.erase_key is None else call.erase_key
    if decay is not None and not call.error_before_decay:
        erase_key = erase_key * decay
    asked = torch.stack([erase_key, query], 2).view(-1, 2, key_width)
    answers = torch.bmm(asked, weights.reshape(-1, value_width, key_width).mT).view(lives, heads, 2, value_width)
    known, output = answers.unbind(2)

    prediction_error = call.value - known
    if isinstance(call.erase, Tensor):
        error = torch.where(call.erase[:, None], prediction_error, call.value)
    else:
        error = prediction_error if call.erase else call.value
    written = error * call.write_rate[..., None]

    if decay is not None:
        decay = decay[..., None, :]
        weights, owned = (weights.mul_(decay) if owned else weights * decay), True
    if not owned:
        weights = weights.clone()
    if momentum is None or call.momentum is None:
        _add_outer_products(weights, written, call.key)
        output = output + written * torch.linalg.vecdot(call.key, call.query)[..., None]
    else:
        kept = call.momentum[..., None, None]
        momentum = momentum.mul_(kept) if call.in_place else momentum * kept
        _add_outer_products(momentum, written, call.key)
        weights += momentum
        output = output + (call.query[..., None, :] @ momentum.mT)[..., 0, :]
    surprise = torch.linalg.vector_norm(prediction_error, dim=-1)
    return FastWeightOutput(output, pack_state(weights, momentum), surprise)


def _after_reset(call: FastWeightCall) -> tuple[Tensor, Tensor | None, bool]:
    """Weights and momentum after the reset, and whether the weights may be overwritten."""
    weights, momentum = call.initial_weights, call.initial_momentum
    if call.reset is None:
        return weights, momentum, call.in_place
    if call.reset.is_cuda or torch.compiler.is_compiling():
        dropped = call.reset[:, None, None, None]
        fresh = torch.where(dropped, 0.0 if call.reset_state is None else call.reset_state, weights)
        weights = weights.copy_(fresh) if call.in_place else fresh
        if momentum is not None:
            momentum = momentum.masked_fill_(dropped, 0.0) if call.in_place else momentum.masked_fill(dropped, 0.0)
        return weights, momentum, True
    # On a CPU, to look costs next to nothing, and most steps reset no life or few: only those are written to.
    lives = call.reset.nonzero()[:, 0]
    if len(lives) == 0:
        return weights, momentum, call.in_place
    if not call.in_place:
        weights, momentum = weights.clone(), None if momentum is None else momentum.clone()
    if call.reset_state is None:
        weights.index_fill_(0, lives, 0.0)
    else:
        weights[lives] = call.reset_state
    if momentum is not None:
        momentum.index_fill_(0, lives, 0.0)
    return weights, momentum, True


def _add_outer_products(matrices: Tensor, left: Tensor, right: Tensor) -> None:
    """matrices `[B, H, Dv, Dk]` += left `[B, H, Dv]` right `[B, H, Dk]`^T."""
    flat = matrices.view(-1, *matrices.shape[2:])
    flat.baddbmm_(left.reshape(len(flat), -1, 1), right.reshape(len(flat), 1, -1))


def _attention(call: FastWeightCall) -> FastWeightOutput:
    # With a decay per channel, chunks are halved down to single steps.
    chunks = Chunks.of(call.query.shape[1], power_of_two=call.per_channel_decay)
    lives, heads = call.query.shape[0], call.query.shape[2]
    value = chunks.split(call.value).contiguous()
    matrices = _channel_matrices(call, chunks) if call.per_channel_decay else _scalar_matrices(call, chunks)
    result = chunk_scan(
        value.flatten(1, 2),
        ChunkMatrices(*(matrix.flatten(1, 2) for matrix in matrices)),
        call.erase if isinstance(call.erase, bool) else call.erase.repeat(lives).to(value.dtype),
        _planes(call),
    )

    output = chunks.join(result.output.unflatten(1, (lives, heads)))
    surprise = chunks.join(torch.linalg.vector_norm(result.prediction_error, dim=-1).unflatten(1, (lives, heads)))
    weights, *others = result.state.mT.unflatten(0, (lives, heads)).split(call.key.shape[-1], -1)
    state = pack_state(weights.contiguous(), None if call.momentum is None else others[0].contiguous())
    return FastWeightOutput(output, state, surprise)


def _scalar_matrices(call: FastWeightCall, chunks: Chunks) -> ChunkMatrices:
    query, key = chunks.split(call.query).contiguous(), chunks.split(call.key).contiguous()
    erase_key = key if call.erase_key is None else chunks.split(call.erase_key).contiguous()
    influence = _influence(call, chunks)
    rate = chunks.split(call.write_rate)[..., None, :]
    known, read = (influence.writes * rate).split(chunks.size, -2)
    known_entry, read_entry = influence.entry.split(chunks.size, -2)
    return ChunkMatrices(
        _spread(erase_key, known_entry),
        _spread(query, read_entry),
        erase_key @ key.mT * known,
        query @ key.mT * read,
        _spread(key, (influence.exit_writes * rate).mT),
        influence.exit_entry[..., None].expand(*key.shape[:3], -1, -1, -1),
    )


def _channel_matrices(call: FastWeightCall, chunks: Chunks) -> ChunkMatrices:
    assert call.log_decay is not None
    erase_key = call.key if call.erase_key is None else call.erase_key
    return channel_matrices(
        torch.stack([chunks.split(erase_key), chunks.split(call.query)], -3),
        chunks.split(call.key) * chunks.split(call.write_rate)[..., None],
        chunks.split(call.log_decay),
        None if call.reset is None else chunks.split_shared(call.reset),
        error_before_decay=call.error_before_decay,
        learned_reset=call.reset_state is not None,
    )


def _influence(call: FastWeightCall, chunks: Chunks) -> Influence:
    log_decay = None if call.log_decay is None else chunks.split(call.log_decay)
    reset = None if call.reset is None else chunks.split_shared(call.reset)
    options = {
        "error_before_decay": call.error_before_decay,
        "learned_reset": call.reset_state is not None and reset is not None,
    }
    if call.momentum is None:
        return influence_without_momentum(chunks.size, log_decay, reset, call.write_rate, **options)
    return influence_with_momentum(log_decay, chunks.split(call.momentum), reset, padding=chunks.padding, **options)


def _planes(call: FastWeightCall) -> Tensor:
    """The state as `[B * H, P * Dk, Dv]`."""
    planes = [call.initial_weights]
    if call.initial_momentum is not None:
        planes.append(call.initial_momentum)
    if call.reset_state is not None and call.reset is not None:
        planes.append(call.reset_state.expand_as(call.initial_weights))
    return torch.cat(planes, -1).flatten(0, 1).mT


def _spread(vectors: Tensor, weights: Tensor) -> Tensor:
    """Vectors `[..., R, Dk]` weighted for each plane, `[..., R, P]`, side by side: `[..., R, P * Dk]`."""
    return (weights[..., None] * vectors[..., None, :]).flatten(-2)
