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


class ChunkScanOutput(NamedTuple):
    """output, prediction_error `[N, M, C, Dv]`; state `[M, Z, Dv]`."""

    output: Tensor
    prediction_error: Tensor
    state: Tensor


def chunk_scan(
    value: Tensor, readers: Tensor, coupling: Tensor, erase: bool | Tensor, writes: Tensor, carry: Tensor, state: Tensor
) -> ChunkScanOutput:
    """Run the recurrence of this module.

    Args:
        value: `[N, M, C, Dv]`, V.
        readers: `[N, M, 2 C, Z]`, the rows of K above those of Q.
        coupling: `[N, M, 2 C, C]`, the rows of A above those of R.
        erase: bool, or `[M]` of zeros and ones.
        writes: `[N, M, C, Z]`, W.
        carry: `[N, M, P, P, Dk or 1]`; carry(S)[p, d, v] = sum_q carry[p, q, d] S[q, d, v].
        state: `[M, Z, Dv]`.

    Returns:
        Output, final state, and the prediction error V - (K S + A E), which is E where `erase` is on.
    """
    output, prediction_error, final, *_ = _ChunkScan.apply(value, readers, coupling, erase, writes, carry, state)
    return ChunkScanOutput(output, prediction_error, final)


class _ChunkScan(torch.autograd.Function):
    @staticmethod
    def forward(
        value: Tensor,
        readers: Tensor,
        coupling: Tensor,
        erase: bool | Tensor,
        writes: Tensor,
        carry: Tensor,
        state: Tensor,
    ) -> tuple[Tensor | None, ...]:
        chunks, _, size, _ = value.shape
        inverse = solved_keys = None
        errors = value.view_as(value)
        if erase is not False:
            keys, system = readers[..., :size, :], coupling[..., :size, :]
            if isinstance(erase, Tensor):
                keys, system = keys * erase[:, None, None], system * erase[:, None, None]
            identity = torch.eye(size, dtype=value.dtype, device=value.device).expand_as(system)
            inverse = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
            solved_keys, errors = inverse @ keys, inverse @ value

        entries = value.new_empty(chunks + 1, *state.shape)
        entries[0] = state
        for n in range(chunks):
            if solved_keys is not None:
                errors[n].baddbmm_(solved_keys[n], entries[n], alpha=-1)
            _carry(entries[n], carry[n], entries[n + 1])
            entries[n + 1].baddbmm_(writes[n].mT, errors[n])
        entries, final = entries[:-1], entries[-1].clone()

        asking = slice(size, None) if erase is True else slice(None)
        answers = readers[..., asking, :] @ entries
        _add_product(answers, coupling[..., asking, :], errors)
        # All but the first three are for the backward pass: with `setup_context` only what is returned can be saved.
        if erase is True:
            return answers, errors, final, entries, None, inverse, solved_keys
        output, prediction_error = answers[..., size:, :].contiguous(), value - answers[..., :size, :]
        return output, prediction_error, final, entries, errors, inverse, solved_keys

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, readers, coupling, ctx.erase, writes, carry, _ = inputs
        ctx.mark_non_differentiable(*(tensor for tensor in output[3:] if tensor is not None))
        ctx.set_materialize_grads(False)
        mask = ctx.erase if isinstance(ctx.erase, Tensor) else None
        _, prediction_error, _, entries, errors, *solution = output
        errors = prediction_error if errors is None else errors
        ctx.save_for_backward(readers, coupling, mask, writes, carry, entries, errors, *solution)

    @staticmethod
    def backward(
        ctx: Any, d_output: Tensor | None, d_prediction: Tensor | None, d_final: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        readers, coupling, mask, *saved = ctx.saved_tensors
        erase = ctx.erase if mask is None else mask
        d_value, d_readers, d_coupling, *others = _ChunkScanBackward.apply(
            d_output, d_prediction, d_final, readers, coupling, erase, ctx.needs_input_grad[5], *saved
        )
        return d_value, d_readers, d_coupling, None, *others

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        in_axes, out_axes = (1, 1, 1, 0, 1, 1, 0), (1, 1, 0, 1, 1, 1, 1)
        return _over_more_memories(_ChunkScan, info.batch_size, in_dims, inputs, in_axes, out_axes)


class _ChunkScanBackward(torch.autograd.Function):
    """The gradient of `_ChunkScan`; a function of its own so that it can be batched by `vmap`."""

    @staticmethod
    def forward(
        d_output: Tensor | None,
        d_prediction: Tensor | None,
        d_final: Tensor | None,
        readers: Tensor,
        coupling: Tensor,
        erase: bool | Tensor,
        carry_learns: bool,
        writes: Tensor,
        carry: Tensor,
        entries: Tensor,
        errors: Tensor,
        inverse: Tensor | None,
        solved_keys: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        chunks, _, size, _ = writes.shape
        d_answers = errors.new_empty(*errors.shape[:2], 2 * size, errors.shape[-1])
        d_known, d_read = d_answers.split(size, -2)
        if d_output is None:
            d_read.zero_()
        else:
            d_read.copy_(d_output)

        queries, known = readers[..., size:, :], None
        d_errors = coupling[..., size:, :].mT @ d_read
        if d_prediction is not None and erase is True:
            d_errors += d_prediction
        elif d_prediction is not None:
            known = readers[..., :size, :]
            d_errors -= coupling[..., :size, :].mT @ d_prediction

        d_carry = torch.empty_like(carry) if carry_learns else None
        d_entries = errors.new_empty(chunks + 1, *entries.shape[1:])
        d_entries[-1] = 0.0 if d_final is None else d_final
        for n in reversed(range(chunks)):
            d_errors[n].baddbmm_(writes[n], d_entries[n + 1])
            if d_carry is not None:
                d_carry[n] = _carry_gradient(d_entries[n + 1], entries[n], carry[n])
            _carry(d_entries[n + 1], carry[n].transpose(1, 2), d_entries[n])
            d_entries[n].baddbmm_(queries[n].mT, d_read[n])
            if known is not None and d_prediction is not None:
                d_entries[n].baddbmm_(known[n].mT, d_prediction[n], alpha=-1)
            if solved_keys is not None:
                d_entries[n].baddbmm_(solved_keys[n].mT, d_errors[n], alpha=-1)

        d_value = d_errors if inverse is None else inverse.mT @ d_errors
        # What K S + A E is subtracted from: E where erase is on, and the prediction error that is returned.
        if erase is False:
            d_known.zero_()
        else:
            d_known.copy_(d_value).neg_()
            if erase is not True:
                d_known *= erase[:, None, None]
        if erase is not True and d_prediction is not None:
            d_known -= d_prediction
            d_value = d_value + d_prediction
        return (
            d_value,
            d_answers @ entries.mT,
            d_answers @ errors.mT,
            errors @ d_entries[1:].mT,
            d_carry,
            d_entries[0].clone(),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        in_axes, out_axes = (1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 0)
        return _over_more_memories(_ChunkScanBackward, info.batch_size, in_dims, inputs, in_axes, out_axes)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        raise NotImplementedError(
            'no second derivative is written out here; implementation="reference" has all of them'
        )


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


def _add_product(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target += left right, in place, over all chunks and memories."""
    target.flatten(0, 1).baddbmm_(left.flatten(0, 1), right.flatten(0, 1))


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
