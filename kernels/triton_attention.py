"""The fast-weight operation on a GPU, Triton: `implementation="triton"`.

Serves the gated delta family: erase on, off, or per head, a scalar log-decay or none, an erase key of its own, the
error before or after the decay, a learned reset state; query, keys and value in float32, bfloat16 or float16, all
arithmetic in float32. A step without gradients is one kernel that writes over the state.

Sequences run in one of two ways with the same operands and results. `recurrent` walks the steps in exactly the order
of a rollout; `chunked` multiplies matrices of 16 steps. Which of them serves a call is written in `algorithm`.

The kernels are opaque operators under an `autograd.Function`, so that `torch.compile` takes a call as one node, `vmap`
folds into the lives, and forward-mode or second derivatives raise instead of being wrong. This module imports without
Triton, which `refusal` then asks for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lifelong.kernels.first_derivative import FirstDerivative, refuse_compiled_forward_mode, takes
from lifelong.kernels.fold_lives import fold_lives
from lifelong.kernels.types import FastWeightCall, FastWeightOutput

# Wider states do not fit the registers of a program.
WIDEST = 128

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor write_rate, Tensor{initial}, Tensor? log_decay, "
    "Tensor? erase_key, Tensor? start, Tensor? reset, Tensor? erase_heads, bool erase, bool error_before_decay"
)
_TENSOR_INPUTS = 10
_START, _ERASE_HEADS = 7, 9

_operators = torch.library.Library("lifelong_triton", "DEF")
_operators.define(
    f"forward({_INPUTS.format(initial=' initial')}, str algorithm, bool keep_errors) "
    "-> (Tensor output, Tensor final, Tensor surprise, Tensor errors)"
)
_operators.define(
    f"backward({_INPUTS.format(initial=' initial')}, str algorithm, Tensor output, Tensor final, Tensor surprise, "
    "Tensor errors, Tensor? d_output, Tensor? d_final, Tensor? d_surprise) -> (Tensor d_query, Tensor d_key, "
    "Tensor d_value, Tensor d_write_rate, Tensor d_initial, Tensor d_log_decay, Tensor d_erase_key, Tensor d_start)"
)
_operators.define(f"step_({_INPUTS.format(initial='(a!) weights')}) -> (Tensor output, Tensor surprise)")


@torch.compiler.assume_constant_result
@functools.cache
def installed() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def refusal(call: FastWeightCall) -> str | None:
    """Why the Triton kernels cannot serve the call, None if they can."""
    if call.query.device.type != "cuda":
        return f"the Triton kernels run on a GPU, and query is on {call.query.device}"
    if not installed():
        return "the package triton is not installed (`pip install triton`, on Linux)"
    return unsupported(call)


def unsupported(call: FastWeightCall) -> str | None:
    """What the call asks for that the kernels do not compute, on whatever machine."""
    if call.state_dtype != torch.float32:
        return f"the Triton kernels compute in float32, and the call asks for {call.state_dtype}"
    if call.momentum is not None:
        return "the Triton kernels have no momentum"
    if call.per_channel_decay:
        return "the Triton kernels take one log_decay a head [B, T, H], not one a channel"
    if call.error_function.name != "squared":
        return f'the Triton kernels know no error function but the squared error, not "{call.error_function.name}"'
    width = max(call.query.shape[-1], call.value.shape[-1])
    if width > WIDEST:
        return f"the Triton kernels hold states up to {WIDEST} wide, and this one is {width} wide"
    return None


def algorithm(call: FastWeightCall) -> str:
    """`"chunked"` for sequences of more than 64 steps with states more than 32 and at most 64 wide, else `"recurrent"`.

    Below, a step is so little work that the loop over time is no slower than the solve of a chunk; above, chunks do not
    fit the registers. The rule is drawn from counts of operations and registers; it has not been timed on a GPU. A
    learned reset state, and the error before the decay, are served by `"recurrent"` alone.
    """
    if call.reset_state is not None or call.error_before_decay:
        return "recurrent"
    width = max(call.query.shape[-1], call.value.shape[-1])
    return "chunked" if call.query.shape[1] > 64 and 32 < width <= 64 else "recurrent"


def attention(call: FastWeightCall) -> FastWeightOutput:
    """Serve a sequence call."""
    return run(call, algorithm(call))


def step(call: FastWeightCall) -> FastWeightOutput:
    """Serve a step call."""
    inputs = _inputs(call)
    if call.requires_grad:
        over_time = tuple(
            x.unsqueeze(1) if isinstance(x, Tensor) and index in _TOKENS else x for index, x in enumerate(inputs)
        )
        output, final, surprise, _ = _FastWeights.apply(*over_time, "recurrent", True)
        return FastWeightOutput(output.squeeze(1).to(call.value.dtype), final, surprise.squeeze(1))
    weights = (
        call.initial_weights if call.in_place else call.initial_weights.clone(memory_format=torch.contiguous_format)
    )
    output, surprise = torch.ops.lifelong_triton.step_(*inputs[:4], weights, *inputs[5:])
    return FastWeightOutput(output, weights, surprise)


def run(call: FastWeightCall, algorithm: str) -> FastWeightOutput:
    """Serve a sequence call by the named algorithm."""
    refuse_compiled_forward_mode()
    output, final, surprise, _ = _FastWeights.apply(*_inputs(call), algorithm, call.requires_grad)
    return FastWeightOutput(output.to(call.value.dtype), final, surprise)


# The inputs that have an axis of time.
_TOKENS = frozenset(range(_TENSOR_INPUTS)) - {4, _START, _ERASE_HEADS}


def _inputs(call: FastWeightCall) -> tuple[Any, ...]:
    """The arguments that the operators share, in their order."""
    per_head = isinstance(call.erase, Tensor)
    return (
        call.query,
        call.key,
        call.value,
        call.write_rate,
        call.initial_weights,
        call.log_decay,
        call.erase_key,
        None if call.reset_state is None else call.reset_state.unsqueeze(0),
        call.reset,
        call.erase if per_head else None,
        True if per_head else bool(call.erase),
        call.error_before_decay,
    )


class _Gradients(FirstDerivative):
    @staticmethod
    @takes(_TENSOR_INPUTS + 3 + 7)  # erase, error_before_decay and algorithm; what was made and its gradients
    def forward(*arguments: Any) -> Any:
        return torch.ops.lifelong_triton.backward(*arguments)


class _FastWeights(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    @takes(_TENSOR_INPUTS + 4)
    def forward(*inputs: Any) -> Any:
        return torch.ops.lifelong_triton.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[3])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:_TENSOR_INPUTS], *output)
        ctx.options = inputs[_TENSOR_INPUTS:-1]

    @staticmethod
    def backward(ctx: Any, d_output: Any, d_final: Any, d_surprise: Any, _: Any) -> Any:
        inputs, made = ctx.saved_tensors[:_TENSOR_INPUTS], ctx.saved_tensors[_TENSOR_INPUTS:]
        *gradients, d_start = _Gradients.apply(*inputs, *ctx.options, *made, d_output, d_final, d_surprise)
        start = inputs[_START]
        if start is not None and start.shape[0] == 1:
            d_start = d_start.sum(0, keepdim=True)
        gradients.append(d_start)
        as_given = (
            None if tensor is None else gradient.to(tensor.dtype)
            for tensor, gradient in zip(inputs, gradients, strict=False)
        )
        return *as_given, *(None,) * (2 + len(ctx.options) + 1)


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from lifelong.kernels.triton_common import Inputs

    *inputs, algorithm, keep_errors = arguments
    output, final, surprise, errors = _kernels(algorithm).forward(Inputs.prepare(*inputs), keep_errors=keep_errors)
    return output, final, surprise, output.new_empty(output.shape[0], 0) if errors is None else errors


def _forward_shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    value, write_rate, initial = arguments[2:5]
    output = value.new_empty(value.shape, dtype=torch.float32)
    errors = torch.empty_like(output) if arguments[-1] else output.new_empty(output.shape[0], 0)
    return output, initial.new_empty(initial.shape), write_rate.new_empty(write_rate.shape), errors


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    from lifelong.kernels.triton_common import Inputs, Result

    *inputs, algorithm, output, final, surprise, errors, d_output, d_final, d_surprise = arguments
    if errors.numel() == 0:
        raise RuntimeError("the forward pass was told that no gradient was needed, and kept no errors")
    prepared = Inputs.prepare(*inputs)
    d_output = torch.zeros_like(output) if d_output is None else d_output.contiguous()
    d_final = None if d_final is None else d_final.contiguous()
    # The gradient of a norm is taken to be zero where the norm is.
    slope = None if d_surprise is None else torch.where(surprise > 0, d_surprise / surprise, 0.0)
    gradients = _kernels(algorithm).backward(
        prepared, Result(output, final, surprise, errors), d_output, d_final, slope
    )
    none = output.new_empty(output.shape[0], 0)
    return tuple(none if gradient is None else gradient for gradient in gradients)


def _backward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    # Absent gradients keep an axis of lives, so that vmap can fold and unfold them like the rest.
    query, key, value, write_rate, initial, log_decay, erase_key, start = arguments[:8]
    optional = (log_decay, erase_key, None if start is None else initial)
    return tuple(
        query.new_empty((query.shape[0], 0) if tensor is None else tensor.shape, dtype=torch.float32)
        for tensor in (query, key, value, write_rate, initial, *optional)
    )


def _step_(*inputs: Any) -> tuple[Tensor, Tensor]:
    from lifelong.kernels import triton_step
    from lifelong.kernels.triton_common import Inputs

    prepared = Inputs.prepare(*inputs)
    made = triton_step.step(prepared)
    if prepared.initial is not inputs[4]:
        inputs[4].copy_(prepared.initial)
    return made


def _step_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
    value, write_rate = inputs[2:4]
    return value.new_empty(value.shape), write_rate.new_empty(write_rate.shape)


def _kernels(algorithm: str) -> ModuleType:
    return importlib.import_module(f"lifelong.kernels.triton_{algorithm}")


for _name, _implementation, _shapes in (
    ("forward", _forward, _forward_shapes),
    ("backward", _backward, _backward_shapes),
    ("step_", _step_, _step_shapes),
):
    # For every device: Triton's interpreter and its ahead-of-time compiler take tensors on the CPU.
    _operators.impl(_name, _implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"lifelong_triton::{_name}", _shapes, lib=_operators)
for _name in ("forward", "backward"):
    torch.library.register_vmap(
        f"lifelong_triton::{_name}",
        fold_lives(getattr(torch.ops.lifelong_triton, _name), start=_START, erase_heads=_ERASE_HEADS),
        lib=_operators,
    )
