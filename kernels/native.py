"""Fast weights in plain C: sequential over time, vectorised, threaded over lives and heads; CPU only.

The kernels (`native.c`) are compiled on first use. They are raw `torch.library` operators under an
`autograd.Function`, so that `torch.compile`, `torch.func.grad`, `vmap` and autocast see through them; forward-mode and
second derivatives raise. The backward pass stores the errors, `[B, T, H, Dv]`, and no
states but, with momentum, about 2 sqrt(T).

The numbers of a life do not depend, to the last bit, on the other lives of the batch, on the number of threads, or on
where the sequence is cut: a sequence is the fold of its steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lifelong.kernels.first_derivative import (
    FirstDerivative,
    may_be_differentiated,
    refuse_compiled_forward_mode,
    takes,
)
from lifelong.kernels.fold_lives import fold_lives
from lifelong.kernels.native_library import (
    NO_GRADIENTS,
    NO_VIEW,
    load_library,
    loading_problem,
    pointer,
    thread_count,
    view,
)
from lifelong.kernels.types import FastWeightCall, FastWeightOutput, MomentumState, State
from lifelong.kernels.validation import converted

_ERROR_FUNCTIONS = {"squared": 0, "huber": 1, "power": 2}

# `running` is the momentum beside the weights. `start`, the state after a reset, has a leading axis of lives, or of 1.
_TENSORS = (
    "query",
    "key",
    "value",
    "write_rate",
    "initial",
    "initial_running",
    "log_decay",
    "momentum",
    "erase_key",
    "start",
    "reset",
    "erase_heads",
)
_REQUIRED = 5
_OPTIONS = 4  # erase, error_before_decay, error_function, error_parameter
_OVER_TIME = ("query", "key", "value", "write_rate", "log_decay", "momentum", "erase_key", "reset")
_PLAIN = {Tensor, torch.nn.Parameter, type(None)}
_START, _ERASE_HEADS = _TENSORS.index("start"), _TENSORS.index("erase_heads")
_INPUTS = ", ".join(
    (
        *(f"Tensor {name}" for name in _TENSORS[:_REQUIRED]),
        *(f"Tensor? {name}" for name in _TENSORS[_REQUIRED:]),
        "bool erase, bool error_before_decay, int error_function, float error_parameter",
    )
)
_IN_PLACE = _INPUTS.replace("Tensor initial,", "Tensor(a!) initial,").replace(
    "Tensor? initial_r", "Tensor(b!)? initial_r"
)
_STATES = "Tensor final, Tensor final_running"

_operators = torch.library.Library("lifelong_native", "DEF")
_operators.define(f"forward({_INPUTS}) -> (Tensor output, {_STATES}, Tensor surprise, Tensor errors)")
_operators.define(
    f"backward({_INPUTS}, {_STATES}, Tensor surprise, Tensor errors, Tensor? d_output, Tensor? d_final, "
    "Tensor? d_final_running, Tensor? d_surprise) -> (Tensor d_query, Tensor d_key, Tensor d_value, "
    "Tensor d_write_rate, Tensor d_initial, Tensor d_initial_running, Tensor d_log_decay, Tensor d_momentum, "
    "Tensor d_erase_key, Tensor d_start)"
)
_operators.define(f"step({_INPUTS}) -> (Tensor output, {_STATES}, Tensor surprise)")
_operators.define(f"step_({_IN_PLACE}) -> (Tensor output, Tensor surprise)")


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the native kernels can be compiled and loaded on this machine; compiles them if need be."""
    return loading_problem() is None


@torch.compiler.assume_constant_result
def _loading_problem() -> str | None:
    return loading_problem()


def refusal(call: FastWeightCall) -> str | None:
    """Why the native kernels cannot serve the call, None if they can."""
    if call.query.device.type != "cpu":
        return f"the native kernels run on the CPU, and query is on {call.query.device}"
    return _loading_problem()


def attention(call: FastWeightCall) -> FastWeightOutput:
    """Serve a sequence call."""
    refuse_compiled_forward_mode()
    inputs = operator_inputs(call.in_state_dtype())
    run = _FastWeights.apply if may_be_differentiated() else torch.ops.lifelong_native.forward
    output, final, final_running, surprise, _ = run(*inputs)
    return FastWeightOutput(converted(output, call.value.dtype), _state(call, final, final_running), surprise)


def step(call: FastWeightCall) -> FastWeightOutput:
    """Serve a step call. Without gradients the state is read and written once."""
    refuse_compiled_forward_mode()
    inputs = operator_inputs(call.in_state_dtype())
    dtype = call.value.dtype
    # The dispatcher costs 6 us of 20; what it is for happens only while compiling or with tensors of other kinds.
    plain = not torch.compiler.is_compiling() and {type(each) for each in inputs[: len(_TENSORS)]} <= _PLAIN
    if call.in_place:
        output, surprise = (_step_ if plain else torch.ops.lifelong_native.step_)(*inputs)
        state = _state(call, call.initial_weights, call.initial_momentum)
        return FastWeightOutput(converted(output, dtype), state, surprise)
    if not may_be_differentiated():
        output, final, final_running, surprise = (_step if plain else torch.ops.lifelong_native.step)(*inputs)
        return FastWeightOutput(converted(output, dtype), _state(call, final, final_running), surprise)
    count = len(_TENSORS)
    tensors = (
        tensor.unsqueeze(1) if name in _OVER_TIME and tensor is not None else tensor
        for name, tensor in zip(_TENSORS, inputs[:count], strict=True)
    )
    output, final, final_running, surprise, _ = _FastWeights.apply(*tensors, *inputs[count:])
    state = _state(call, final, final_running)
    return FastWeightOutput(converted(output.squeeze(1), dtype), state, surprise.squeeze(1))


def operator_inputs(call: FastWeightCall) -> tuple[Any, ...]:
    """The arguments that the operators share, in their order."""
    per_head = isinstance(call.erase, Tensor)
    return (
        call.query,
        call.key,
        call.value,
        call.write_rate,
        call.initial_weights,
        call.initial_momentum,
        call.log_decay,
        call.momentum,
        call.erase_key,
        None if call.reset_state is None else call.reset_state.unsqueeze(0),
        call.reset,
        call.erase if per_head else None,
        True if per_head else bool(call.erase),
        call.error_before_decay,
        _ERROR_FUNCTIONS[call.error_function.name],
        call.error_function.parameter,
    )


def _state(call: FastWeightCall, weights: Tensor, running: Tensor | None) -> State:
    if call.momentum is None:
        return weights
    assert running is not None
    return MomentumState(weights, running)


class _Gradients(FirstDerivative):
    @staticmethod
    @takes(len(_TENSORS) + _OPTIONS + 8)
    def forward(*arguments: Any) -> Any:
        return torch.ops.lifelong_native.backward(*arguments)


class _FastWeights(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    @takes(len(_TENSORS) + _OPTIONS)
    def forward(*inputs: Any) -> Any:
        return torch.ops.lifelong_native.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, final, final_running, surprise, errors = output
        ctx.mark_non_differentiable(errors)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[: len(_TENSORS)], final, final_running, surprise, errors)
        ctx.options = inputs[len(_TENSORS) :]

    @staticmethod
    def backward(ctx: Any, d_output: Any, d_final: Any, d_final_running: Any, d_surprise: Any, _: Any) -> Any:
        inputs, made = ctx.saved_tensors[: len(_TENSORS)], ctx.saved_tensors[len(_TENSORS) :]
        gradients = list(_Gradients.apply(*inputs, *ctx.options, *made, d_output, d_final, d_final_running, d_surprise))
        start = inputs[_START]
        if start is not None and start.shape[0] == 1:
            gradients[_START] = gradients[_START].sum(0, keepdim=True)
        present = (None if tensor is None else grad for tensor, grad in zip(inputs, gradients, strict=False))
        return *present, None, None, *(None for _ in ctx.options)


def _fields(inputs: tuple[Any, ...], keep: list[Tensor], is_step: bool = False) -> tuple[float, ...]:
    """The part of the struct that the inputs fill. `keep` holds the copies that must outlive the call."""
    query, key, value, write_rate, initial, running, log_decay, momentum, erase_key, start, reset, erase_heads = inputs[
        :12
    ]
    erase, error_before_decay, error_function, error_parameter = inputs[12:]
    lives, heads, value_dim, key_dim = initial.shape
    steps = 1 if is_step else query.shape[1]
    items = lives * heads
    per_channel = log_decay is not None and log_decay.dim() == query.dim()
    start_view = NO_VIEW
    if start is not None:
        start = start.contiguous()
        keep.append(start)
        start_view = (start.data_ptr(), 0 if start.shape[0] == 1 else start.stride(0), 0, start.stride(1))
    return (
        lives,
        steps,
        heads,
        key_dim,
        value_dim,
        thread_count(items * steps * key_dim * value_dim, items),
        erase,
        per_channel,
        error_before_decay,
        error_function,
        error_parameter,
        *view(query, keep, is_step),
        *view(key, keep, is_step),
        *view(value, keep, is_step),
        *view(write_rate, keep, is_step),
        *view(log_decay, keep, is_step),
        *view(momentum, keep, is_step),
        *view(erase_key, keep, is_step),
        *view(reset, keep, is_step),
        *start_view,
        pointer(erase_heads, keep),
        pointer(initial, keep),
        pointer(running, keep),
    )


def _forward(*inputs: Any) -> tuple[Tensor, ...]:
    output, final, final_running, surprise, errors = made = _forward_shapes(*inputs)
    keep: list[Tensor] = []
    addresses = (pointer(tensor, keep) for tensor in (output, errors, surprise, final, final_running))
    load_library(final.dtype).forward(*_fields(inputs, keep), *addresses, *NO_GRADIENTS)
    return made


def _step(*inputs: Any) -> tuple[Tensor, ...]:
    output, final, final_running, surprise = made = _step_shapes(*inputs)
    keep: list[Tensor] = []
    addresses = (output.data_ptr(), 0, surprise.data_ptr(), final.data_ptr(), pointer(final_running, keep))
    load_library(final.dtype).step(*_fields(inputs, keep, is_step=True), *addresses, *NO_GRADIENTS)
    return made


def _step_(*inputs: Any) -> tuple[Tensor, Tensor]:
    weights, running = inputs[4:6]
    output, surprise = made = _in_place_step_shapes(*inputs)
    keep: list[Tensor] = []
    addresses = (output.data_ptr(), 0, surprise.data_ptr(), weights.data_ptr(), pointer(running, keep))
    load_library(weights.dtype).step(*_fields(inputs, keep, is_step=True), *addresses, *NO_GRADIENTS)
    torch.autograd.graph.increment_version(weights if running is None else (weights, running))
    return made


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, others = arguments[:-8], arguments[-8:]
    final, final_running, surprise, errors, d_output, d_final, d_final_running, d_surprise = others
    gradients = _backward_shapes(*arguments)
    d_query, d_key, d_value, d_rate, d_initial, d_running, d_log_decay, d_momentum, d_erase_key, d_start = gradients
    in_order = (d_query, d_key, d_value, d_rate, d_initial, d_log_decay, d_momentum, d_running, d_erase_key, d_start)
    keep: list[Tensor] = []
    load_library(final.dtype).backward(
        *_fields(inputs, keep),
        0,
        *(pointer(tensor, keep) for tensor in (errors, surprise, final, final_running)),
        *view(d_output, keep),
        *view(d_surprise, keep),
        pointer(d_final, keep),
        pointer(d_final_running, keep),
        *(pointer(tensor, keep) for tensor in in_order),
    )
    return gradients


def _empty(like: Tensor) -> Tensor:
    """A contiguous tensor of the same shape and dtype."""
    return torch.empty_like(like) if like.is_contiguous() else like.new_empty(like.shape)


def _empty_if(present: Tensor | None, like: Tensor) -> Tensor:
    """An operator cannot return None: what is absent keeps only the axis of lives, which vmap folds and unfolds."""
    return like.new_empty(like.shape[0], 0) if present is None else _empty(like)


def _forward_shapes(*inputs: Any) -> tuple[Tensor, ...]:
    value, write_rate, initial, running = inputs[2:6]
    return _empty(value), _empty(initial), _empty_if(running, initial), _empty(write_rate), _empty(value)


def _step_shapes(*inputs: Any) -> tuple[Tensor, ...]:
    return _forward_shapes(*inputs)[:-1]


def _in_place_step_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
    value, write_rate = inputs[2:4]
    return _empty(value), _empty(write_rate)


def _backward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    query, key, value, write_rate, initial, running, log_decay, momentum, erase_key, start = arguments[:10]
    return (
        *map(_empty, (query, key, value, write_rate, initial)),
        _empty_if(running, initial),
        _empty_if(log_decay, query if log_decay is None else log_decay),
        _empty_if(momentum, write_rate),
        _empty_if(erase_key, query),
        _empty_if(start, initial),
    )


for _name, _implementation, _shapes in (
    ("forward", _forward, _forward_shapes),
    ("backward", _backward, _backward_shapes),
    ("step", _step, _step_shapes),
    ("step_", _step_, _in_place_step_shapes),
):
    _operators.impl(_name, _implementation, "CPU")
    torch.library.register_fake(f"lifelong_native::{_name}", _shapes, lib=_operators)
for _name in ("forward", "backward", "step"):
    torch.library.register_vmap(
        f"lifelong_native::{_name}",
        fold_lives(getattr(torch.ops.lifelong_native, _name), start=_START, erase_heads=_ERASE_HEADS),
        lib=_operators,
    )
# torch.compile traces torch.func.grad down to the operator, without the function around it: that is to raise, and not
# to be a wrong gradient.
torch.library.register_autograd(
    "lifelong_native::forward", _FastWeights.backward, setup_context=_FastWeights.setup_context, lib=_operators
)
