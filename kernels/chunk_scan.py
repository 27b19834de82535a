"""The one recurrence over chunks that every linear fast-weight rule reduces to, with its gradient written out.

Notation: N chunks, M = B * H memories, C steps a chunk, P planes of state (fast weights; with momentum or a learned
reset state, those too), Z = P * Dk. For each memory, with the state S `[Dv, Z]` at the entry of a chunk:

    (I + A) E = V - K_in S^T          errors E, `[C, Dv]`; A strictly lower triangular
    O         = Q_in S^T + R E        what is read
    S'        = carry(S) + E^T K_out  the state at the entry of the next chunk

All of decay, write rates, resets and momentum sits in A, R, K_in, Q_in, K_out and the carry, so that it costs the
recurrence nothing. The inverse of I + A is formed once a chunk by substitution: a Neumann series or doubling loses all
digits when keys are alike, and frames of an agent that stands still are alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class ChunkScanOutput(NamedTuple):
    """What a scan returns.

    output, errors: `[N, M, C, Dv]`
    entries:        `[N, M, Dv, P, Dk]`, the state that each chunk found
    state:          `[M, Dv, P, Dk]`, the state after the last
    """

    output: Tensor
    errors: Tensor
    entries: Tensor
    state: Tensor


def chunk_scan(
    value: Tensor,
    erase: Tensor | None,
    read: Tensor,
    key_in: Tensor | None,
    query_in: Tensor,
    key_out: Tensor,
    carry: Tensor,
    state: Tensor,
) -> ChunkScanOutput:
    """Run the recurrence of this module.

    Args:
        value: `[N, M, C, Dv]`, V.
        erase: `[N, M, C, C]`, A; only what lies below the diagonal is read. None: nothing is erased, E = V.
        read: `[N, M, C, C]`, R; zero above the diagonal.
        key_in: `[N, M, C, Z]`, K_in; None exactly when `erase` is.
        query_in, key_out: `[N, M, C, Z]`.
        carry: `[N, M, P, P, Dk or 1]`; carry(S)[v, p, d] = sum_q carry[p, q, d] S[v, q, d].
        state: `[M, Dv, P, Dk]`.
    """
    return ChunkScanOutput(*_ChunkScan.apply(value, erase, read, key_in, query_in, key_out, carry, state)[:4])


class _ChunkScan(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        value: Tensor,
        erase: Tensor | None,
        read: Tensor,
        key_in: Tensor | None,
        query_in: Tensor,
        key_out: Tensor,
        carry: Tensor,
        state: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inverse = solved_key = None
        free_errors = value  # the errors that an empty memory would make
        if erase is not None and key_in is not None:
            identity = torch.eye(erase.shape[-1], dtype=erase.dtype, device=erase.device).expand_as(erase)
            inverse = torch.linalg.solve_triangular(erase, identity, upper=False, unitriangular=True)
            free_errors, solved_key = inverse @ value, inverse @ key_in

        entries, errors = [], []
        for n, (free, out, through) in enumerate(zip(free_errors, key_out, carry, strict=True)):
            entries.append(state)
            flat = state.flatten(-2)
            error = free if solved_key is None else torch.baddbmm(free, solved_key[n], flat.mT, alpha=-1)
            errors.append(error)
            state = torch.baddbmm(_carry(state, through).flatten(-2), error.mT, out).view_as(state)

        all_entries, all_errors = torch.stack(entries), torch.stack(errors)
        output = query_in @ all_entries.flatten(-2).mT + read @ all_errors
        # The last two are kept for the backward pass: a function with `setup_context` can save only what it returns.
        return output, all_errors, all_entries, state, inverse, solved_key

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, _, read, _, query_in, key_out, carry, _ = inputs
        _, errors, entries, _, inverse, solved_key = output
        ctx.mark_non_differentiable(*(tensor for tensor in (inverse, solved_key) if tensor is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(read, query_in, key_out, carry, errors, entries, inverse, solved_key)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_output: Tensor | None,
        d_errors: Tensor | None,
        d_entries: Tensor | None,
        d_state: Tensor | None,
        *_: None,
    ) -> tuple[Tensor | None, ...]:
        read, query_in, key_out, carry, errors, entries, inverse, solved_key = ctx.saved_tensors
        if d_output is None:
            d_output = torch.zeros_like(errors)
        if d_state is None:
            d_state = torch.zeros_like(entries[0])
        d_errors = read.mT @ d_output if d_errors is None else d_errors + read.mT @ d_output

        d_exits: list[Tensor] = []
        d_all_errors: list[Tensor] = []
        for n in reversed(range(len(errors))):
            d_exits.append(d_state)
            flat = d_state.flatten(-2)
            d_error = torch.baddbmm(d_errors[n], key_out[n], flat.mT)
            d_all_errors.append(d_error)
            flat = torch.baddbmm(_carry_backward(d_state, carry[n]).flatten(-2), d_output[n].mT, query_in[n])
            if solved_key is not None:
                flat = torch.baddbmm(flat, d_error.mT, solved_key[n], alpha=-1)
            d_state = flat.view_as(d_state)
            if d_entries is not None:
                d_state = d_state + d_entries[n]
        d_exit = torch.stack(d_exits[::-1])
        d_errors = torch.stack(d_all_errors[::-1])

        flat_entries = entries.flatten(-2)
        d_value, d_erase, d_key_in = d_errors, None, None
        if inverse is not None:
            d_value = inverse.mT @ d_errors
            d_erase = (d_value @ errors.mT).neg_().tril_(-1)
            d_key_in = (d_value @ flat_entries).neg_()
        return (
            d_value,
            d_erase,
            d_output @ errors.mT,
            d_key_in,
            d_output @ flat_entries,
            errors @ d_exit.flatten(-2),
            _carry_gradient(d_exit, entries, carry) if ctx.needs_input_grad[6] else None,
            d_state,
        )


def _carry(state: Tensor, through: Tensor) -> Tensor:
    """`[M, Dv, P, Dk]` through one chunk: out[v, p, d] = sum_q through[p, q, d] state[v, q, d]."""
    if state.shape[-2] == 1:
        return state * through[:, 0, None]
    return (through[:, None] * state[:, :, None]).sum(3)


def _carry_backward(d_state: Tensor, through: Tensor) -> Tensor:
    return _carry(d_state, through.transpose(1, 2))


def _carry_gradient(d_exit: Tensor, entries: Tensor, carry: Tensor) -> Tensor:
    """sum_v d_exit[v, p, d] entries[v, q, d], and over d where the carry is the same for every channel."""
    product = (d_exit[:, :, :, :, None] * entries[:, :, :, None]).sum(2)
    return product.sum_to_size(carry.shape)
