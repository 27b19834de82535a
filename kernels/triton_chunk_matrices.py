"""What the keys and gates of every chunk of 16 steps make of it, worked out for all chunks at once, Triton.

With kept(i, j) what decays and resets leave of write j at step i, L_ij = [i > j] kept(i, j) b_j (k_e_i . k_j). I + L is
inverted by blocks: a Neumann product loses every digit when keys are alike, as they are when an agent stands still.
Resets compare segment numbers; what crosses one is multiplied by an exact zero, so no gradient crosses it either. Sums
of log-decays are taken from j to i, not as differences of running sums, which after a strong decay have lost the digits
of a weak one.
"""

# Triton gives the parameters of kernels their types, so they are not annotated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lifelong.kernels.triton_common import ERASE_OFF, ERASE_ON, Inputs, erase_switch

# Compiled for sm_80 and sm_90, chunks of 16 spill nothing up to a width of 64; chunks of 32 and 64 spill kilobytes.
CHUNK = 16
_LEVELS = CHUNK.bit_length() - 1


class Matrices(NamedTuple):
    """What the keys and gates of a chunk make of it; N = B * H * chunks. Write rates b_j are multiplied in.

    inverse: `[N, C, C]` inverse of I + L; None where no head erases
    reads:   `[N, C, C]` kept(i, j) b_j (q_i . k_j)
    seen:    `[N, C, C]` [i > j] kept(i, j) b_j (k_e_i . k_j); None where every head erases: W holds the errors then
    entry:   `[N, C]` kept_entry
    leaving: `[N, C]` kept_exit b
    through: `[N]` kept_through
    """

    inverse: Tensor | None
    reads: Tensor
    seen: Tensor | None
    entry: Tensor
    leaving: Tensor
    through: Tensor


def chunk_matrices(inputs: Inputs, constants: dict[str, Any]) -> Matrices:
    """Launch `matrices_kernel`; `constants` are those of the kernels that will read the matrices."""
    count = inputs.heads_in_all * triton.cdiv(inputs.steps, CHUNK)
    matrices = Matrices(
        inverse=None if constants["ERASE"] == ERASE_OFF else inputs.empty(count, CHUNK, CHUNK),
        reads=inputs.empty(count, CHUNK, CHUNK),
        seen=None if constants["ERASE"] == ERASE_ON else inputs.empty(count, CHUNK, CHUNK),
        entry=inputs.empty(count, CHUNK),
        leaving=inputs.empty(count, CHUNK),
        through=inputs.empty(count),
    )
    names = ("HEADS", "KEY_WIDTH", "BLOCK_KEY", "CHUNK", "ERASE", "PRECISION")
    matrices_kernel[(count,)](
        inputs.query, inputs.key, inputs.write_rate, inputs.log_decay, inputs.erase_key,
        inputs.reset, inputs.erase_heads, *matrices, inputs.steps,
        LEVELS=_LEVELS, num_warps=max(1, constants["BLOCK_KEY"] // 32), **{name: constants[name] for name in names},
    )  # fmt: skip
    return matrices


@triton.jit
def load_keys(tensor, o_row, m_step, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """`[C, BLOCK]`, the rows `o_row` of `[rows, WIDTH]`, zero outside."""
    o_width = tl.arange(0, BLOCK)
    mask = m_step[:, None] & (o_width < WIDTH)[None, :]
    return tl.load(tensor + o_row[:, None] * WIDTH + o_width[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def chunk_gates(log_decay, reset, o_row, o_token, m_step, CHUNK: tl.constexpr):
    """What is kept: of the entry state at step i `[C]`, of write j at step i `[C, C]`, of write j at the chunk's end
    `[C]`, and of the entry state at the end. Steps past the sequence's end keep everything.
    """
    o_step = tl.arange(0, CHUNK)
    later = o_step[:, None] > o_step[None, :]
    b_between = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    b_entry = tl.zeros((CHUNK,), dtype=tl.float32)
    b_exit = tl.zeros((CHUNK,), dtype=tl.float32)
    through = 0.0
    if reset is not None:
        b_reset = tl.load(reset + o_token, mask=m_step, other=0).to(tl.int32)
    if log_decay is not None:
        b_decay = tl.load(log_decay + o_row, mask=m_step, other=0.0)
        if reset is not None:
            b_decay = tl.where(b_reset != 0, 0.0, b_decay)
        b_from_next = tl.where(later, b_decay[:, None], 0.0)
        b_between = tl.cumsum(b_from_next, 0)
        b_entry = tl.cumsum(b_decay, 0)
        b_exit = tl.sum(b_from_next, 0)
        through = tl.sum(b_decay, 0)
    b_kept = tl.where(o_step[:, None] >= o_step[None, :], tl.exp(b_between), 0.0)
    b_kept_entry = tl.exp(b_entry)
    b_kept_exit = tl.exp(b_exit)
    kept_through = tl.exp(through)
    if reset is not None:
        b_segment = tl.cumsum(b_reset, 0)
        last = tl.sum(b_reset, 0)
        b_kept = tl.where(b_segment[:, None] == b_segment[None, :], b_kept, 0.0)
        b_kept_entry = tl.where(b_segment == 0, b_kept_entry, 0.0)
        b_kept_exit = tl.where(b_segment == last, b_kept_exit, 0.0)
        kept_through = tl.where(last == 0, kept_through, 0.0)
    return b_kept_entry, b_kept, b_kept_exit, kept_through


@triton.jit(do_not_specialize=["steps"])
def matrices_kernel(
    query,
    key,
    write_rate,
    log_decay,
    erase_key,
    reset,
    erase_heads,
    inverse,
    reads,
    seen,
    entry,
    leaving,
    through,
    steps,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    ERASE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Every chunk by itself: `Matrices`.

    With X the inverse of the diagonal blocks of one size, and M the part of L that joins two of them, X - X M X is that
    of the blocks of twice the size. L and its inverse are full float32: keys that are alike amplify what is lost there.
    """
    program = tl.program_id(0).to(tl.int64)
    chunks = tl.cdiv(steps, CHUNK)
    chunk = program % chunks
    life_head = program // chunks
    life = life_head // HEADS
    head = life_head % HEADS

    o_step = tl.arange(0, CHUNK)
    o_i = o_step[:, None]
    o_j = o_step[None, :]
    o_square = (program * CHUNK + o_i) * CHUNK + o_j
    m_step = chunk * CHUNK + o_step < steps
    o_token = life * steps + chunk * CHUNK + o_step
    o_row = o_token * HEADS + head
    b_kept_entry, b_kept, b_kept_exit, kept_through = chunk_gates(log_decay, reset, o_row, o_token, m_step, CHUNK)
    b_rate = tl.load(write_rate + o_row, mask=m_step, other=0.0)
    tl.store(entry + program * CHUNK + o_step, b_kept_entry)
    tl.store(leaving + program * CHUNK + o_step, b_kept_exit * b_rate)
    tl.store(through + program, kept_through)

    b_key = load_keys(key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
    b_kept_written = b_kept * b_rate[None, :]
    b_query = load_keys(query, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
    tl.store(reads + o_square, b_kept_written * tl.dot(b_query, tl.trans(b_key), input_precision=PRECISION))

    b_erase_key = b_key
    if erase_key is not None:
        b_erase_key = load_keys(erase_key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
    b_seen = b_kept_written * tl.dot(b_erase_key, tl.trans(b_key), input_precision="ieee")
    b_seen = tl.where(o_i > o_j, b_seen, 0.0)
    if seen is not None:
        tl.store(seen + o_square, b_seen)
    if inverse is not None:
        b_lower = erase_switch(erase_heads, head, ERASE) * b_seen
        b_inverse = tl.where(o_i == o_j, 1.0, 0.0) - tl.where((o_i == o_j + 1) & (o_j % 2 == 0), b_lower, 0.0)
        for level in tl.static_range(1, LEVELS):
            joins = ((o_i >> level) == (o_j >> level) + 1) & ((o_j >> level) % 2 == 0)
            b_joint = tl.dot(b_inverse, tl.where(joins, b_lower, 0.0), input_precision="ieee")
            b_inverse -= tl.dot(b_joint, b_inverse, input_precision="ieee")
        tl.store(inverse + o_square, b_inverse)
