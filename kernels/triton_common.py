"""What the Triton kernels share: their arguments, and how programs cover the states.

Names in the kernels: `b_x` is a block on the chip, `o_x` its offsets along an axis, `m_x` its mask. A program's place
is made of 64-bit integers from the start, because lives x steps x heads x width passes 2^31 in ordinary runs; every
grid lies on axis 0, because the others end at 65,535. Block sizes depend on the widths alone, so that neither another
number of lives nor another length compiles anything anew.
"""

# Triton gives the parameters of kernels their types, so they are not annotated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Values of the constant ERASE of a kernel.
ERASE_OFF, ERASE_ON, ERASE_PER_HEAD = 0, 1, 2


class Tiling(NamedTuple):
    """How one state `[Dv, Dk]` is shared out: a program holds `block_value` of its rows and all of its columns."""

    block_key: int
    block_value: int
    value_blocks: int
    num_warps: int


def tile(inputs: Inputs, *, smallest: int, largest_value_block: int, per_warp: int, most_warps: int) -> Tiling:
    """Blocks are powers of two, `smallest` at least; a warp gets `per_warp` elements of the state, if not too many."""
    block_key = max(smallest, triton.next_power_of_2(inputs.key_width))
    block_value = min(largest_value_block, max(smallest, triton.next_power_of_2(inputs.value_width)))
    num_warps = max(1, min(most_warps, block_key * block_value // per_warp))
    return Tiling(block_key, block_value, triton.cdiv(inputs.value_width, block_value), num_warps)


class Inputs(NamedTuple):
    """The arguments of a call as kernels take them: contiguous, flags as bytes.

    Sequences `[B, T, H, ...]`; for a step the axis T is absent. `start`, the state that a reset leaves behind, is
    `[1, H, Dv, Dk]` or has its own for every life.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    write_rate: Tensor
    initial: Tensor
    log_decay: Tensor | None
    erase_key: Tensor | None
    start: Tensor | None
    reset: Tensor | None
    erase_heads: Tensor | None
    erase: bool
    error_before_decay: bool

    @classmethod
    def prepare(cls, *arguments: Any) -> Inputs:
        """From the arguments of the operators."""
        dense: list[Any] = [x.contiguous() if isinstance(x, Tensor) else x for x in arguments]
        given = cls(*dense)
        return given._replace(reset=_as_bytes(given.reset), erase_heads=_as_bytes(given.erase_heads))

    @property
    def rows(self) -> tuple[int, ...]:
        """`(B, T, H)`, or `(B, H)` for a step."""
        return tuple(self.write_rate.shape)

    @property
    def steps(self) -> int:
        return self.query.shape[1]

    @property
    def heads_in_all(self) -> int:
        """Lives times heads."""
        return self.initial.shape[0] * self.initial.shape[1]

    @property
    def key_width(self) -> int:
        return self.query.shape[-1]

    @property
    def value_width(self) -> int:
        return self.value.shape[-1]

    @property
    def start_stride(self) -> int:
        """Elements from one life's `start` to the next one's."""
        return 0 if self.start is None or self.start.shape[0] == 1 else self.start.stride(0)

    def empty(self, *shape: int) -> Tensor:
        """Uninitialised float32, where the call is."""
        return self.write_rate.new_empty(shape, dtype=torch.float32)

    def on_device(self) -> AbstractContextManager[Any]:
        """Kernels are launched on torch's current device, which need not be the one that the tensors are on."""
        return torch.cuda.device_of(self.query)

    def constants(self, tiles: Tiling) -> dict[str, int]:
        """The constants that every kernel has."""
        return {
            "HEADS": self.initial.shape[1],
            "KEY_WIDTH": self.key_width,
            "VALUE_WIDTH": self.value_width,
            "BLOCK_KEY": tiles.block_key,
            "BLOCK_VALUE": tiles.block_value,
            "VALUE_BLOCKS": tiles.value_blocks,
            "ERASE": ERASE_PER_HEAD if self.erase_heads is not None else ERASE_ON if self.erase else ERASE_OFF,
            "num_warps": tiles.num_warps,
        }


class Result(NamedTuple):
    """What a forward pass makes, float32. `errors` `[B, T, H, Dv]` is None if no backward pass is to follow."""

    output: Tensor
    final: Tensor
    surprise: Tensor
    errors: Tensor | None


class Gradients(NamedTuple):
    """What a backward pass makes, float32; None where the argument is None. `start` has one for every life."""

    query: Tensor
    key: Tensor
    value: Tensor
    write_rate: Tensor
    initial: Tensor
    log_decay: Tensor | None
    erase_key: Tensor | None
    start: Tensor | None


def sum_parts(parts: Tensor, dim: int) -> Tensor:
    """Add up what the programs of one head each computed from their rows of the state."""
    return parts.squeeze(dim) if parts.shape[dim] == 1 else parts.sum(dim)


def _as_bytes(flags: Tensor | None) -> Tensor | None:
    return None if flags is None else flags.view(torch.uint8)


@triton.jit
def erase_switch(erase_heads, head, ERASE: tl.constexpr):
    """1.0 if the head erases before it writes, else 0.0."""
    return tl.load(erase_heads + head).to(tl.float32) if ERASE == 2 else ERASE * 1.0


@triton.jit
def program_place(HEADS: tl.constexpr, VALUE_BLOCKS: tl.constexpr):
    """Which rows of which state are this program's: value_block, life_head, life, head, in 64 bits."""
    program = tl.program_id(0).to(tl.int64)
    life_head = program // VALUE_BLOCKS
    return program % VALUE_BLOCKS, life_head, life_head // HEADS, life_head % HEADS


@triton.jit
def load_row(tensor, row, o_width, m_width, WIDTH: tl.constexpr):
    """A block of the row `row` of `[rows, WIDTH]` in float32, zero outside."""
    return tl.load(tensor + row * WIDTH + o_width, mask=m_width, other=0.0).to(tl.float32)


@triton.jit
def load_written(errors, value, offsets, mask, switch, ERASE: tl.constexpr):
    """The errors that were written: the prediction errors where the head erases, else the values."""
    b_written = tl.load(errors + offsets, mask=mask, other=0.0)
    if ERASE != 1:
        b_value = tl.load(value + offsets, mask=mask, other=0.0).to(tl.float32)
        b_written = b_value - switch * (b_value - b_written)
    return b_written


@triton.jit
def after_reset(b_state, reset, token, start, o_start, o_tile, m_state):
    """The state, or what a reset before the step `token` leaves: the block `o_tile` of `start + o_start`, or zero."""
    if reset is not None:
        if start is not None:
            if tl.load(reset + token) != 0:
                b_state = tl.load(start + o_start + o_tile, mask=m_state, other=0.0)
        else:
            b_state = tl.where(tl.load(reset + token) != 0, 0.0, b_state)
    return b_state
