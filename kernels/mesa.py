"""Recursive least squares as a memory: what is read is the optimum of a whole regularised regression.

    H_t = a_t H_{t-1} + b_t k_t k_t^T          V_t = a_t V_{t-1} + b_t v_t k_t^T
    out_t = V_t (H_t + Lambda)^{-1} q_t

is S q_t for S = argmin_S sum_{s <= t} w_ts |S k_s - v_s|^2 + |S Lambda^{1/2}|^2, w_ts = b_s a_{s+1} ... a_t (MesaNet,
von Oswald et al. 2025). The state is the two running moments; a reset drops both, for `reset_state` if there is one.

`reference` solves step by step. `chunked` works out the moments of all steps from those at the entries of the chunks
and solves all systems at once, in float32 or float64: they are too ill-conditioned for less. It solves directly, by
Cholesky factors, or with `iterations` by that many conjugate gradients, which form no matrix for a step: less memory
on a GPU, and on a CPU several times slower. The gradient is that of the solution, by one more solve, not that of the
iterations. There is no Triton kernel: an iteration is three batched matrix products for all steps together, which
cuBLAS serves as well as a kernel of ours would.

In single precision, digits are lost as H grows: a moment of size 1 / (1 - a) has an error of 10^-7 of that, which
stands beside Lambda. With horizons of thousands of steps, Lambda should not be small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lifelong.kernels.api import fast_weight_attention
from lifelong.kernels.chunk_influence import influence_without_momentum
from lifelong.kernels.chunking import Chunks
from lifelong.kernels.first_derivative import FirstDerivative, may_be_differentiated, takes
from lifelong.kernels.types import SQUARED, FastWeightCall
from lifelong.kernels.validation import build_call, require


class MesaState(NamedTuple):
    """The running moments: values V `[B, H, Dv, Dk]`, keys H `[B, H, Dk, Dk]`."""

    values: Tensor
    keys: Tensor


class MesaOutput(NamedTuple):
    """output `[B, T, H, Dv]` and the state after it."""

    output: Tensor
    state: MesaState


def mesa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    write_rate: Tensor,
    regulariser: Tensor,
    log_decay: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: MesaState | None = None,
    implementation: str = "auto",
    *,
    iterations: int | None = None,
    reset_state: MesaState | None = None,
) -> MesaOutput:
    """Read the least-squares memory at every step.

    Args:
        query, key, value, write_rate, log_decay, reset: as `fast_weight_attention` takes them; decay `[B, T, H]`.
        regulariser: `[H, Dk]` > 0 (looked at on the CPU), the diagonal of Lambda.
        implementation: `"reference"` or `"chunked"`; `"auto"` is chunked.
        iterations: of conjugate gradients; Dk are enough in exact arithmetic. None: solve directly. Not for the
            reference, which always solves directly.
        reset_state: what the moments become at a reset, in place of zero: `[H, Dv, Dk]`, and `[H, Dk, Dk]` that is
            symmetric and positive semi-definite. It is not what a call begins with: give that as `initial_state`.

    Raises:
        ValueError: an argument has a wrong shape, dtype or device, or the implementation is unknown.
    """
    require(
        initial_state is None or isinstance(initial_state, MesaState), "initial_state", "a MesaState", initial_state
    )
    require(reset_state is None or isinstance(reset_state, MesaState), "reset_state", "a MesaState", reset_state)
    moments = None if initial_state is None else initial_state.values
    call = build_call(
        query, key, value, write_rate, log_decay, None, False, reset, moments,
        erase_key=None, error_before_decay=None, error_function=SQUARED,
        reset_state=None if reset_state is None else reset_state.values, is_step=False,
    ).in_state_dtype()  # fmt: skip
    lives, _, heads, width = call.query.shape
    _check_regulariser(regulariser, call)
    whole = iterations is None or (type(iterations) is int and iterations >= 1)
    require(whole, "iterations", "None or a whole number >= 1", iterations)
    direct = iterations is None or implementation != "reference"
    require(direct, "iterations", 'None with implementation="reference", which solves directly', iterations)
    require(not call.per_channel_decay, "log_decay", "[B, T, H]", log_decay)
    if initial_state is None:
        keys = call.initial_weights.new_zeros(lives, heads, width, width)
    else:
        keys = initial_state.keys
        fits = keys.shape == (lives, heads, width, width) and keys.dtype == call.state_dtype
        require(fits, "initial_state.keys", f"[B, H, Dk, Dk] of {call.state_dtype}", keys)
    state = MesaState(call.initial_weights, keys)
    fresh = None
    if reset_state is not None:
        fresh = reset_state.keys
        fits = fresh.shape == (heads, width, width) and fresh.dtype == call.state_dtype
        require(fits, "reset_state.keys", f"[H, Dk, Dk] of {call.state_dtype}", fresh)
    regulariser = regulariser.to(call.state_dtype)
    with torch.autocast(query.device.type, enabled=False):
        if implementation == "reference":
            output, state = _reference(call, regulariser, state, fresh)
        elif implementation in ("auto", "chunked"):
            output, state = _chunked(call, regulariser, state, fresh, iterations)
        else:
            raise ValueError(f'implementation must be auto, reference or chunked, got "{implementation}"')
    return MesaOutput(output.to(value.dtype), state)


def _check_regulariser(regulariser: Tensor, call: FastWeightCall) -> None:
    shape = [call.query.shape[2], call.query.shape[3]]
    fits = isinstance(regulariser, Tensor) and list(regulariser.shape) == shape
    require(fits, "regulariser", f"{shape}", regulariser)
    double = call.state_dtype == torch.float64
    same = regulariser.is_floating_point() and (regulariser.dtype == torch.float64) == double
    require(same, "regulariser", f"{call.state_dtype}, as the state is", regulariser)
    # To look would wait for a GPU, and cannot be done inside of a graph or a vmap.
    plain = not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None
    if plain and regulariser.device.type == "cpu" and not bool((regulariser > 0).all()):
        raise ValueError(f"regulariser must be > 0, got {regulariser.min().item():g}")


def _reference(
    call: FastWeightCall, regulariser: Tensor, state: MesaState, fresh: Tensor | None
) -> tuple[Tensor, MesaState]:
    values, keys = state
    outputs = []
    for t in range(call.query.shape[1]):
        key, rate = call.key[:, t], call.write_rate[:, t, :, None]
        if call.reset is not None:
            dropped = call.reset[:, t, None, None, None]
            values = torch.where(dropped, 0.0 if call.reset_state is None else call.reset_state, values)
            keys = torch.where(dropped, 0.0 if fresh is None else fresh, keys)
        if call.log_decay is not None:
            decay = call.log_decay[:, t, :, None, None].exp()
            values, keys = decay * values, decay * keys
        values = values + (rate * call.value[:, t])[..., :, None] * key[..., None, :]
        keys = keys + (rate * key)[..., :, None] * key[..., None, :]
        solution = torch.linalg.solve(keys + torch.diag_embed(regulariser), call.query[:, t])
        outputs.append((values @ solution[..., None])[..., 0])
    return torch.stack(outputs, 1), MesaState(values, keys)


def _chunked(
    call: FastWeightCall, regulariser: Tensor, state: MesaState, fresh: Tensor | None, iterations: int | None
) -> tuple[Tensor, MesaState]:
    chunks = Chunks.of(call.query.shape[1])
    query, key = chunks.split(call.query).contiguous(), chunks.split(call.key).contiguous()
    rate = chunks.split(call.write_rate)
    fresh = None if call.reset is None else fresh
    influence = influence_without_momentum(
        chunks.size,
        None if call.log_decay is None else chunks.split(call.log_decay),
        None if call.reset is None else chunks.split_shared(call.reset),
        key,
        error_before_decay=False,
        learned_reset=fresh is not None,
    )
    entry = influence.entry[..., chunks.size :, :].expand(*key.shape[:3], -1, -1)
    weights = influence.writes[..., chunks.size :, :] * rate[..., None, :]

    keys, entries = state.keys, []
    # Of the planes of the exit, the first: the others are constant.
    through = influence.exit_entry[..., :1, :].expand(*key.shape[:3], -1, -1)
    written = influence.exit_writes[..., :1, :] * rate[..., None, :]
    for chunk_key, kept, weight in zip(key, through, written, strict=True):
        planes = [keys] if fresh is None else [keys, fresh.expand_as(keys)]
        entries.append(torch.stack(planes))
        keys = _weighed(kept, planes) + (chunk_key * weight.mT).mT @ chunk_key
    system = _System(torch.stack(entries), entry, weights, key, regulariser[:, None])

    with torch.no_grad():
        frozen = tuple(tensor.detach() for tensor in system)
        operands = (_System(*frozen).factors(), None, None, None, None) if iterations is None else frozen
        solution = _solve(query.detach(), iterations, *operands)
    if may_be_differentiated():
        # The residual is zero but for rounding; through it the gradient reaches the system and the query.
        solution = _Solution.apply(query - system.times(solution), solution, iterations, *operands)

    result = fast_weight_attention(
        chunks.join(solution), call.key, call.value, call.write_rate, call.log_decay,
        erase=False, reset=call.reset, initial_state=state.values, reset_state=call.reset_state,
    )  # fmt: skip
    return result.output, MesaState(cast(Tensor, result.state), keys)


class _System(NamedTuple):
    """The matrices H_t + Lambda of all steps, as what they are made of."""

    entries: Tensor  # [N, P, B, H, Dk, Dk] key moments at the entry of each chunk; with a reset state that, too
    entry: Tensor  # [N, B, H, C, P] what is left of them at each step
    weights: Tensor  # [..., C, C] weight of the key of step j at step i
    key: Tensor  # [N, B, H, C, Dk]
    regulariser: Tensor  # [H, 1, Dk]

    def times(self, vectors: Tensor) -> Tensor:
        """The matrix of each step times the vector of that step."""
        recent = ((vectors @ self.key.mT) * self.weights) @ self.key
        read = [vectors @ plane for plane in self.entries.unbind(1)]
        return self.regulariser * vectors + _weighed(self.entry, read) + recent

    def factors(self) -> Tensor:
        """The Cholesky factors of all matrices, `[N, B, H, C, Dk, Dk]`."""
        width = self.key.shape[-1]
        diagonal = torch.diag_embed(self.regulariser)
        parts = []
        for entries, entry, weights, key in zip(*self[:4], strict=True):
            squares = (key[..., :, None] * key[..., None, :]).flatten(-2)
            matrices = (weights @ squares).unflatten(-1, (width, width))
            planes = [plane[:, :, None] for plane in entries]
            matrices = matrices + _weighed(entry[..., None, :], planes) + diagonal
            parts.append(torch.linalg.cholesky_ex(matrices)[0])
        return torch.stack(parts)

    def conjugate_gradients(self, right: Tensor, iterations: int) -> Tensor:
        """Conjugate gradients, preconditioned by the diagonal."""
        planes = self.entries.diagonal(dim1=-2, dim2=-1)[..., None, :].unbind(1)
        diagonal = self.regulariser + _weighed(self.entry, planes)
        diagonal = diagonal + self.weights @ self.key.square()
        tiny = torch.finfo(right.dtype).tiny
        solution, residual = torch.zeros_like(right), right
        scaled = residual / diagonal
        direction, size = scaled, torch.linalg.vecdot(residual, scaled)[..., None]
        for _ in range(iterations):
            image = self.times(direction)
            length = size / torch.linalg.vecdot(direction, image)[..., None].clamp_min(tiny)
            solution = solution + length * direction
            residual = residual - length * image
            scaled = residual / diagonal
            before, size = size, torch.linalg.vecdot(residual, scaled)[..., None]
            direction = scaled + size / before.clamp_min(tiny) * direction
        return solution


def _weighed(weights: Tensor, planes: Sequence[Tensor]) -> Tensor:
    """The sum of the planes, each times its weight of `[..., P]`."""
    total = weights[..., :1] * planes[0]
    for index in range(1, len(planes)):
        total = total + weights[..., index : index + 1] * planes[index]
    return total


def _solve(right: Tensor, iterations: int | None, *operands: Any) -> Tensor:
    """By the Cholesky factors, or by conjugate gradients from the parts of a `_System`."""
    if iterations is None:
        return torch.cholesky_solve(right[..., None], operands[0])[..., 0]
    return _System(*operands).conjugate_gradients(right, iterations)


class _Solution(torch.autograd.Function):
    """The solution x of A x = q as a function of its residual q - A x: dx = A^{-1} d(q - A x), A symmetric."""

    generate_vmap_rule = True

    @staticmethod
    @takes(8)
    def forward(residual: Tensor, solution: Tensor, iterations: int | None, *operands: Any) -> Tensor:
        return solution.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        residual, _, ctx.iterations, *operands = inputs
        ctx.save_for_backward(residual, *operands)

    @staticmethod
    def backward(ctx: Any, d_solution: Tensor) -> tuple[Tensor | None, ...]:
        residual, *operands = ctx.saved_tensors
        return _Gradient.apply(d_solution, ctx.iterations, residual, *operands), None, None, *(None for _ in operands)


class _Gradient(FirstDerivative):
    @staticmethod
    @takes(8)
    def forward(d_solution: Tensor, iterations: int | None, residual: Tensor, *operands: Any) -> Tensor:
        # `residual` is here for what it depends on: what differentiates once more is to meet the error of the base.
        return _solve(d_solution.contiguous(), iterations, *operands)
