"""The state that a life starts with and that a reset leaves behind: zero, or learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lifelong.memory.option_checks import check_word
from lifelong.memory.resets import clear

RESET_STATES = ["zero", "learned"]


class ResetState(nn.Module):
    """One reset state for every tensor of a layer's state, by the tensor's name.

    ``"zero"``     a life starts with zeros; the module holds no parameter.
    ``"learned"``  a life starts with parameters. They begin as zeros, so that both kinds begin as the same agent.

    Where the gradient comes from: the states that a rollout stores at the start of a segment are constants, and the
    first step of every life has ``reset`` set; so the parameters are reached through the resets *inside* the
    segments.

    Integer tensors of a state (counters) start at 0 whatever the kind.

    Args:
        kind: ``"zero"`` or ``"learned"``.
        shapes: of the floating-point tensors of one life's state.
        counters: names of the state's int64 tensors, one number a life.

    Raises:
        ValueError: an unknown kind.
    """

    def __init__(self, kind: str, shapes: Mapping[str, Sequence[int]], counters: Sequence[str] = ()) -> None:
        super().__init__()
        check_word("reset_state", kind, RESET_STATES)
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.counters = tuple(counters)
        learned = shapes if kind == "learned" else {}
        self.learned = nn.ParameterDict({name: torch.zeros(tuple(shape)) for name, shape in learned.items()})

    def initial(
        self, batch_size: int, like: Tensor, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """The state of ``batch_size`` new lives, [B, ...] each, with gradient into what is learned.

        Device and dtype are those of ``like``, unless given.
        """
        device, dtype = device or like.device, dtype or like.dtype
        state = {}
        for name, shape in self.shapes.items():
            learned = self.get(name)
            if learned is None:
                state[name] = torch.zeros(batch_size, *shape, device=device, dtype=dtype)
            else:
                state[name] = learned.to(device=device, dtype=dtype).expand(batch_size, *shape).clone()
        for name in self.counters:
            state[name] = torch.zeros(batch_size, device=device, dtype=torch.int64)
        return state

    def get(self, name: str) -> Tensor | None:
        """The learned reset state of one tensor, without the batch axis (what kernels take); None for zero."""
        return self.learned.get(name)

    def restore(self, name: str, state: Tensor, reset: Tensor | None) -> Tensor:
        """``state`` [B, ...] with the rows of ``reset`` [B] back at the start of a life; nothing is left of them."""
        learned = self.get(name)
        if reset is None or learned is None:
            return clear(state, reset)
        return torch.where(reset.view(-1, *[1] * learned.dim()), learned, state)
