"""A short causal depthwise convolution whose taps do not reach across a reset, with an explicit state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
            raise ValueError(f"a convolution needs taps >= 2, not {taps}")
        self.taps = taps
        self.weight = nn.Parameter(
            torch.empty(taps, dim)
        )  # oldest first: row taps - 1 - j weighs the input of j steps ago
        with torch.no_grad():
            self.weight.uniform_(-(taps**-0.5), taps**-0.5)
            self.weight[-1] = 1.0

    def forward(self, inputs: Tensor, tail: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, T, D], [B, taps - 1, D], [B, T] bool or None -> outputs [B, T, D], tail after step T."""
        steps, reach = inputs.shape[1], self.taps - 1
        extended = torch.cat([tail, inputs], 1)
        same_life = None if reset is None else _same_life(reset, reach)
        outputs = inputs * self.weight[reach]
        for back in range(1, self.taps):
            earlier = extended[:, reach - back : reach - back + steps]
            if same_life is not None:
                earlier = earlier.masked_fill(~same_life[back - 1], 0.0)
            outputs = torch.addcmul(outputs, earlier, self.weight[reach - back])
        new_tail = extended[:, steps:]
        if reset is not None:
            life = segments(reset)
            of_tail = torch.cat([life.new_zeros(len(life), reach), life], 1)[:, steps:]
            new_tail = new_tail.masked_fill((of_tail != life[:, -1:]).unsqueeze(2), 0.0)
        return outputs, new_tail

    def step(self, inputs: Tensor, tail: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, D], [B, taps - 1, D], [B] bool or None -> outputs [B, D], new tail."""
        extended = torch.cat([clear(tail, reset), inputs.unsqueeze(1)], 1)
        return (extended * self.weight).sum(1), extended[:, 1:]


def _same_life(reset: Tensor, reach: int) -> list[Tensor]:
    """For each distance j = 1 .. reach: [B, T, 1] bool, whether no reset lies behind the input of j steps ago."""
    life = segments(reset)
    extended = torch.cat([life.new_zeros(len(life), reach), life], 1)
    steps = life.shape[1]
    return [(extended[:, reach - j : reach - j + steps] == life).unsqueeze(2) for j in range(1, reach + 1)]
