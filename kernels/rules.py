"""Update rules that reduce to the fast-weight operation, and so have all of its implementations.

| rule | how |
|---|---|
| Longhorn (Liu et al. 2024), the implicit step | `write_rate=implicit_write_rate(write_rate, key)` |
| DeltaProduct (Siems et al. 2025) | `delta_product_attention` |
| Omega rule of a small window (ATLAS, Behrouz et al. 2025), step by step | `replay_window`, then the same |
| linear attention with its normaliser (Katharopoulos et al. 2020) | `normalised_attention` |
| mLSTM (Beck et al. 2024) | `mlstm_attention` |
| Comba (Hu et al. 2025) | `erase_key=d * key, error_before_decay=True`, and read with `query - D * d * key` |
| preconditioned delta rule | `key=preconditioner * key, erase_key=key` |
| DeltaNet with negative eigenvalues (Grazzi et al. 2025) | a write rate in (0, 2) |
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lifelong.kernels.api import fast_weight_attention, fast_weight_step
from lifelong.kernels.types import FastWeightOutput, State
from lifelong.kernels.validation import require, require_shape


def implicit_write_rate(write_rate: Tensor, key: Tensor) -> Tensor:
    """The write rate of the implicit gradient step, `b / (1 + b |k|^2)`: stable for keys of any length.

    With it the delta rule returns argmin_S |S - S^-|^2 + b |S k - v|^2 (Longhorn, Liu et al. 2024, eq. 4).
    write_rate `[..., H]` >= 0, key `[..., H, Dk]`.
    """
    return write_rate / (1 + write_rate * key.square().sum(-1))


def delta_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    log_decay: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: State | None = None,
    implementation: str = "auto",
    **options: Any,
) -> FastWeightOutput:
    """Several writes a token, one after the other: reset and decay come before the first, the query after the last.

    Args:
        query: `[B, T, H, Dk]`.
        key, value, write_rate: `[B, T, R, H, Dk]`, `[B, T, R, H, Dv]`, `[B, T, R, H]`, R writes a token in their order.
        log_decay: `[B, T, H]` or `[B, T, H, Dk]`.
        options: `erase`, `reset_state`, `error_function` and `check_values` of `fast_weight_attention`.

    Returns:
        As `fast_weight_attention`, but surprise is `[B, T, R, H]`.
    """
    _require_axes(key, "key", "[B, T, R, H, Dk]")
    _require_axes(value, "value", "[B, T, R, H, Dv]")
    lives, length, writes, heads, width = key.shape
    require(writes >= 1, "key", "[B, T, R, H, Dk] with R >= 1", key)
    allowed = ("erase", "reset_state", "error_function", "check_values")
    for name in options:
        require(name in allowed, "an option of delta_product_attention", f"one of {', '.join(allowed)}", name)
    require_shape("query", query, (lives, length, heads, width))
    require_shape("value", value, (*key.shape[:-1], value.shape[-1]))
    require_shape("write_rate", write_rate, key.shape[:-1])
    if log_decay is not None:
        per_channel = isinstance(log_decay, Tensor) and log_decay.dim() == 4
        require_shape("log_decay", log_decay, query.shape if per_channel else query.shape[:-1])
    if reset is not None:
        require_shape("reset", reset, (lives, length), torch.bool)
    result = fast_weight_attention(
        _at_substep(query, writes, -1),
        key.flatten(1, 2),
        value.flatten(1, 2),
        write_rate.flatten(1, 2),
        log_decay=None if log_decay is None else _at_substep(log_decay, writes, 0),
        reset=None if reset is None else _at_substep(reset, writes, 0),
        initial_state=initial_state,
        implementation=implementation,
        **options,
    )
    surprise = result.surprise.view(lives, length, writes, heads)
    return FastWeightOutput(result.output[:, writes - 1 :: writes], result.state, surprise)


class Replay(NamedTuple):
    """key, value, write_rate for `delta_product_attention`, R = window; tail: the pairs that the next call needs."""

    key: Tensor
    value: Tensor
    write_rate: Tensor
    tail: Tensor


def replay_window(
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    window: int,
    reset: Tensor | None = None,
    tail: Tensor | None = None,
) -> Replay:
    """Write the last `window` pairs again at every token, oldest first: the sliding objective of the Omega rule.

    Pairs from before a reset, or from before the first call, get a write rate of zero.

    Args:
        key, value, write_rate: `[B, T, H, Dk]`, `[B, T, H, Dv]`, `[B, T, H]`.
        window: pairs a token, the newest included.
        reset: `[B, T]` bool.
        tail: `[B, window - 1, H, Dk + Dv + 1]`, what the last call returned; None: nothing came before.
    """
    require(type(window) is int and window >= 1, "window", ">= 1", window)
    _require_axes(key, "key", "[B, T, H, Dk]")
    _require_axes(value, "value", "[B, T, H, Dv]")
    require_shape("value", value, (*key.shape[:-1], value.shape[-1]))
    require_shape("write_rate", write_rate, key.shape[:-1])
    for name, tensor in (("value", value), ("write_rate", write_rate)):
        same = tensor.is_floating_point() and (tensor.dtype == torch.float64) == (key.dtype == torch.float64)
        require(same, name, f"of the precision of key, {key.dtype}", tensor)
    if reset is not None:
        require_shape("reset", reset, key.shape[:2], torch.bool)
    widths = [key.shape[-1], value.shape[-1], 1]
    pairs = torch.cat([key, value, write_rate[..., None]], -1)
    if tail is None:
        tail = pairs.new_zeros(pairs.shape[0], window - 1, *pairs.shape[2:])
    require_shape("tail", tail, (pairs.shape[0], window - 1, *pairs.shape[2:]))
    history = torch.cat([tail, pairs], 1)
    newest = history.unfold(1, window, 1).movedim(-1, 2)  # [B, T, R, H, Dk + Dv + 1]
    if reset is not None:
        life = torch.nn.functional.pad(reset.cumsum(1), (window - 1, 0))
        same_life = life.unfold(1, window, 1) == life[:, window - 1 :, None]
        newest = newest * same_life[..., None, None]
        history = history * (life == life[:, -1:])[..., None, None]
    keys, values, rates = newest.split(widths, -1)
    return Replay(keys, values, rates[..., 0], history[:, history.shape[1] - window + 1 :])


def normalised_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    log_decay: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: Tensor | None = None,
    implementation: str = "auto",
    *,
    epsilon: float = 1e-6,
) -> FastWeightOutput:
    """Linear attention with its normaliser: out_t = S_t q_t / max(z_t . q_t, epsilon), z_t the decayed sum of b_s k_s.

    Queries and keys should be positive feature maps. The state is `[B, H, Dv + 1, Dk]`: the normaliser is its last row.
    """
    require(isinstance(epsilon, int | float) and epsilon > 0, "epsilon", "> 0", epsilon)
    _require_axes(value, "value", "[B, T, H, Dv]")
    result = fast_weight_attention(
        query, key, _with_one(value), write_rate, log_decay, None, False, reset, initial_state, implementation
    )
    return result._replace(output=result.output[..., :-1] / result.output[..., -1:].clamp_min(epsilon))


class MLSTMState(NamedTuple):
    """Matrix memory C and normaliser n (last row) over exp(log_scale): `[B, H, Dv + 1, Dk]`, `[B, H]`.

    The scale only keeps numbers in range. It carries no gradient; all gradients pass through the memory.
    """

    memory: Tensor
    log_scale: Tensor


class MLSTMOutput(NamedTuple):
    """output `[B, T, H, Dv]` and the state after it."""

    output: Tensor
    state: MLSTMState


def mlstm_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_input: Tensor,
    log_forget: Tensor,
    reset: Tensor | None = None,
    initial_state: MLSTMState | None = None,
    implementation: str = "auto",
    *,
    reset_state: Tensor | None = None,
) -> MLSTMOutput:
    """The matrix memory of xLSTM, with exponential input gates (Beck et al. 2024, eq. 19 to 27).

        C_t = f_t C_{t-1} + i_t v_t k_t^T,  n_t = f_t n_{t-1} + i_t k_t,
        out_t = C_t q_t / max(|n_t . q_t|, 1, 1e-6 exp(m_t))

    with log f = log_forget <= 0 and log i = log_input of any size, `[B, T, H]`. Everything is kept divided by exp(m_t),
    m_t = max(log f_t + m_{t-1}, log i_t), so that no exponential overflows; m shows in the output through the floor of
    1e-6 exp(m_t) alone, which is of this implementation and not of the paper. There is no surprise. A reset
    drops C, n and m; `reset_state` `[H, Dv + 1, Dk]` is what C and n become then, instead of zero. Keys are not scaled
    by 1/sqrt(Dk).
    """
    _check_mlstm(query, value, log_input, log_forget, reset, "[B, T, H, D]", "initial_state", initial_state)
    if initial_state is None:
        initial_state = _empty_mlstm(query, value)
    scale, scales = initial_state.log_scale.detach(), []
    for t in range(query.shape[1]):
        scale = _next_scale(scale, log_input[:, t], log_forget[:, t], None if reset is None else reset[:, t])
        scales.append(scale)
    after = torch.stack(scales, 1)
    before = torch.cat([initial_state.log_scale.detach()[:, None], after[:, :-1]], 1)
    if reset is not None:
        before = before.masked_fill(reset[..., None], 0.0)
    result = fast_weight_attention(
        query,
        key,
        _with_one(value),
        (log_input - after).exp(),
        log_forget + before - after,
        erase=False,
        reset=reset,
        initial_state=initial_state.memory,
        implementation=implementation,
        reset_state=reset_state,
    )
    return MLSTMOutput(_mlstm_read(result.output, after), MLSTMState(cast(Tensor, result.state), scale))


def mlstm_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_input: Tensor,
    log_forget: Tensor,
    reset: Tensor | None = None,
    state: MLSTMState | None = None,
    implementation: str = "auto",
    *,
    reset_state: Tensor | None = None,
    in_place: bool = False,
) -> MLSTMOutput:
    """`mlstm_attention` for one token: the T axis absent. `in_place` writes over the memory, not over the scale."""
    _check_mlstm(query, value, log_input, log_forget, reset, "[B, H, D]", "state", state)
    if state is None:
        state = _empty_mlstm(query, value)
    before = state.log_scale.detach()
    after = _next_scale(before, log_input, log_forget, reset)
    if reset is not None:
        before = before.masked_fill(reset[..., None], 0.0)
    result = fast_weight_step(
        query,
        key,
        _with_one(value),
        (log_input - after).exp(),
        log_forget + before - after,
        erase=False,
        reset=reset,
        state=state.memory,
        implementation=implementation,
        reset_state=reset_state,
        in_place=in_place,
    )
    return MLSTMOutput(_mlstm_read(result.output, after), MLSTMState(cast(Tensor, result.state), after))


def _check_mlstm(
    query: Tensor,
    value: Tensor,
    log_input: Tensor,
    log_forget: Tensor,
    reset: Tensor | None,
    layout: str,
    state_name: str,
    state: MLSTMState | None,
) -> None:
    """What is used before `fast_weight_attention` checks the rest."""
    _require_axes(query, "query", layout)
    _require_axes(value, "value", layout)
    for name, gate in (("log_input", log_input), ("log_forget", log_forget)):
        require_shape(name, gate, query.shape[:-1])
        same = gate.is_floating_point() and (gate.dtype == torch.float64) == (query.dtype == torch.float64)
        require(same, name, f"of the precision of query, {query.dtype}", gate)
    if reset is not None:
        require_shape("reset", reset, query.shape[:-2], torch.bool)
    if state is not None:
        require(isinstance(state, MLSTMState), state_name, "MLSTMState(memory, log_scale)", state)
        require_shape(f"{state_name}.log_scale", state.log_scale, (query.shape[0], query.shape[-2]))


def _require_axes(tensor: Tensor, name: str, layout: str) -> None:
    axes = layout.count(",") + 1
    require(isinstance(tensor, Tensor) and tensor.dim() == axes, name, f"a tensor {layout}", tensor)


def _next_scale(scale: Tensor, log_input: Tensor, log_forget: Tensor, reset: Tensor | None) -> Tensor:
    if reset is not None:
        scale = scale.masked_fill(reset[..., None], 0.0)
    return torch.maximum(log_forget.detach() + scale, log_input.detach())


def _mlstm_read(output: Tensor, log_scale: Tensor) -> Tensor:
    # exp(-m) vanishes for large m, where a query that meets next to nothing would read, and learn from, noise.
    least = (-log_scale).exp().clamp_min(1e-6)
    return output[..., :-1] / torch.maximum(output[..., -1:].abs(), least[..., None])


def _empty_mlstm(query: Tensor, value: Tensor) -> MLSTMState:
    lives, heads = query.shape[0], query.shape[-2]
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    memory = torch.zeros(lives, heads, value.shape[-1] + 1, query.shape[-1], dtype=dtype, device=query.device)
    return MLSTMState(memory, memory.new_zeros(lives, heads))


def _with_one(value: Tensor) -> Tensor:
    return torch.nn.functional.pad(value, (0, 1), value=1.0)


def _at_substep(tensor: Tensor, writes: int, position: int) -> Tensor:
    """`[B, T, ...]` as `[B, T * writes, ...]`: each entry at one position of its token, zeros at the others."""
    spread = tensor.new_zeros(*tensor.shape[:2], writes, *tensor.shape[2:])
    spread[:, :, position] = tensor
    return spread.flatten(1, 2)
