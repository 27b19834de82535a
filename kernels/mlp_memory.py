"""A memory that is a small network, trained online by the gradient at the start of each chunk.

For every life and head, with the network f(.; W) and chunks of `chunk` steps:

    g_t   = sum_r write_rate_tr dL_tr/dW at base_t,     L_tr = 1/2 |f(key_tr; W) - value_tr|^2
    M_t   = momentum_t M_{t-1} - g_t                    no momentum: M_t = -g_t
    W_t   = exp(log_decay_t) W_{t-1} + M_t
    out_t = f(query_t; W_t)

base_t is W at the start of the chunk that t lies in. A reset drops W, M and the base for the initial weights, which are
learned; it does not move the edges of the chunks. f(x) = W x, or f(x) = W2 gelu(W1 x); with `norm` f(x) = x +
layer_norm(net(x)), which is TTT-linear and TTT-MLP (Sun et al. 2024). Without it and with momentum and decay it is the
memory of Titans (Behrouz et al. 2025). R > 1 pairs a token, as `replay_window` makes them, are the sliding objective of
ATLAS (Behrouz et al. 2025). With `newton_schulz` > 0 iterations, the momentum of a chunk is orthogonalised (Muon) and
added to the weights at the end of the chunk; reads within it see its start.

Because the gradient is that of one point, the writes of a chunk are known before any is made: each layer of the network
at step t is the layer at the entry, weighted, minus a sum of outer products, weighted: the linear memory once a layer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.kernels.chunk_influence import Influence, influence_with_momentum, influence_without_momentum
from lifelong.kernels.mlp_network import Bases, Network, Weights, apply, forward, orthogonalise, pair_gradients
from lifelong.kernels.validation import require


class MLPMemoryState(NamedTuple):
    """weights, base and momentum: one `[B, H, out, in]` a layer; phase: `[B]` int64, steps since the chunk's start."""

    weights: Weights
    base: Weights
    momentum: Weights
    phase: Tensor


class MLPMemoryOutput(NamedTuple):
    """output `[B, T, H, Dv]`, the state after it, surprise `[B, T, H]` or `[B, T, R, H]`: |f(key; base) - value|."""

    output: Tensor
    state: MLPMemoryState
    surprise: Tensor


class _Tokens(NamedTuple):
    """The tokens of a call, with the axis of the pairs always there."""

    query: Tensor  # [B, T, H, Dk]
    key: Tensor  # [B, T, R, H, Dk]
    value: Tensor  # [B, T, R, H, Dv]
    write_rate: Tensor  # [B, T, R, H]
    log_decay: Tensor | None  # [B, T, H]
    momentum: Tensor | None  # [B, T, H]
    reset: Tensor | None  # [B, T]

    def between(self, start: int, stop: int) -> _Tokens:
        cut = {name: tensor[:, start:stop] for name, tensor in self._asdict().items() if tensor is not None}
        return self._replace(**cut)


def mlp_memory(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    initial_weights: Weights,
    log_decay: Tensor | None = None,
    momentum: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: MLPMemoryState | None = None,
    implementation: str = "auto",
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    chunk: int = 16,
    newton_schulz: int = 0,
) -> MLPMemoryOutput:
    """Run the memory over a sequence.

    Args:
        query: `[B, T, H, Dk]`.
        key, value, write_rate: `[B, T, H, Dk]`, `[B, T, H, Dv]`, `[B, T, H]`; with R pairs a token `[B, T, R, H, ...]`.
        initial_weights: one matrix `[H, out, in]` a layer, of one layer (Dk to Dv) or two; the state of a new life.
        log_decay: `[B, T, H]` <= 0.
        momentum: `[B, T, H]` in [0, 1].
        reset: `[B, T]` bool.
        initial_state: what an earlier call returned; None: new lives. Lives must stand at the same step of a chunk,
            unless the implementation is the reference.
        implementation: `"reference"`, a loop over steps, or `"chunked"`; `"auto"` is chunked.
        norm: gain and shift `[H, Dv]` of the layer norm; Dk = Dv.
        chunk: steps that share one point of the gradient.
        newton_schulz: iterations that orthogonalise the momentum; 5 is usual, 0 is none.

    Raises:
        ValueError: an argument has a wrong shape, or the implementation cannot serve the call.
    """
    tokens = _validated(query, key, value, write_rate, log_decay, momentum, reset, initial_weights, norm)
    require(chunk >= 1, "chunk", ">= 1", chunk)
    network = Network(initial_weights, norm, chunk, newton_schulz)
    lives = query.shape[0]
    if initial_state is None:
        fresh = tuple(layer.expand(lives, *layer.shape) for layer in initial_weights)
        zeros = tuple(torch.zeros_like(layer) for layer in fresh)
        phase = torch.zeros(lives, dtype=torch.int64, device=query.device)
        initial_state = MLPMemoryState(fresh, fresh, zeros, phase)
    for layer, initial in zip(initial_state.weights, initial_weights, strict=True):
        require(layer.shape[1:] == initial.shape, "initial_state.weights", f"[B, {list(initial.shape)}] a layer", layer)

    with torch.autocast(query.device.type, enabled=False):
        if implementation == "reference":
            result = _reference(tokens, network, initial_state)
        elif implementation in ("auto", "chunked"):
            result = _chunked(tokens, network, initial_state)
        else:
            raise ValueError(f'implementation must be auto, reference or chunked, got "{implementation}"')
    surprise = result.surprise if key.dim() == 5 else result.surprise[:, :, 0]
    return result._replace(output=result.output.to(value.dtype), surprise=surprise)


def _reference(tokens: _Tokens, network: Network, state: MLPMemoryState) -> MLPMemoryOutput:
    """The definition: the gradient is autograd's."""
    weights, base, running, phase = state
    outputs, surprises = [], []
    for t in range(tokens.query.shape[1]):
        query, key, value, rate = (tensor[:, t] for tensor in tokens[:4])
        log_decay, momentum, reset = (None if tensor is None else tensor[:, t] for tensor in tokens[4:])
        if reset is not None:
            dropped = reset[:, None, None, None]
            weights = tuple(torch.where(dropped, new, old) for new, old in zip(network.initial, weights, strict=True))
            base = tuple(torch.where(dropped, new, old) for new, old in zip(network.initial, base, strict=True))
            running = tuple(layer.masked_fill(dropped, 0.0) for layer in running)

        key, value = key.transpose(1, 2), value.transpose(1, 2)  # [B, H, R, ...]

        def loss(at: Weights) -> tuple[Tensor, Tensor]:
            error = apply(network, at, key) - value  # noqa: B023
            weighted = 0.5 * error.square().sum(-1) * rate.transpose(1, 2)  # noqa: B023
            return weighted.sum(), torch.linalg.vector_norm(error, dim=-1)

        gradient, surprise = torch.func.grad(loss, has_aux=True)(base)
        if momentum is not None:
            running = tuple(momentum[..., None, None] * layer for layer in running)
        running = tuple(layer - step for layer, step in zip(running, gradient, strict=True))
        if log_decay is not None:
            weights = tuple(log_decay.exp()[..., None, None] * layer for layer in weights)
        if not network.newton_schulz:
            weights = tuple(layer + step for layer, step in zip(weights, running, strict=True))
            if momentum is None:
                running = tuple(torch.zeros_like(layer) for layer in running)

        reader = base if network.newton_schulz else weights
        outputs.append(apply(network, reader, query[:, :, None])[:, :, 0])
        surprises.append(surprise.transpose(1, 2))

        phase = (phase + 1) % network.chunk
        done = (phase == 0)[:, None, None, None]
        inside = (weights, base, running)
        at_edge = _at_edge(network, weights, running, momentum is not None)
        weights, base, running = (
            tuple(torch.where(done, new, old) for new, old in zip(after, before, strict=True))
            for after, before in zip(at_edge, inside, strict=True)
        )
    return MLPMemoryOutput(
        torch.stack(outputs, 1), MLPMemoryState(weights, base, running, phase), torch.stack(surprises, 1)
    )


def _chunked(tokens: _Tokens, network: Network, state: MLPMemoryState) -> MLPMemoryOutput:
    """Pieces of the sequence that end at the edges of chunks, each in parallel over its steps."""
    phase = int(state.phase[0])
    if bool((state.phase != phase).any()):
        raise ValueError(
            f'implementation="chunked" needs all lives at the same step of a chunk, got {state.phase.tolist()}; '
            'implementation="reference" does not'
        )
    length = tokens.query.shape[1]
    outputs, surprises, start = [], [], 0
    while start < length:
        stop = min(length, start + network.chunk - phase)
        piece = tokens.between(start, stop)
        output, state, surprise = _piece(piece, network, state)
        outputs.append(output)
        surprises.append(surprise)
        phase = (phase + stop - start) % network.chunk
        if phase == 0:
            edge = _at_edge(network, state.weights, state.momentum, tokens.momentum is not None)
            state = MLPMemoryState(*edge, state.phase)
        start = stop
    state = state._replace(phase=torch.full_like(state.phase, phase))
    return MLPMemoryOutput(torch.cat(outputs, 1), state, torch.cat(surprises, 1))


def _piece(tokens: _Tokens, network: Network, state: MLPMemoryState) -> MLPMemoryOutput:
    """Steps of one chunk. Pairs lie in `[B, H, C * R, ...]`, queries in `[B, H, C, ...]`."""
    lives, size, pairs, heads, _ = tokens.key.shape
    query = tokens.query.transpose(1, 2)
    key, value = (tensor.permute(0, 3, 1, 2, 4).flatten(2, 3) for tensor in (tokens.key, tokens.value))
    rate = tokens.write_rate.permute(0, 3, 1, 2).flatten(2, 3)
    # Before the first reset of the piece the gradient is taken at the base, after it at the initial weights.
    born = None if tokens.reset is None else (tokens.reset.cumsum(1) > 0)[:, None, :, None]
    bases = Bases(state.base, network.initial, born)

    inputs, deltas, surprise = pair_gradients(network, bases.repeated(pairs), key, value, rate)
    influence, planes = _influence(tokens, network, state)
    entry, writes, exit_entry, exit_writes = (part.expand(1, lives, heads, *part.shape[-2:])[0] for part in influence)
    entry, writes = entry[:, :, size:], writes[:, :, size:].repeat_interleave(pairs, -1)
    exit_writes = exit_writes.repeat_interleave(pairs, -1)

    def read_layer(layer: int, vectors: Tensor) -> Tensor:
        if network.newton_schulz:
            return bases.times(layer, vectors)
        old = [weight * (vectors @ plane.mT) for weight, plane in zip(entry.split(1, -1), planes[layer], strict=True)]
        return sum(old) - ((vectors @ inputs[layer].mT) * writes) @ deltas[layer]

    output = forward(network, read_layer, query)[-1]

    def leave(plane: int, layer: int) -> Tensor:
        old = sum(exit_entry[:, :, plane, p, None, None] * planes[layer][p] for p in range(len(planes[layer])))
        return old - (deltas[layer] * exit_writes[:, :, plane, :, None]).mT @ inputs[layer]

    layers = range(len(network.initial))
    weights = tuple(leave(0, layer) for layer in layers)
    running = state.momentum
    if tokens.momentum is not None or network.newton_schulz:
        running = tuple(leave(1, layer) for layer in layers)
    after = MLPMemoryState(weights, bases.last(), running, state.phase)
    return MLPMemoryOutput(output.transpose(1, 2), after, surprise.unflatten(2, (size, pairs)).permute(0, 2, 3, 1))


def _influence(tokens: _Tokens, network: Network, state: MLPMemoryState) -> tuple[Influence, list[list[Tensor]]]:
    """Influence of one piece, without write rates, and for each layer the planes that it weighs."""
    size, like = tokens.query.shape[1], tokens.query
    log_decay = None if tokens.log_decay is None else tokens.log_decay.transpose(1, 2)[None]
    reset = None if tokens.reset is None else tokens.reset[None]
    options = {"error_before_decay": True, "learned_reset": reset is not None}
    initial = [[] if reset is None else [layer] for layer in network.initial]
    if tokens.momentum is None and not network.newton_schulz:
        influence = influence_without_momentum(size, log_decay, reset, like, **options)
        return influence, [[layer, *new] for layer, new in zip(state.weights, initial, strict=True)]

    momentum = like.new_ones(like.shape[:3]) if tokens.momentum is None else tokens.momentum
    decay = None if network.newton_schulz else log_decay
    influence = influence_with_momentum(decay, momentum.transpose(1, 2)[None], reset, padding=0, **options)
    planes = [list(layers) for layers in zip(state.weights, state.momentum, strict=True)]
    planes = [old + new for old, new in zip(planes, initial, strict=True)]
    if not network.newton_schulz:
        return influence, planes
    # The weights only decay within a chunk, and the momentum is added at its end.
    alone = influence_without_momentum(size, log_decay, reset, like, **options)
    kept = alone.exit_entry.expand(*influence.exit_entry.shape[:3], -1, -1)[..., :1, :]
    kept = torch.cat([kept[..., :1], torch.zeros_like(kept[..., :1]), kept[..., 1:]], -1)
    writes = influence.exit_writes
    return Influence(
        influence.entry,
        influence.writes,
        torch.cat([kept, influence.exit_entry[..., 1:, :]], -2),
        torch.cat([torch.zeros_like(writes[..., :1, :]), writes[..., 1:, :]], -2),
    ), planes


def _at_edge(
    network: Network, weights: Weights, running: Weights, with_momentum: bool
) -> tuple[Weights, Weights, Weights]:
    """Weights, base and momentum with which the next chunk starts."""
    if network.newton_schulz:
        weights = tuple(
            layer + orthogonalise(step, network.newton_schulz) for layer, step in zip(weights, running, strict=True)
        )
        if not with_momentum:
            running = tuple(torch.zeros_like(layer) for layer in running)
    return weights, weights, running


def _validated(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    log_decay: Tensor | None,
    momentum: Tensor | None,
    reset: Tensor | None,
    initial_weights: Weights,
    norm: tuple[Tensor, Tensor] | None,
) -> _Tokens:
    require(query.dim() == 4 and query.numel() > 0, "query", "[B, T, H, Dk]", query)
    lives, length, heads, width = query.shape
    if key.dim() == 4:
        key, value, write_rate = key[:, :, None], value[:, :, None], write_rate[:, :, None]
    pairs = (lives, length, key.shape[2] if key.dim() == 5 else 1, heads)
    require(key.shape == (*pairs, width), "key", f"{[lives, length, heads, width]}, or with R pairs a token", key)
    require(value.shape[:-1] == pairs, "value", f"{[*pairs, 'Dv']}", value)
    require(write_rate.shape == pairs, "write_rate", f"{[*pairs]}", write_rate)
    for name, gate in (("log_decay", log_decay), ("momentum", momentum)):
        require(gate is None or gate.shape == (lives, length, heads), name, f"{[lives, length, heads]}", gate)
    fits = reset is None or (reset.shape == (lives, length) and reset.dtype == torch.bool)
    require(fits, "reset", f"{[lives, length]} of torch.bool", reset)

    shapes = [layer.shape for layer in initial_weights]
    ends = len(shapes) in (1, 2) and shapes[0][0] == heads and shapes[0][2] == width
    ends = ends and shapes[-1][1] == value.shape[-1] and (len(shapes) == 1 or shapes[0][1] == shapes[1][2])
    allowed = f"one or two matrices [H, out, in] from {width} to {value.shape[-1]} with H = {heads}"
    require(ends, "initial_weights", allowed, [list(shape) for shape in shapes])
    if norm is not None:
        require(
            width == value.shape[-1], "norm", f"None unless Dk = Dv, which are {width} and {value.shape[-1]}", norm[0]
        )
        for part in norm:
            require(part.shape == (heads, width), "norm", f"gain and shift {[heads, width]}", part)
    dtype = initial_weights[0].dtype
    log_decay, momentum = (None if gate is None else gate.to(dtype) for gate in (log_decay, momentum))
    query, key, value, write_rate = (tensor.to(dtype) for tensor in (query, key, value, write_rate))
    return _Tokens(query, key, value, write_rate, log_decay, momentum, reset)
