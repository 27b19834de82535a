"""A short causal depthwise convolution whose taps do not reach across a reset, with an explicit state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lifelong.memory.resets import clear, segments


class ShortConvolution(nn.Module):
    """y[t, d] = sum_j w[j, d] x[t - j, d] over the ``taps`` latest inputs of the same life.

    It lets a single layer bind what it sees now to what it saw one step ago. The state, called tail, holds the last
    ``taps - 1`` inputs, [B, taps - 1, D], oldest first; those of an earlier life are zero.

    Initialisation: the current input passes with weight 1, the earlier ones with weights from U(-1/sqrt(taps),
    1/sqrt(taps)).

    Args:
        dim: number of channels D.
        taps: window, 2 or more, the current input included.
    """

    def __init__(self, dim: int, taps: int) -> None:
        super().__init__()
        if taps < 2:
            raise ValueError(f"convolution_taps must be 0 (no convolution) or 2 or more, not {taps}")
        self.taps = taps
        # Oldest first: row taps - 1 - j weighs the input of j steps ago.
        self.weight = nn.Parameter(torch.empty(taps, dim))
        with torch.no_grad():
            self.weight.uniform_(-(taps**-0.5), taps**-0.5)
            self.weight[-1] = 1.0

    def forward(self, inputs: Tensor, tail: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, T, D], [B, taps - 1, D], [B, T] bool or None -> outputs [B, T, D], tail after step T."""
        extended = torch.cat([tail, inputs], 1)
        masks = [None] * self.taps if reset is None else _same_life(reset, self.taps, inputs.dtype)
        outputs: Tensor = _Convolution.apply(extended, self.weight, *masks)
        new_tail = extended[:, inputs.shape[1] :]
        if reset is not None:
            new_tail = new_tail * _of_last_life(reset, self.taps - 1, inputs.dtype)
        return outputs, new_tail

    def step(self, inputs: Tensor, tail: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, D], [B, taps - 1, D], [B] bool or None -> outputs [B, D], new tail."""
        extended = torch.cat([clear(tail, reset), inputs.unsqueeze(1)], 1)
        return (extended * self.weight).sum(1), extended[:, 1:]


def _same_life(reset: Tensor, taps: int, dtype: torch.dtype) -> list[Tensor | None]:
    """Per row of the weight, [B, T, 1]: 1 where the input that it weighs is of the same life, else 0; None: all 1."""
    life, reach, steps = segments(reset), taps - 1, reset.shape[1]
    extended = torch.nn.functional.pad(life, (reach, 0))  # the tail is of life 0, as is the row up to its first reset
    same = [(extended[:, row : row + steps] == life).unsqueeze(2).to(dtype) for row in range(reach)]
    return [*same, None]


def _of_last_life(reset: Tensor, reach: int, dtype: torch.dtype) -> Tensor:
    """[B, reach, 1]: 1 where the new tail holds inputs of the life that goes on, else 0."""
    life = torch.nn.functional.pad(segments(reset), (reach, 0))
    return (life[:, -reach:] == life[:, -1:]).unsqueeze(2).to(dtype)


class _Convolution(torch.autograd.Function):
    """extended [B, taps - 1 + T, D], weight [taps, D], a mask [B, T, 1] or None per tap -> [B, T, D].

    The gradient is written out because autograd's fills, copies and adds buffers of the size of the inputs for every
    tap; with resets this takes 0.6 of the time.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(extended: Tensor, weight: Tensor, *masks: Tensor | None) -> Tensor:
        steps = extended.shape[1] - len(masks) + 1
        outputs = extended[:, len(masks) - 1 :] * weight[-1]
        for row, mask in enumerate(masks[:-1]):
            earlier = extended[:, row : row + steps]
            outputs.addcmul_(earlier if mask is None else earlier * mask, weight[row])
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        extended, weight, *masks = ctx.saved_tensors
        steps = gradient.shape[1]
        of_extended, of_weight = gradient.new_zeros(extended.shape), []
        for row, mask in enumerate(masks):
            arriving = gradient if mask is None else gradient * mask
            of_extended[:, row : row + steps].addcmul_(arriving, weight[row])
            of_weight.append((arriving * extended[:, row : row + steps]).sum((0, 1)))
        return of_extended, torch.stack(of_weight), *[None] * len(masks)
