"""A memory that is a small network, trained online by the gradient at the start of each chunk.

For every life and head, with the network f(.; W) and chunks of `chunk` steps:

    g_t   = sum_r write_rate_tr dL_tr/dW at base_t,     L_tr = 1/2 |f(key_tr; W) - value_tr|^2
    M_t   = momentum_t M_{t-1} - g_t                    no momentum: M_t = -g_t
    W_t   = exp(log_decay_t) W_{t-1} + M_t              `pull`: decay towards the initial weights, not towards zero
    out_t = f(query_t; W_t)

base_t is W at the start of the chunk that t lies in; chunks are counted from the start of the life. A reset drops W, M
and the base for the initial weights, which are learned, and starts a chunk: it equals a fresh start. f(x) = W x, or
f(x) = W2 gelu(W1 x); with biases, W x + w; with `norm`, f(x) = x + layer_norm(net(x)). One normed layer is TTT-linear,
two are TTT-MLP (Sun et al. 2024, section 2.7; there L has 1 in place of 1/2). Two with momentum and decay are the
memory of Titans (Behrouz et al. 2025, eq. 13 and 14). R > 1 pairs a token, as `replay_window` makes them, are the
sliding objective of ATLAS (Behrouz et al. 2025, eq. 9), and so is Muon: with `newton_schulz` > 0 iterations NS,

    M_t = momentum_t M_{t-1} - g_t                      no momentum: M = 0 at the start of a chunk, then 1
    W_t = exp(log_decay_t) W_{t-1}                      and at the last step of a chunk: + update_rate_t NS(M_t)

Because the gradient is that of one point, the writes of a chunk are known before any is made: each layer of the network
at step t is the layer at the entry, weighted, minus a sum of outer products, weighted: the linear memory once a layer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.kernels.mlp_chunks import Kept, LifeChunks, kept
from lifelong.kernels.mlp_network import Network, Weights, apply, forward, orthogonalise, pair_gradients
from lifelong.kernels.validation import require, require_shape


class MLPMemoryState(NamedTuple):
    """weights, base and momentum: one `[B, H, out, in]` a layer; phase: `[B]` int64, steps since the chunk's start.

    momentum is empty where there is neither momentum nor Newton-Schulz.
    """

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

    query: Tensor  # [B, T, 1, H, Dk]
    key: Tensor  # [B, T, R, H, Dk]
    value: Tensor  # [B, T, R, H, Dv]
    write_rate: Tensor  # [B, T, R, H]
    log_decay: Tensor | None  # [B, T, 1, H]
    momentum: Tensor | None  # [B, T, 1, H]
    update_rate: Tensor | None  # [B, T, 1, H]


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
    pull: bool = False,
    chunk: int = 16,
    newton_schulz: int = 0,
    update_rate: Tensor | None = None,
) -> MLPMemoryOutput:
    """Run the memory over a sequence.

    Args:
        query: `[B, T, H, Dk]`.
        key, value, write_rate: `[B, T, H, Dk]`, `[B, T, H, Dv]`, `[B, T, H]`; with R pairs a token `[B, T, R, H, ...]`.
        initial_weights: one matrix `[H, out, in]` a layer, of one layer (Dk to Dv) or two; the state of a new life.
            With one column more in every layer, that is the bias.
        log_decay: `[B, T, H]` <= 0.
        momentum: `[B, T, H]` in [0, 1].
        reset: `[B, T]` bool.
        initial_state: what an earlier call returned; None: new lives. Lives may stand at unlike steps of their chunks.
        implementation: `"reference"`, a loop over steps, or `"chunked"`; `"auto"` is chunked.
        norm: gain and shift `[H, Dv]` of the layer norm; Dk = Dv.
        pull: whether what decays is the difference to the initial weights.
        chunk: steps that share one point of the gradient.
        newton_schulz: iterations that orthogonalise the momentum; 5 is usual, 0 is none.
        update_rate: `[B, T, H]`, of the orthogonalised momentum; None: 1.

    Raises:
        ValueError: an argument has a wrong shape, or the implementation is unknown.
    """
    require(type(chunk) is int and chunk >= 1, "chunk", ">= 1", chunk)
    whole = type(newton_schulz) is int and newton_schulz >= 0
    require(whole, "newton_schulz", "a whole number >= 0", newton_schulz)
    require(
        update_rate is None or newton_schulz > 0, "update_rate", "None unless newton_schulz > 0", "newton_schulz = 0"
    )
    tokens, bias = _validated(query, key, value, write_rate, initial_weights, norm, log_decay, momentum, update_rate)
    fits = reset is None or (reset.shape == query.shape[:2] and reset.dtype == torch.bool)
    require(fits, "reset", f"{[*query.shape[:2]]} of torch.bool", reset)
    gain_and_shift = None if norm is None else (norm[0][:, None], norm[1][:, None])
    network = Network(initial_weights, gain_and_shift, bias, pull, chunk, newton_schulz)
    lives, length = query.shape[:2]
    if initial_state is None:
        fresh = tuple(layer.expand(lives, *layer.shape) for layer in initial_weights)
        zeros = () if momentum is None and not newton_schulz else tuple(torch.zeros_like(layer) for layer in fresh)
        phase = torch.zeros(lives, dtype=torch.int64, device=query.device)
        initial_state = MLPMemoryState(fresh, fresh, zeros, phase)
    _check_state(initial_state, initial_weights, lives, with_momentum=momentum is not None or newton_schulz > 0)

    with torch.autocast(query.device.type, enabled=False):
        if implementation == "reference":
            result = _by_steps(tokens, network, initial_state, reset, by_autograd=True)
        elif implementation in ("auto", "chunked"):
            if chunk == 1 or length == 1:
                result = _by_steps(tokens, network, initial_state, reset, by_autograd=False)
            else:
                result = _chunked(tokens, network, initial_state, reset)
        else:
            raise ValueError(f'implementation must be auto, reference or chunked, got "{implementation}"')
    surprise = result.surprise if key.dim() == 5 else result.surprise[:, :, 0]
    return result._replace(output=result.output.to(value.dtype), surprise=surprise)


def _by_steps(
    tokens: _Tokens, network: Network, state: MLPMemoryState, reset: Tensor | None, by_autograd: bool
) -> MLPMemoryOutput:
    """The definition, step by step; the gradient of the pairs is autograd's, or written out."""
    outputs, surprises = [], []
    over_time = [[None] * tokens.query.shape[1] if tensor is None else tensor.unbind(1) for tensor in tokens]
    for t, (query, key, value, rate, log_decay, momentum, update_rate) in enumerate(zip(*over_time, strict=True)):
        if reset is not None:
            state = _dropped(network, state, reset[:, t])
        weights, base, running, phase = state
        key, value, rate = key.transpose(1, 2), value.transpose(1, 2), rate.transpose(1, 2)  # [B, H, R, ...]
        if by_autograd:
            gradient, surprise = _gradient_by_autograd(network, base, key, value, rate)
        else:
            inputs, deltas, surprise = pair_gradients(network, base, key, value, rate)
            gradient = tuple(delta.mT @ rows for delta, rows in zip(deltas, inputs, strict=True))

        if log_decay is not None:
            weights = _decayed(network, weights, log_decay.exp().mT[..., None])
        if momentum is not None:
            running = tuple(
                momentum.mT[..., None] * layer - step for layer, step in zip(running, gradient, strict=True)
            )
        if network.newton_schulz:
            if momentum is None:
                running = tuple(layer - step for layer, step in zip(running, gradient, strict=True))
            done = (phase == network.chunk - 1)[:, None, None, None]
            weights, running = _muon(network, weights, running, update_rate, done, keep=momentum is not None)
        elif momentum is not None:
            weights = tuple(layer + step for layer, step in zip(weights, running, strict=True))
        else:
            weights = tuple(layer - step for layer, step in zip(weights, gradient, strict=True))

        outputs.append(apply(network, weights, query.transpose(1, 2))[:, :, 0])
        surprises.append(surprise.transpose(1, 2))
        if network.chunk == 1:
            state = MLPMemoryState(weights, weights, running, phase)
            continue
        phase = (phase + 1) % network.chunk
        state = MLPMemoryState(weights, _chosen((phase == 0)[:, None, None, None], weights, base), running, phase)
    return MLPMemoryOutput(torch.stack(outputs, 1), state, torch.stack(surprises, 1))


def _gradient_by_autograd(
    network: Network, base: Weights, key: Tensor, value: Tensor, rate: Tensor
) -> tuple[Weights, Tensor]:
    def loss(weights: Weights) -> tuple[Tensor, Tensor]:
        error = apply(network, weights, key) - value
        return (0.5 * error.square().sum(-1) * rate).sum(), torch.linalg.vector_norm(error, dim=-1)

    gradient, surprise = torch.func.grad(loss, has_aux=True)(base)
    return gradient, surprise


def _decayed(network: Network, weights: Weights, decay: Tensor) -> Weights:
    if network.pull:
        return tuple(torch.lerp(goal, layer, decay) for goal, layer in zip(network.initial, weights, strict=True))
    return tuple(decay * layer for layer in weights)


def _chosen(condition: Tensor, yes: Weights, no: Weights) -> Weights:
    return tuple(torch.where(condition, a, b) for a, b in zip(yes, no, strict=True))


def _dropped(network: Network, state: MLPMemoryState, dropped: Tensor) -> MLPMemoryState:
    """New lives where `dropped` `[B]`."""
    if not bool(dropped.any()):
        return state
    rows = dropped[:, None, None, None]
    weights = _chosen(rows, network.initial, state.weights)
    base = weights if state.base is state.weights else _chosen(rows, network.initial, state.base)
    momentum = tuple(layer.masked_fill(rows, 0.0) for layer in state.momentum)
    return MLPMemoryState(weights, base, momentum, state.phase.masked_fill(dropped, 0))


def _muon(
    network: Network, weights: Weights, running: Weights, update_rate: Tensor | None, done: Tensor, *, keep: bool
) -> tuple[Weights, Weights]:
    """Where `done` `[B, 1, 1, 1]`, add the orthogonalised momentum; update_rate `[B, 1, H]`."""
    moves = [orthogonalise(layer, network.newton_schulz) for layer in running]
    if update_rate is not None:
        moves = [update_rate.mT[..., None] * move for move in moves]
    moved = tuple(layer + move for layer, move in zip(weights, moves, strict=True))
    if not keep:
        running = tuple(layer.masked_fill(done, 0.0) for layer in running)
    return _chosen(done, moved, weights), running


def _chunked(tokens: _Tokens, network: Network, state: MLPMemoryState, reset: Tensor | None) -> MLPMemoryOutput:
    """The chunks of all lives side by side, each in parallel over its steps."""
    length, pairs = tokens.key.shape[1:3]
    chunks = LifeChunks.of(length, network.chunk, state.phase, reset)
    query, key, value, rate = (chunks.spread(tensor) for tensor in tokens[:4])
    log_decay, momentum, update_rate = (None if gate is None else chunks.spread(gate) for gate in tokens[4:])
    if momentum is None and network.newton_schulz:
        momentum = torch.ones_like(query[..., 0])
    left = kept(chunks.size, log_decay, momentum, chunks.real, query)
    flags = torch.stack([chunks.fresh.any(1), chunks.done.any(1), chunks.last.any(1)]).tolist()

    outputs, surprises = [], []
    base, base_of_last = state.base, state.base
    parts = zip(query.unbind(), key.unbind(), value.unbind(), rate.unbind(), left.in_weights.unbind(), strict=True)
    for n, (a_query, a_key, a_value, a_rate, in_weights) in enumerate(parts):
        any_fresh, any_done, any_last = (flag[n] for flag in flags)
        if any_fresh:
            state = _dropped(network, state, chunks.fresh[n])
        # A chunk begins at an edge or with a reset, but for the first, which may go on with one of the last call.
        base = state.base if n == 0 else state.weights
        here = left._replace(
            in_weights=in_weights, in_momentum=None if left.in_momentum is None else left.in_momentum[n]
        )
        inputs, deltas, surprise = pair_gradients(network, base, a_key, a_value, a_rate)
        output = _read(network, state, here, inputs, deltas, a_query, pairs)
        weights, running = _left(network, state, here, inputs, deltas, pairs)
        if network.newton_schulz and any_done:
            done = chunks.done[n, :, None, None, None]
            last = chunks.real[n] & ~torch.nn.functional.pad(chunks.real[n, :, 1:], (0, 1))
            at_last = last[:, None, :, None]
            rates = None if update_rate is None else (update_rate[n] * at_last[..., 0]).sum(-1)[:, None]
            weights, running = _muon(network, weights, running, rates, done, keep=tokens.momentum is not None)
            output = torch.where(at_last & done, apply(network, weights, a_query), output)
        if any_last:
            base_of_last = _chosen(chunks.last[n, :, None, None, None], base, base_of_last)
        state = MLPMemoryState(weights, weights, running, chunks.phase)
        outputs.append(output)
        surprises.append(surprise.unflatten(-1, (chunks.size, pairs)))
    state = state._replace(base=_chosen((chunks.phase == 0)[:, None, None, None], state.weights, base_of_last))
    surprise = chunks.collect(torch.stack(surprises)).transpose(2, 3)
    return MLPMemoryOutput(chunks.collect(torch.stack(outputs)), state, surprise)


def _read(
    network: Network,
    state: MLPMemoryState,
    here: Kept,
    inputs: list[Tensor],
    deltas: list[Tensor],
    query: Tensor,
    pairs: int,
) -> Tensor:
    """f(query_t; W_t) at every step of a chunk, with Newton-Schulz as if no momentum were added."""
    size = query.shape[-2]
    planes, writes = here.in_weights.split([here.in_weights.shape[-1] - size, size], -1)
    of_weights, of_momentum = planes[..., :1], planes[..., 1:]
    if pairs > 1:
        writes = writes.repeat_interleave(pairs, -1)

    def times(layer: int, rows: Tensor) -> Tensor:
        old = rows @ state.weights[layer].mT
        if not here.all:
            old = of_weights * old
        if network.pull and not here.all:
            old = old + (1 - of_weights) * (rows @ network.initial[layer].mT)
        if network.newton_schulz:
            return old
        if of_momentum.shape[-1]:
            old = old + of_momentum * (rows @ state.momentum[layer].mT)
        return old - ((rows @ inputs[layer].mT) * writes) @ deltas[layer]

    return forward(network, times, query)


def _left(
    network: Network, state: MLPMemoryState, here: Kept, inputs: list[Tensor], deltas: list[Tensor], pairs: int
) -> tuple[Weights, Weights]:
    """Weights and momentum that a chunk leaves, with Newton-Schulz before any momentum is added."""
    last = here.in_weights[:, :, -1]  # blank steps keep everything, so the last row is that of the last step
    weights = state.weights if here.all else _decayed(network, state.weights, last[..., 0, None, None])
    planes = 1 if here.in_momentum is None else 2

    def written(layer: int, share: Tensor) -> Tensor:
        if here.all:
            return deltas[layer].mT @ inputs[layer]
        share = share.repeat_interleave(pairs, -1) if pairs > 1 else share
        return (deltas[layer] * share[..., None]).mT @ inputs[layer]

    layers = range(len(weights))
    running = state.momentum
    if here.in_momentum is not None:
        of_running, share = here.in_momentum[..., 0, None, None], here.in_momentum[..., 1:]
        running = tuple(of_running * running[layer] - written(layer, share) for layer in layers)
    if network.newton_schulz:
        return weights, running
    if planes == 2:
        of_momentum = last[..., 1, None, None]
        weights = tuple(weights[layer] + of_momentum * state.momentum[layer] for layer in layers)
    return tuple(weights[layer] - written(layer, last[..., planes:]) for layer in layers), running


def _check_state(state: MLPMemoryState, initial_weights: Weights, lives: int, *, with_momentum: bool) -> None:
    require(isinstance(state, MLPMemoryState), "initial_state", "an MLPMemoryState", state)
    momentum = len(initial_weights) if with_momentum else 0
    for name, layers, count in (
        ("weights", state.weights, len(initial_weights)),
        ("base", state.base, len(initial_weights)),
        ("momentum", state.momentum, momentum),
    ):
        fits = len(layers) == count
        require(fits, f"initial_state.{name}", f"of {count} layers, as this call needs", f"{len(layers)} layers")
        for layer, initial in zip(layers, initial_weights, strict=False):
            require_shape(f"initial_state.{name}", layer, (lives, *initial.shape), initial.dtype)
    require_shape("initial_state.phase", state.phase, (lives,), torch.int64)


def _validated(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    initial_weights: Weights,
    norm: tuple[Tensor, Tensor] | None,
    log_decay: Tensor | None,
    momentum: Tensor | None,
    update_rate: Tensor | None,
) -> tuple[_Tokens, bool]:
    """The tokens in the dtype of the weights, and whether the network has biases."""
    fits = isinstance(query, Tensor) and query.dim() == 4 and query.numel() > 0
    require(fits, "query", "a non-empty tensor [B, T, H, Dk]", query)
    matrices = isinstance(initial_weights, tuple) and all(
        isinstance(layer, Tensor) and layer.dim() == 3 for layer in initial_weights
    )
    require(matrices, "initial_weights", "a tuple of matrices [H, out, in]", initial_weights)
    named = {"query": query, "key": key, "value": value, "write_rate": write_rate}
    for name, tensor in named.items():
        require(isinstance(tensor, Tensor), name, "a tensor", tensor)
    gates = {"log_decay": log_decay, "momentum": momentum, "update_rate": update_rate}
    for name, tensor in (named | {name: gate for name, gate in gates.items() if gate is not None}).items():
        require(isinstance(tensor, Tensor), name, "a tensor", tensor)
        weights = initial_weights[0].dtype if initial_weights else tensor.dtype
        same = tensor.is_floating_point() and (tensor.dtype == torch.float64) == (weights == torch.float64)
        require(same, name, f"of the precision of initial_weights, {weights}", tensor)
    axes = (key.dim(), value.dim(), write_rate.dim())
    require(axes in ((4, 4, 3), (5, 5, 4)), "key", "[B, T, H, Dk], or [B, T, R, H, Dk] with R pairs of all three", key)
    require(key.numel() > 0, "key", "not empty", key)
    lives, length, heads, width = query.shape
    if key.dim() == 4:
        key, value, write_rate = key[:, :, None], value[:, :, None], write_rate[:, :, None]
    pairs = (lives, length, key.shape[2] if key.dim() == 5 else 1, heads)
    require(key.shape == (*pairs, width), "key", f"{[lives, length, heads, width]}, or with R pairs a token", key)
    require(value.shape[:-1] == pairs, "value", f"{[*pairs, 'Dv']}", value)
    require(write_rate.shape == pairs, "write_rate", f"{[*pairs]}", write_rate)
    for name, gate in gates.items():
        require(gate is None or gate.shape == (lives, length, heads), name, f"{[lives, length, heads]}", gate)

    shapes = [layer.shape for layer in initial_weights]
    bias = len(shapes) > 0 and shapes[0][-1] == width + 1
    more = int(bias)
    ends = len(shapes) in (1, 2) and shapes[0][0] == heads and shapes[0][2] == width + more
    ends = ends and shapes[-1][1] == value.shape[-1] and (len(shapes) == 1 or shapes[0][1] == shapes[1][2] - more)
    allowed = f"one or two matrices [H, out, in] from {width} to {value.shape[-1]} with H = {heads}"
    require(ends, "initial_weights", allowed, [list(shape) for shape in shapes])
    if norm is not None:
        require(
            width == value.shape[-1], "norm", f"None unless Dk = Dv, which are {width} and {value.shape[-1]}", norm[0]
        )
        for part in norm:
            require(part.shape == (heads, width), "norm", f"gain and shift {[heads, width]}", part)
    dtype = initial_weights[0].dtype
    query, key, value, write_rate = (tensor.to(dtype) for tensor in (query, key, value, write_rate))
    of_tokens = (None if gate is None else gate.to(dtype)[:, :, None] for gate in gates.values())
    return _Tokens(query[:, :, None], key, value, write_rate, *of_tokens), bias
