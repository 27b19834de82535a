"""The public fast-weight operations: a memory that is a linear model trained online, one gradient step per token."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from torch import Tensor

from lifelong.kernels import chunked, native, reference, triton_attention
from lifelong.kernels.types import SQUARED, ErrorFunction, FastWeightCall, FastWeightOutput, Implementation, State
from lifelong.kernels.validation import build_call

_IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference,
    "chunked": chunked,
    "native": native,
    "triton": triton_attention,
}


def fast_weight_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    log_decay: Tensor | None = None,
    momentum: Tensor | None = None,
    erase: bool | Tensor | Sequence[bool] = True,
    reset: Tensor | None = None,
    initial_state: State | None = None,
    implementation: str = "auto",
    *,
    erase_key: Tensor | None = None,
    error_before_decay: bool | None = None,
    error_function: ErrorFunction = SQUARED,
    reset_state: Tensor | None = None,
    check_values: bool = False,
) -> FastWeightOutput:
    """Run a fast-weight memory over a sequence.

    For every life and head, with S in R^{Dv x Dk}, at each step t:

        S^-     = exp(log_decay_t) S_{t-1}          S_{t-1} replaced by `reset_state` (zero) where `reset_t`
        e_t     = value_t - S^- erase_key_t         `erase` off: e_t = value_t
        S_t     = S^- + write_rate_t e_t key_t^T
        out_t   = S_t query_t                       read after write; no 1/sqrt(Dk) is applied
        surprise_t = |value_t - S^- erase_key_t|

    With `momentum`, U_t = write_rate_t e_t key_t^T is accumulated, M_t = momentum_t M_{t-1} + U_t, and S_t = S^- + M_t.
    Erase on is the delta rule (Schlag et al. 2021), with decay the gated delta rule (Yang et al. 2025), with decay per
    channel KDA (Kimi Team 2025); off, it is linear attention (Katharopoulos et al. 2020), RetNet (Sun et al. 2023) or
    GLA (Yang et al. 2024). With momentum it is the linear memory of Titans (Behrouz et al. 2025).

    Args:
        query, key: `[B, T, H, Dk]`; keys should have unit norm where erase is on.
        value: `[B, T, H, Dv]`.
        write_rate: `[B, T, H]`, in [0, 2] where erase is on (above 1, the write overshoots).
        log_decay: natural logarithm <= 0 of what is kept, `[B, T, H]` or per channel `[B, T, H, Dk]`; None: all.
        momentum: `[B, T, H]` in [0, 1].
        erase: whether what the memory answers to the key is subtracted before writing; bool, or `[H]` for one a head.
        reset: `[B, T]` bool; True drops the memory *before* step t. No gradient crosses it; a NaN may, in chunks.
        initial_state: `[B, H, Dv, Dk]`, or `MomentumState` of two such with momentum; None: zero.
        implementation: `"auto"`, `"reference"`, `"chunked"`, `"native"` or `"triton"`.
        erase_key: `[B, T, H, Dk]`, the key that the error is measured at; None: `key`.
        error_before_decay: measure the error at S_{t-1} in place of S^-; None: just with momentum, as in Titans.
        error_function: `huber(threshold)` or `power(exponent)` bend the error before it is written.
        reset_state: `[H, Dv, Dk]`, the state that a reset leaves behind; None: zero.
        check_values: also check that all is finite and every gate within its range (reads the data).

    Returns:
        output `[B, T, H, Dv]` in the dtype of value, state, surprise `[B, T, H]`. State and surprise are float32, or
        float64 if the inputs are. All three carry gradients into every floating-point argument.

    Raises:
        ValueError: an argument has a wrong shape, dtype, device or value, or the implementation cannot serve the call.
    """
    call = build_call(
        query, key, value, write_rate, log_decay, momentum, erase, reset, initial_state,
        erase_key=erase_key, error_before_decay=error_before_decay, error_function=error_function,
        reset_state=reset_state, is_step=False, check_values=check_values,
    )  # fmt: skip
    return choose(call, implementation).attention(call)


def fast_weight_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    log_decay: Tensor | None = None,
    momentum: Tensor | None = None,
    erase: bool | Tensor | Sequence[bool] = True,
    reset: Tensor | None = None,
    state: State | None = None,
    implementation: str = "auto",
    *,
    erase_key: Tensor | None = None,
    error_before_decay: bool | None = None,
    error_function: ErrorFunction = SQUARED,
    reset_state: Tensor | None = None,
    in_place: bool = False,
    check_values: bool = False,
) -> FastWeightOutput:
    """Run a fast-weight memory for one step: `fast_weight_attention` with T = 1 and the T axis absent.

    query, key `[B, H, Dk]`, value `[B, H, Dv]`, write_rate, log_decay, momentum `[B, H]`, reset `[B]`. With
    `in_place=True` (without gradients) the new state is written over the tensors of `state`, which are returned.
    """
    call = build_call(
        query, key, value, write_rate, log_decay, momentum, erase, reset, state,
        erase_key=erase_key, error_before_decay=error_before_decay, error_function=error_function,
        reset_state=reset_state, is_step=True, in_place=in_place, check_values=check_values,
    )  # fmt: skip
    return choose(call, implementation).step(call)


def implementation_names() -> tuple[str, ...]:
    """The names that `implementation=` takes, besides `"auto"`."""
    return tuple(_IMPLEMENTATIONS)


def choose(call: FastWeightCall, implementation: str) -> Implementation:
    """The implementation that serves the call.

    `"auto"` takes the first that does not refuse: on CUDA of triton, chunked, reference; elsewhere of native, chunked,
    reference.

    Raises:
        ValueError: the name is unknown, or the implementation refuses the call; the message says why.
    """
    if implementation == "auto":
        for name in ("triton" if call.query.is_cuda else "native", "chunked"):
            if _IMPLEMENTATIONS[name].refusal(call) is None:
                return _IMPLEMENTATIONS[name]
        return reference
    if implementation not in _IMPLEMENTATIONS:
        close = get_close_matches(str(implementation), ["auto", *_IMPLEMENTATIONS], n=1)
        hint = f'; did you mean "{close[0]}"?' if close else ""
        names = ", ".join(["auto", *_IMPLEMENTATIONS])
        raise ValueError(f'implementation must be one of {names}, got "{implementation}"{hint}')
    reason = _IMPLEMENTATIONS[implementation].refusal(call)
    if reason is not None:
        raise ValueError(f'implementation="{implementation}" cannot serve this call: {reason}')
    return _IMPLEMENTATIONS[implementation]
