"""The one recurrence over chunks that every linear fast-weight rule reduces to, with its gradient written out.

Notation: N chunks, M = B * H memories, C steps a chunk, P planes of state (the fast weights; with momentum or a learned
reset state, those too), Z = P * Dk. Within a chunk, let S `[Z, Dv]` be the entry state and E `[C, Dv]` what the C steps
write. All that is ever read from the memory is a combination of the two:

    E  = V - (K S + A E)        A strictly lower triangular (erase off: E = V)
    O  =      Q S + R E         R lower triangular
    S' = carry(S) + W^T E       the entry state of the next chunk

Decay, write rates, resets and momentum sit in these matrices, where they cost the recurrence nothing. I + A is inverted
by substitution: a Neumann series or doubling loses all digits when keys are alike, and the frames of an agent that
stands still are alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lifelong.kernels.first_derivative import FirstDerivative


class ChunkMatrices(NamedTuple):
    """What the keys and gates of the chunks make of them; `...` is `[N, M]`.

    keys, queries, writes: `[..., C, Z]`, K, Q and W
    known, read:           `[..., C, C]`, A and R
    carry:                 `[..., P, P, Dk or 1]`, carry(S)[p, d, v] = sum_q carry[p, q, d] S[q, d, v]
    """

    keys: Tensor
    queries: Tensor
    known: Tensor
    read: Tensor
    writes: Tensor
    carry: Tensor


class ChunkScanOutput(NamedTuple):
    """output, prediction_error `[N, M, C, Dv]`; state `[M, Z, Dv]`."""

    output: Tensor
    prediction_error: Tensor
    state: Tensor


def chunk_scan(value: Tensor, matrices: ChunkMatrices, erase: bool | Tensor, state: Tensor) -> ChunkScanOutput:
    """Run the recurrence of this module.

    Args:
        value: `[N, M, C, Dv]`, V.
        matrices: K, Q, A, R, W and the carry.
        erase: bool, or `[M]` of zeros and ones.
        state: `[M, Z, Dv]`.

    Returns:
        Output, final state, and the prediction error V - (K S + A E), which is E where `erase` is on.
    """
    output, prediction_error, final, *_ = _ChunkScan.apply(value, *matrices, erase, state)
    return ChunkScanOutput(output, prediction_error, final)


class _ChunkScan(torch.autograd.Function):
    @staticmethod
    def forward(
        value: Tensor,
        keys: Tensor,
        queries: Tensor,
        known: Tensor,
        read: Tensor,
        writes: Tensor,
        carry: Tensor,
        erase: bool | Tensor,
        state: Tensor,
    ) -> tuple[Tensor | None, ...]:
        mask = erase[:, None, None] if isinstance(erase, Tensor) else None
        inverse, errors = None, value.view_as(value)
        if erase is not False:
            system = known if mask is None else known * mask
            identity = torch.eye(value.shape[2], dtype=value.dtype, device=value.device).expand_as(system)
            inverse = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
            errors = _empty_like(value)

        output, unknown = _empty_like(value), _empty_like(value)
        entries = value.new_empty(len(value), *state.shape)
        final = _empty_like(state)
        entry, *exits = *entries.unbind(), final
        entry.copy_(state)
        # Only what touches the state is done here, chunk after chunk, while the state is in the cache.
        given = _chunk_by_chunk(value, keys, queries, writes.mT, carry, inverse)
        made = _chunk_by_chunk(unknown, errors, output)
        for (v, k, q, w, through, solve), (u, e, o), exit_ in zip(given, made, exits, strict=True):
            torch.baddbmm(v, k, entry, alpha=-1, out=u)
            if solve is not None:
                torch.bmm(solve, u if mask is None else torch.where(mask > 0, u, v), out=e)
            torch.bmm(q, entry, out=o)
            _carry(entry, through, exit_)
            entry = exit_.baddbmm_(w, e)

        _add_product(output, read, errors)
        # All but the first three are for the backward pass: with `setup_context` only what is returned can be saved.
        if erase is True:
            return output, errors, final, entries, None, inverse
        return output, _add_product(unknown, known, errors, -1), final, entries, errors, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, *matrices, ctx.erase, _ = inputs
        ctx.mark_non_differentiable(*(tensor for tensor in output[3:] if tensor is not None))
        ctx.set_materialize_grads(False)
        mask = ctx.erase if isinstance(ctx.erase, Tensor) else None
        _, prediction_error, _, entries, errors, inverse = output
        ctx.save_for_backward(mask, *matrices, entries, prediction_error if errors is None else errors, inverse)

    @staticmethod
    def backward(
        ctx: Any, d_output: Tensor | None, d_prediction: Tensor | None, d_final: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        mask, *saved = ctx.saved_tensors
        erase = ctx.erase if mask is None else mask
        *gradients, d_state = _ChunkScanBackward.apply(
            d_output, d_prediction, d_final, erase, ctx.needs_input_grad[6], *saved
        )
        return *gradients, None, d_state

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        in_axes, out_axes = (1, 1, 1, 1, 1, 1, 1, 0, 0), (1, 1, 0, 1, 1, 1)
        return _over_more_memories(_ChunkScan, info.batch_size, in_dims, inputs, in_axes, out_axes)


class _ChunkScanBackward(FirstDerivative):
    """The gradient of `_ChunkScan`; a function of its own so that it can be batched by `vmap`."""

    @staticmethod
    def forward(
        d_output: Tensor | None,
        d_prediction: Tensor | None,
        d_final: Tensor | None,
        erase: bool | Tensor,
        carry_learns: bool,
        keys: Tensor,
        queries: Tensor,
        known: Tensor,
        read: Tensor,
        writes: Tensor,
        carry: Tensor,
        entries: Tensor,
        errors: Tensor,
        inverse: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        mask = erase[:, None, None] if isinstance(erase, Tensor) else None
        d_output = torch.zeros_like(errors) if d_output is None else d_output.contiguous()
        d_errors = read.mT @ d_output
        d_value = d_errors if inverse is None else _empty_like(errors)
        # `d_lost` is the gradient of K S + A E with its sign turned. The prediction error loses it, and where erase is
        # on, E does, which is then the same.
        if erase is True:
            d_lost: Tensor | None = d_value
            if d_prediction is not None:
                d_errors += d_prediction
        elif d_prediction is not None:
            d_lost = d_prediction.clone(memory_format=torch.contiguous_format)
            d_errors -= known.mT @ d_prediction
        else:
            d_lost = None if mask is None else torch.zeros_like(errors)

        d_keys, d_queries, d_writes = (_empty_like(vectors) for vectors in (keys, queries, writes))
        d_carry = torch.empty_like(carry) if carry_learns else None
        d_state, d_entry = _empty_like(entries[0]), _empty_like(entries[0])
        d_state.zero_() if d_final is None else d_state.copy_(d_final)
        given = _chunk_by_chunk(keys, queries, writes, carry.transpose(2, 3), entries, errors, inverse, d_output)
        made = _chunk_by_chunk(d_errors, d_value, d_lost, d_keys, d_queries, d_writes, d_carry)
        for (k, q, w, through, entry, e, solve, d_o), (d_e, d_v, d_l, d_k, d_q, d_w, d_through) in zip(
            reversed(given), reversed(made), strict=True
        ):
            d_e.baddbmm_(w, d_state)
            torch.bmm(e, d_state.mT, out=d_w)
            if solve is not None:
                torch.bmm(solve.mT, d_e, out=d_v)
            if d_through is not None:
                d_through.copy_(_carry_gradient(d_state, entry, through))
            _carry(d_state, through, d_entry)
            d_state, d_entry = d_entry, d_state
            torch.bmm(d_o, entry.mT, out=d_q)
            d_state.baddbmm_(q.mT, d_o)
            if d_l is not None:
                if mask is not None:
                    d_l.addcmul_(d_v, mask)
                torch.bmm(d_l, entry.mT, out=d_k)
                d_state.baddbmm_(k.mT, d_l, alpha=-1)

        if erase is not True and d_prediction is not None:
            d_value = d_value + d_prediction
        return (
            d_value,
            None if d_lost is None else d_keys.neg_(),
            d_queries,
            None if d_lost is None else (d_lost @ errors.mT).neg_(),
            d_output @ errors.mT,
            d_writes,
            d_carry,
            d_state,
        )

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        in_axes, out_axes = (1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1, 0)
        return _over_more_memories(_ChunkScanBackward, info.batch_size, in_dims, inputs, in_axes, out_axes)


def _over_more_memories(
    function: type[torch.autograd.Function],
    batch: int,
    in_dims: tuple[int | None, ...],
    inputs: tuple[Any, ...],
    in_axes: tuple[int, ...],
    out_axes: tuple[int, ...],
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """The batching rule of both functions: a batch is just more memories. The axes say where a tensor keeps its M."""
    folded = []
    for tensor, dim, axis in zip(inputs, in_dims, in_axes, strict=True):
        if isinstance(tensor, Tensor):
            if dim is None:
                tensor = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], batch, *tensor.shape[axis:])
            else:
                tensor = tensor.movedim(dim, axis)
            tensor = tensor.flatten(axis, axis + 1)
        folded.append(tensor)
    outputs = function.apply(*folded)
    unfolded = [
        None if tensor is None else tensor.unflatten(axis, (batch, -1))
        for tensor, axis in zip(outputs, out_axes, strict=True)
    ]
    return tuple(unfolded), tuple(
        None if tensor is None else axis for tensor, axis in zip(outputs, out_axes, strict=True)
    )


def _chunk_by_chunk(*tensors: Tensor | None) -> list[tuple[Any, ...]]:
    """The n-th entries of all, for every n; to unbind once costs less than to index every time."""
    count = next(len(tensor) for tensor in tensors if tensor is not None)
    return list(zip(*([None] * count if tensor is None else tensor.unbind() for tensor in tensors), strict=True))


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _add_product(target: Tensor, left: Tensor, right: Tensor, alpha: int = 1) -> Tensor:
    """target += alpha left right, in place, over all chunks and memories."""
    target.flatten(0, 1).baddbmm_(left.flatten(0, 1), right.flatten(0, 1), alpha=alpha)
    return target


def _carry(state: Tensor, through: Tensor, result: Tensor) -> None:
    """result[p, d, v] = sum_q through[p, q, d] state[q, d, v] for `[M, Z, Dv]` and `[M, P, P, Dk or 1]`."""
    planes = through.shape[1]
    if planes == 1:
        torch.mul(state, through[:, 0, 0, :, None], out=result)
        return
    split = state.unflatten(1, (planes, -1))
    result.copy_((through[..., None] * split[:, None]).sum(2).flatten(1, 2))


def _carry_gradient(d_after: Tensor, entry: Tensor, through: Tensor) -> Tensor:
    """sum_v d_after[p, d, v] entry[q, d, v], summed over d too where all channels share the carry."""
    planes = through.shape[1]
    product = d_after.unflatten(1, (planes, 1, -1)) * entry.unflatten(1, (1, planes, -1))
    return product.sum(-1) if through.shape[-1] > 1 else product.sum((-2, -1)).unsqueeze(-1)
