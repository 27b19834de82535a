"""The definition of the fast-weight operation: a loop over time that reads like the equations, in any float dtype.

Every other implementation is tested against this one in float64, values and gradients. It serves every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from lifelong.kernels.types import ErrorFunction, FastWeightCall, FastWeightOutput, MomentumState, State


def refusal(call: FastWeightCall) -> str | None:
    """None: the reference serves every call."""
    return None


def attention(call: FastWeightCall) -> FastWeightOutput:
    """The sequence as a fold of single steps."""
    outputs, surprises = [], []
    state = pack_state(call.initial_weights, call.initial_momentum)
    # Under autocast, torch would multiply in bfloat16; the state needs float32.
    with torch.autocast(call.query.device.type, enabled=False):
        for token in _tokens(call.in_state_dtype()):
            output, state, surprise = _advance(token, state)
            outputs.append(output)
            surprises.append(surprise)
    return FastWeightOutput(torch.stack(outputs, 1).to(call.value.dtype), state, torch.stack(surprises, 1))


def step(call: FastWeightCall) -> FastWeightOutput:
    """One step."""
    old = pack_state(call.initial_weights, call.initial_momentum)
    with torch.autocast(call.query.device.type, enabled=False):
        output, new, surprise = _advance(call.in_state_dtype(), old)
    if call.in_place:
        new = _overwrite(old, new)
    return FastWeightOutput(output.to(call.value.dtype), new, surprise)


def pack_state(weights: Tensor, momentum: Tensor | None) -> State:
    """The public form of a state: the bare weights where there is no momentum."""
    return weights if momentum is None else MomentumState(weights, momentum)


def _advance(token: FastWeightCall, state: State) -> FastWeightOutput:
    """One step of the recurrence that `FastWeightCall` writes out."""
    weights, momentum = state if isinstance(state, MomentumState) else (state, None)
    if token.reset is not None:
        dropped = token.reset[:, None, None, None]
        weights = torch.where(dropped, 0.0 if token.reset_state is None else token.reset_state, weights)
        momentum = None if momentum is None else torch.where(dropped, 0.0, momentum)

    decayed = weights if token.log_decay is None else weights * _per_column(token.log_decay.exp(), weights)
    erase_key = token.key if token.erase_key is None else token.erase_key
    prediction_error = token.value - _read(weights if token.error_before_decay else decayed, erase_key)
    if isinstance(token.erase, Tensor):
        error = torch.where(token.erase[:, None], prediction_error, token.value)
    else:
        error = prediction_error if token.erase else token.value

    written = token.write_rate[..., None] * _bend(error, token.error_function)
    update = written[..., :, None] * token.key[..., None, :]
    if momentum is not None and token.momentum is not None:
        update = momentum = token.momentum[..., None, None] * momentum + update
    weights = decayed + update

    surprise = torch.linalg.vector_norm(prediction_error, dim=-1)
    return FastWeightOutput(_read(weights, token.query), pack_state(weights, momentum), surprise)


def _read(weights: Tensor, key: Tensor) -> Tensor:
    return (weights @ key[..., None])[..., 0]


def _per_column(decay: Tensor, weights: Tensor) -> Tensor:
    """A decay `[B, H]` or `[B, H, Dk]` in the shape that multiplies the columns of `[B, H, Dv, Dk]`."""
    return decay[..., None, :] if decay.dim() == weights.dim() - 1 else decay[..., None, None]


def _bend(error: Tensor, function: ErrorFunction) -> Tensor:
    if function.name == "huber":
        length = torch.linalg.vector_norm(error, dim=-1, keepdim=True)
        return error * (function.parameter / length.clamp_min(function.parameter))
    if function.name == "power":
        # At an error of exactly zero the slope may be infinite (p < 2): the subgradient taken there is zero.
        size = torch.where(error == 0, 1.0, error.abs())
        return error.sign() * size ** (function.parameter - 1)
    return error


def _tokens(call: FastWeightCall) -> Iterator[FastWeightCall]:
    """The step calls of a sequence call."""
    over_time = {
        name: getattr(call, name).unbind(1)
        for name in ("query", "key", "value", "write_rate", "log_decay", "momentum", "erase_key", "reset")
        if getattr(call, name) is not None
    }
    for t in range(call.query.shape[1]):
        yield replace(call, **{name: tensors[t] for name, tensors in over_time.items()})


def _overwrite(old: State, new: State) -> State:
    if isinstance(old, MomentumState) and isinstance(new, MomentumState):
        return MomentumState(old.weights.copy_(new.weights), old.momentum.copy_(new.momentum))
    assert isinstance(old, Tensor)
    assert isinstance(new, Tensor)
    return old.copy_(new)
