"""First-order linear recurrences over [B, T], elementwise, with resets at any step.

    h_t = a_t h_{t-1} + b_t,      h_{t-1} replaced by the reset state where reset_t

Two ways of computing them. The *sweep* goes through the T steps with one fused multiply-add each. The *doubling* scan
(Hillis and Steele 1986) combines pairs by (a, b) then (a', b') = (a' a, a' b + b'), all T at once and log2(T) times;
it is taken where a step is too small to fill the machine. Neither ever takes a logarithm or divides by a product of
decays: a reset is a decay of exactly 0, products of decays may underflow (to the right answer, 0), and as long as
|a| <= 1 nothing can overflow.

On one core, float32, T = 128, milliseconds: B x N = 16 x 128, sweep 0.5, doubling 1.7; 16 x 2048, 8 and 52; and with
T = 1024 and B x N = 1 x 64, 2.4 and 0.6.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Numbers in a step of all lives below which doubling beats the sweep on a CPU, at any T from 128 to 32,768.
_SMALL_STEP = 256


def linear_scan(
    decay: Tensor,
    inputs: Tensor,
    start: Tensor,
    reset: Tensor | None = None,
    reset_state: Tensor | None = None,
) -> Tensor:
    """All states h_1, ..., h_T.

    Args:
        decay: a, real or complex, |a| <= 1 (only the sweep bears more); [B, T, ...], or anything that broadcasts to it.
        inputs: b, [B, T, ...], of the same dtype.
        start: h_0, [B, ...].
        reset: [B, T] bool, or None for no reset.
        reset_state: [...], the state that a reset leaves behind; None for zero.

    Returns:
        [B, T, ...], with gradients (of any order) into all floating-point arguments.
    """
    decay = decay.expand_as(inputs)
    if reset is not None:
        flags = reset.view(*reset.shape, *[1] * (inputs.dim() - 2))
        if reset_state is not None:
            inputs = torch.where(flags, decay * reset_state + inputs, inputs)
        decay = decay.masked_fill(flags, 0.0)
    states: Tensor = _Scan.apply(decay, inputs, start, False)
    return states


class _Scan(torch.autograd.Function):
    """h_t = a_t h_{t-1} + b_t from h_0 = start; ``backwards``: h_t = a_t h_{t+1} + b_t from h_{T+1} = start.

    The gradient of one is the other.
    """

    @staticmethod
    def forward(decay: Tensor, inputs: Tensor, start: Tensor, backwards: bool) -> Tensor:
        if inputs.is_cuda or inputs[:, :1].numel() < _SMALL_STEP:
            return _doubling(decay, inputs, start, backwards)
        return _sweep(decay, inputs, start, backwards)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        decay, _, start, ctx.backwards = inputs
        ctx.save_for_backward(decay, start, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        decay, start, states = ctx.saved_tensors
        decay = decay.conj().resolve_conj()
        ends, inner, outer = (
            (0, slice(1, None), slice(None, -1)) if ctx.backwards else (-1, slice(None, -1), slice(1, None))
        )
        # What reaches h_t comes from the outside and from its successor.
        last = gradient[:, ends]
        rest = _Scan.apply(decay[:, outer], gradient[:, inner], last, not ctx.backwards)
        parts, before = [rest, last.unsqueeze(1)], [start.unsqueeze(1), states[:, inner]]
        if ctx.backwards:
            parts.reverse()
            before.reverse()
        arriving = torch.cat(parts, 1)
        first = -1 if ctx.backwards else 0
        of_decay = arriving * torch.cat(before, 1).conj() if ctx.needs_input_grad[0] else None
        return of_decay, arriving, decay[:, first] * arriving[:, first], None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        """A batch of scans is a scan over more lives."""
        folded = []
        for tensor, dim in zip(arguments[:3], in_dims[:3], strict=True):
            moved = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            folded.append(moved.flatten(0, 1))
        return _Scan.apply(*folded, arguments[3]).unflatten(0, (info.batch_size, -1)), 0


def _sweep(decay: Tensor, inputs: Tensor, start: Tensor, backwards: bool) -> Tensor:
    states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    steps = list(zip(decay.unbind(1), inputs.unbind(1), states.unbind(1), strict=True))
    state = start
    for a, b, new in reversed(steps) if backwards else steps:
        state = torch.addcmul(b, a, state, out=new)
    return states


def _doubling(decay: Tensor, inputs: Tensor, start: Tensor, backwards: bool) -> Tensor:
    if not inputs.shape[1]:
        return torch.empty_like(inputs)
    if backwards:
        return _doubling(decay.flip(1), inputs.flip(1), start, False).flip(1)
    first = torch.addcmul(inputs[:, :1], decay[:, :1], start.unsqueeze(1))
    states, steps, span = torch.cat([first, inputs[:, 1:]], 1), inputs.shape[1], 1
    while span < steps:
        # states[t] sums up the last `span` steps and decay[t] is their product; the first `span` states are done.
        further = torch.addcmul(states[:, span:], decay[:, span:], states[:, :-span])
        states = torch.cat([states[:, :span], further], 1)
        decay = torch.cat([decay[:, :span], decay[:, span:] * decay[:, :-span]], 1)
        span *= 2
    return states
