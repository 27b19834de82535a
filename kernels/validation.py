"""Checks of the arguments of the fast-weight operations: errors name the argument, what came, and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lifelong.kernels.types import SQUARED, ErrorFunction, FastWeightCall, MomentumState, State

_FLOATING = (
    "query", "key", "value", "write_rate", "initial_weights",
    "log_decay", "momentum", "initial_momentum", "erase_key", "reset_state",
)  # fmt: skip
_SINGLE_PRECISION = (torch.float32, torch.bfloat16, torch.float16)


def build_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    log_decay: Tensor | None,
    momentum: Tensor | None,
    erase: bool | Tensor | Sequence[bool],
    reset: Tensor | None,
    initial_state: State | None,
    *,
    erase_key: Tensor | None,
    error_before_decay: bool | None,
    error_function: ErrorFunction,
    reset_state: Tensor | None,
    is_step: bool,
    in_place: bool = False,
    check_values: bool = False,
) -> FastWeightCall:
    """Validate the arguments of a public function, fill in defaults, convert the gates to the dtype of the state."""
    layout = "[B, H, D]" if is_step else "[B, T, H, D]"
    if not isinstance(query, Tensor) or query.dim() != (3 if is_step else 4) or query.numel() == 0:
        raise ValueError(f"query must be a non-empty tensor {layout}, got {_describe(query)}")
    dtype = _state_dtype(query)
    device = query.device
    shape = query.shape
    rows = shape[:-1]
    if not isinstance(value, Tensor) or value.dim() != query.dim() or value.numel() == 0:
        raise ValueError(f"value must be a non-empty tensor {layout}, got {_describe(value)}")
    value_width = value.shape[-1]
    state_shape = (rows[0], rows[-1], value_width, shape[-1])

    _check("key", key, shape, dtype, device)
    _check("value", value, (*rows, value_width), dtype, device)
    _check("write_rate", write_rate, rows, dtype, device)
    if erase_key is not None:
        _check("erase_key", erase_key, shape, dtype, device)
    if log_decay is not None:
        per_channel = isinstance(log_decay, Tensor) and log_decay.dim() == len(shape)
        _check("log_decay", log_decay, shape if per_channel else rows, dtype, device)
        log_decay = converted(log_decay, dtype)
    if momentum is not None:
        _check("momentum", momentum, rows, dtype, device)
        momentum = converted(momentum, dtype)
    if reset is not None:
        _check_reset(reset, rows[:-1], device)
    if reset_state is not None:
        _check("reset_state", reset_state, state_shape[1:], dtype, device)
        reset_state = converted(reset_state, dtype)
    if not (error_before_decay is None or isinstance(error_before_decay, bool)):
        raise ValueError(f"error_before_decay must be True, False or None, got {error_before_decay!r}")
    if not isinstance(error_function, ErrorFunction):
        raise ValueError(f"error_function must be an ErrorFunction such as huber(1.0), got {error_function!r}")
    state_name = "state" if is_step else "initial_state"
    weights, running = _split_state(state_name, initial_state, state_shape, momentum is not None, dtype, device)
    if in_place and initial_state is None:
        raise ValueError(f"in_place=True overwrites {state_name}, got {state_name}=None")
    if in_place and not (weights.is_contiguous() and (running is None or running.is_contiguous())):
        raise ValueError(f"in_place=True needs a contiguous {state_name}, got one with gaps or a permuted layout")

    call = FastWeightCall(
        query=query,
        key=key,
        value=value,
        write_rate=converted(write_rate, dtype),
        initial_weights=weights,
        log_decay=log_decay,
        momentum=momentum,
        initial_momentum=running,
        erase=_erase(erase, rows[-1], device),
        erase_key=erase_key,
        error_before_decay=momentum is not None if error_before_decay is None else error_before_decay,
        error_function=error_function,
        reset=reset,
        reset_state=reset_state,
        in_place=in_place,
    )
    if in_place and call.requires_grad:
        raise ValueError("in_place=True overwrites the state, so no gradient can flow: use torch.no_grad()")
    if check_values:
        _check_values(call)
    return call


def huber(threshold: float) -> ErrorFunction:
    """The gradient of the Huber loss: errors longer than `threshold` (Euclidean, over Dv) are cut to that length."""
    require(isinstance(threshold, int | float) and threshold > 0, "threshold", "> 0", threshold)
    return ErrorFunction("huber", float(threshold))


def power(exponent: float) -> ErrorFunction:
    """The gradient of `|e|^p / p`, elementwise: `sign(e) |e|^(p - 1)`, for p >= 1 (p = 2 is the squared error)."""
    require(isinstance(exponent, int | float) and exponent >= 1, "exponent", ">= 1", exponent)
    return SQUARED if exponent == 2 else ErrorFunction("power", float(exponent))


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} of {value.dtype} on {value.device}"
    return f"{type(value).__name__}"


def _state_dtype(query: Tensor) -> torch.dtype:
    if query.dtype == torch.float64:
        return torch.float64
    if query.dtype not in _SINGLE_PRECISION:
        raise ValueError(f"query must be float32, float64, bfloat16 or float16, got {query.dtype}")
    return torch.float32


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if not isinstance(tensor, Tensor) or tensor.shape != shape:
        raise ValueError(f"{name} must be a tensor of shape {list(shape)}, got {_describe(tensor)}")
    if tensor.dtype is not dtype and (dtype == torch.float64 or tensor.dtype not in _SINGLE_PRECISION):
        allowed = "float64, as query is" if dtype == torch.float64 else "float32, bfloat16 or float16"
        raise ValueError(f"{name} must be {allowed}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device}, where query is, got {tensor.device}")


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in that dtype. `to` costs 0.7 us even where it has nothing to do, and a step of one life takes 16."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _check_reset(reset: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    if not isinstance(reset, Tensor) or reset.shape != shape or reset.dtype is not torch.bool:
        raise ValueError(f"reset must be a bool tensor of shape {list(shape)}, got {_describe(reset)}")
    if reset.device != device:
        raise ValueError(f"reset must be on {device}, where query is, got {reset.device}")


def _erase(erase: bool | Tensor | Sequence[bool], heads: int, device: torch.device) -> bool | Tensor:
    if isinstance(erase, bool):
        return erase
    if isinstance(erase, Tensor):
        if erase.shape != (heads,) or erase.dtype != torch.bool:
            raise ValueError(f"erase must be a bool or a bool tensor of shape [{heads}], got {_describe(erase)}")
        return erase.to(device)
    switches = list(erase) if isinstance(erase, Sequence) else []
    if len(switches) != heads or not all(isinstance(switch, bool) for switch in switches):
        raise ValueError(f"erase must be a bool or {heads} bools, one a head, got {erase!r}")
    if all(switches) or not any(switches):
        return switches[0]
    return torch.tensor(switches, device=device)


def _split_state(
    name: str,
    state: State | None,
    shape: tuple[int, ...],
    with_momentum: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor | None]:
    if state is None:
        zeros = torch.zeros(*shape, dtype=dtype, device=device)
        return zeros, torch.zeros_like(zeros) if with_momentum else None
    if not with_momentum:
        if not isinstance(state, Tensor):
            raise ValueError(f"{name} must be a tensor when momentum is None, got {_describe(state)}")
        _check_state(name, state, shape, dtype, device)
        return state, None
    if not isinstance(state, tuple) or len(state) != 2:
        raise ValueError(f"{name} must be MomentumState(weights, momentum) with momentum, got {_describe(state)}")
    weights, running = MomentumState(*state)
    _check_state(f"{name}.weights", weights, shape, dtype, device)
    _check_state(f"{name}.momentum", running, shape, dtype, device)
    return weights, running


def _check_state(name: str, state: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if not isinstance(state, Tensor) or state.shape != shape or state.dtype != dtype or state.device != device:
        raise ValueError(f"{name} must be {list(shape)} of {dtype} on {device}, got {_describe(state)}")


def _check_values(call: FastWeightCall) -> None:
    """The checks that read the data, and so wait for the device."""
    for name in _FLOATING:
        tensor = getattr(call, name)
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            where = (~torch.isfinite(tensor)).nonzero()[0].tolist()
            name = name.replace("initial_weights", "the state").replace("initial_momentum", "the momentum of the state")
            raise ValueError(f"{name} must be finite, got {tensor[tuple(where)].item()} at {where}")
    if call.log_decay is not None and bool((call.log_decay > 0).any()):
        raise ValueError(f"log_decay must be <= 0, got {call.log_decay.max().item():g}")
    low, high = call.write_rate.min().item(), call.write_rate.max().item()
    erasing = call.write_rate[..., call.erase] if isinstance(call.erase, Tensor) else call.write_rate
    too_high = call.erase is not False and bool((erasing > 2).any())
    if low < 0 or too_high:
        raise ValueError(f"write_rate must lie in [0, 2], got values from {low:g} to {high:g}")
    if call.momentum is not None and bool(((call.momentum < 0) | (call.momentum > 1)).any()):
        low, high = call.momentum.min().item(), call.momentum.max().item()
        raise ValueError(f"momentum must lie in [0, 1], got values from {low:g} to {high:g}")


def require(fits: bool, name: str, allowed: str, came: object) -> None:
    """Raise the ValueError of this package unless the argument fits."""
    if not fits:
        raise ValueError(f"{name} must be {allowed}, got {_describe(came) if isinstance(came, Tensor) else repr(came)}")


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
    """Raise the ValueError of this package unless the argument is a tensor of that shape, and dtype if one is given."""
    fits = isinstance(tensor, Tensor) and tensor.shape == shape and dtype in (None, tensor.dtype)
    kind = "a tensor" if dtype is None else f"a {str(dtype).removeprefix('torch.')} tensor"
    require(fits, name, f"{kind} of shape {list(shape)}", tensor)
