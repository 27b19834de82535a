"""The fast-weight operation in chunks of 16 steps, Triton: matrix products in the place of most of the loop over time.

For the writes j and reads i of a chunk, with S the state at its entry and kept(i, j) what decays and resets leave of
write j at step i,

    (I + L) W = V - [erase] kept_entry (K_e S^T),       L_ij = [erase] [i > j] kept(i, j) b_j (k_e_i . k_j)
    O = kept_entry (Q S^T) + (kept (Q K^T)) (b W)
    S <- kept_through S + (kept_exit b W)^T K

The triangular system is solved for the written errors W, by an inverse made of ever larger blocks. (A Neumann product
loses every digit when keys are alike, as they are when an agent stands still.) Resets compare segment numbers; what
crosses one is multiplied by an exact zero, so no gradient crosses it either. Sums of log-decays are taken from j to i,
not as differences of running sums, which after a strong decay have lost the digits of a weak one.

What walks the sequence, one chunk after the other, is kept short: all that depends on keys and gates alone is worked
out beforehand, for all chunks at once. The backward pass makes the states at the entries of chunks anew from the
errors, which needs no solve, and holds two states a chunk while it runs.
"""

# Triton gives the parameters of kernels their types, so they are not annotated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lifelong.kernels.triton_common import (
    ERASE_OFF,
    ERASE_ON,
    Gradients,
    Inputs,
    Result,
    Tiling,
    erase_switch,
    tile,
)

# Compiled for sm_80 and sm_90, chunks of 16 spill nothing up to a width of 64; chunks of 32 and 64 spill kilobytes.
CHUNK = 16
_LEVELS = CHUNK.bit_length() - 1


def tiling(inputs: Inputs) -> Tiling:
    """For what walks the chunks: 16 rows of the state, which is the least that a matrix product takes.

    Of states 64 wide, 32 rows spill on sm_80; 16 rows in two warps, not four, spill on sm_80 and on sm_90.
    """
    return tile(inputs, smallest=16, largest_value_block=16, per_warp=256, most_warps=4)


def chunk_tiling(inputs: Inputs) -> Tiling:
    """For what takes all chunks at once: every program goes through all rows of the state, 32 at a time."""
    return tile(inputs, smallest=16, largest_value_block=32, per_warp=256, most_warps=4)


def dot_precision() -> str:
    """How float32 matrices are multiplied: as three products of shorter numbers (2e-7) where the hardware has them."""
    return "ieee" if torch.version.hip else "tf32x3"


def forward(inputs: Inputs, *, keep_errors: bool, precision: str | None = None) -> Result:
    """Launch the forward pass."""
    tiles = tiling(inputs)
    constants = inputs.constants(tiles) | {"CHUNK": CHUNK, "PRECISION": precision or dot_precision()}
    output = inputs.empty(*inputs.value.shape)
    final = inputs.empty(*inputs.initial.shape)
    errors = inputs.empty(*inputs.value.shape) if keep_errors else None
    squared_error = inputs.empty(*inputs.rows, tiles.value_blocks)
    with inputs.on_device():
        matrices = _matrices(inputs, constants)
        forward_kernel[(inputs.heads_in_all * tiles.value_blocks,)](
            inputs.query, inputs.key, inputs.value, inputs.erase_key, inputs.erase_heads, inputs.initial, *matrices,
            output, final, squared_error, errors, inputs.steps, **constants,
        )  # fmt: skip
    return Result(output, final, squared_error.sum(-1).sqrt_(), errors)


def backward(
    inputs: Inputs,
    result: Result,
    d_output: Tensor,
    d_final: Tensor | None,
    error_slope: Tensor | None,
    *,
    precision: str | None = None,
) -> Gradients:
    """Launch the backward pass. `error_slope` `[B, T, H]` times e is what |e| adds to the gradient of e."""
    tiles = tiling(inputs)
    common = {"CHUNK": CHUNK, "PRECISION": precision or dot_precision()}
    constants, chunk_constants = inputs.constants(tiles) | common, inputs.constants(chunk_tiling(inputs)) | common
    walkers = (inputs.heads_in_all * tiles.value_blocks,)
    chunks = triton.cdiv(inputs.steps, CHUNK)

    states = inputs.empty(inputs.heads_in_all, chunks, inputs.key_width, inputs.value_width)
    d_states = torch.empty_like(states)
    d_known = inputs.empty(*inputs.value.shape)
    d_value = d_known if constants["ERASE"] == ERASE_ON else torch.empty_like(d_known)
    d_initial = inputs.empty(*inputs.initial.shape)
    d_query = inputs.empty(*inputs.key.shape)
    d_key = inputs.empty(*inputs.key.shape)
    d_erase_key = None if inputs.erase_key is None else inputs.empty(*inputs.key.shape)
    d_write_rate = inputs.empty(*inputs.rows)
    d_log_decay = None if inputs.log_decay is None else inputs.empty(*inputs.rows)
    with inputs.on_device():
        matrices = _matrices(inputs, constants)
        entry_states_kernel[walkers](
            inputs.key, inputs.value, inputs.erase_heads, inputs.initial, result.errors,
            matrices.leaving, matrices.through, states, inputs.steps, **constants,
        )  # fmt: skip
        backward_states_kernel[walkers](
            inputs.query, inputs.key, inputs.erase_key, inputs.erase_heads, *matrices,
            result.errors, error_slope, d_output, d_final,
            d_states, d_known, d_value, d_initial, inputs.steps, **constants,
        )  # fmt: skip
        backward_chunks_kernel[(inputs.heads_in_all * chunks,)](
            inputs.query, inputs.key, inputs.value, inputs.write_rate, inputs.log_decay, inputs.erase_key,
            inputs.reset, inputs.erase_heads, result.errors, states, d_states, d_output, d_known,
            d_query, d_key, d_write_rate, d_log_decay, d_erase_key, inputs.steps, **chunk_constants,
        )  # fmt: skip
    return Gradients(d_query, d_key, d_value, d_write_rate, d_initial, d_log_decay, d_erase_key, start=None)


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


def _matrices(inputs: Inputs, constants: dict[str, Any]) -> Matrices:
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


@triton.jit(do_not_specialize=["steps"])
def forward_kernel(
    query,
    key,
    value,
    erase_key,
    erase_heads,
    initial,
    inverse,
    reads,
    seen,
    entry,
    leaving,
    through,
    output,
    final,
    squared_error,
    errors,
    steps,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    ERASE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Walk the chunks with the state S^T, a block of its columns to a program."""
    program = tl.program_id(0).to(tl.int64)
    value_block = program % VALUE_BLOCKS
    life_head = program // VALUE_BLOCKS
    life = life_head // HEADS
    head = life_head % HEADS

    o_step = tl.arange(0, CHUNK)
    o_key = tl.arange(0, BLOCK_KEY)
    o_value = value_block * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    m_value = o_value < VALUE_WIDTH
    m_state = (o_key < KEY_WIDTH)[:, None] & m_value[None, :]
    o_state = (life_head * VALUE_WIDTH + o_value[None, :]) * KEY_WIDTH + o_key[:, None]

    switch = erase_switch(erase_heads, head, ERASE)
    chunks = tl.cdiv(steps, CHUNK)
    b_state = tl.load(initial + o_state, mask=m_state, other=0.0)
    for chunk in range(chunks):
        place = life_head * chunks + chunk
        o_square = (place * CHUNK + o_step[:, None]) * CHUNK + o_step[None, :]
        m_step = chunk * CHUNK + o_step < steps
        o_row = (life * steps + chunk * CHUNK + o_step) * HEADS + head
        o_row_value = o_row[:, None] * VALUE_WIDTH + o_value[None, :]
        m_row_value = m_step[:, None] & m_value[None, :]
        b_kept_entry = tl.load(entry + place * CHUNK + o_step)

        if erase_key is not None:
            b_key = load_keys(erase_key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        else:
            b_key = load_keys(key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        b_known = b_kept_entry[:, None] * tl.dot(b_key, b_state, input_precision=PRECISION)
        b_value = tl.load(value + o_row_value, mask=m_row_value, other=0.0).to(tl.float32)
        if ERASE == 0:
            b_written = b_value
        else:
            b_written = b_value - switch * b_known
            b_written = tl.dot(tl.load(inverse + o_square), b_written, input_precision=PRECISION)
        b_error = b_written
        if ERASE != 1:
            b_error = b_value - b_known - tl.dot(tl.load(seen + o_square), b_written, input_precision=PRECISION)
        tl.store(squared_error + o_row * VALUE_BLOCKS + value_block, tl.sum(b_error * b_error, 1), mask=m_step)
        if errors is not None:
            tl.store(errors + o_row_value, b_error, mask=m_row_value)

        b_query = load_keys(query, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        b_output = b_kept_entry[:, None] * tl.dot(b_query, b_state, input_precision=PRECISION)
        b_output += tl.dot(tl.load(reads + o_square), b_written, input_precision=PRECISION)
        tl.store(output + o_row_value, b_output, mask=m_row_value)

        if erase_key is not None:
            b_key = load_keys(key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        b_written = tl.load(leaving + place * CHUNK + o_step)[:, None] * b_written
        b_state = tl.load(through + place) * b_state
        b_state += tl.dot(tl.trans(b_key), b_written, input_precision=PRECISION)
    tl.store(final + o_state, b_state, mask=m_state)


@triton.jit(do_not_specialize=["steps"])
def entry_states_kernel(
    key,
    value,
    erase_heads,
    initial,
    errors,
    leaving,
    through,
    states,
    steps,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    ERASE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The states S^T at the entries of the chunks, `[B * H, chunks, Dk, Dv]`, from the errors."""
    program = tl.program_id(0).to(tl.int64)
    value_block = program % VALUE_BLOCKS
    life_head = program // VALUE_BLOCKS
    life = life_head // HEADS
    head = life_head % HEADS

    o_step = tl.arange(0, CHUNK)
    o_key = tl.arange(0, BLOCK_KEY)
    o_value = value_block * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    m_value = o_value < VALUE_WIDTH
    m_state = (o_key < KEY_WIDTH)[:, None] & m_value[None, :]
    o_state = (life_head * VALUE_WIDTH + o_value[None, :]) * KEY_WIDTH + o_key[:, None]
    o_stored = o_key[:, None] * VALUE_WIDTH + o_value[None, :]

    switch = erase_switch(erase_heads, head, ERASE)
    chunks = tl.cdiv(steps, CHUNK)
    b_state = tl.load(initial + o_state, mask=m_state, other=0.0)
    for chunk in range(chunks):
        place = life_head * chunks + chunk
        tl.store(states + place * KEY_WIDTH * VALUE_WIDTH + o_stored, b_state, mask=m_state)
        m_step = chunk * CHUNK + o_step < steps
        o_row = (life * steps + chunk * CHUNK + o_step) * HEADS + head
        o_row_value = o_row[:, None] * VALUE_WIDTH + o_value[None, :]
        m_row_value = m_step[:, None] & m_value[None, :]
        b_key = load_keys(key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        b_written = tl.load(errors + o_row_value, mask=m_row_value, other=0.0)
        if ERASE != 1:
            b_value = tl.load(value + o_row_value, mask=m_row_value, other=0.0).to(tl.float32)
            b_written = b_value - switch * (b_value - b_written)
        b_written = tl.load(leaving + place * CHUNK + o_step)[:, None] * b_written
        b_state = tl.load(through + place) * b_state
        b_state += tl.dot(tl.trans(b_key), b_written, input_precision=PRECISION)


@triton.jit(do_not_specialize=["steps"])
def backward_states_kernel(
    query,
    key,
    erase_key,
    erase_heads,
    inverse,
    reads,
    seen,
    entry,
    leaving,
    through,
    errors,
    error_slope,
    d_output,
    d_final,
    d_states,
    d_known,
    d_value,
    d_initial,
    steps,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    ERASE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Walk the chunks back with dS^T. With y the gradient of W through the reads and the exit of its own chunk, and x
    the gradient of what is subtracted, -K_e S^T:

        y   = reads^T dO + leaving (K dS^T)
        x   = (I + L)^-T ([erase] y + slope e)
        dV  = x + [not erase] (y - seen^T x)
        dS <- through dS + (entry dO)^T Q - (entry x)^T K_e
    """
    program = tl.program_id(0).to(tl.int64)
    value_block = program % VALUE_BLOCKS
    life_head = program // VALUE_BLOCKS
    life = life_head // HEADS
    head = life_head % HEADS

    o_step = tl.arange(0, CHUNK)
    o_key = tl.arange(0, BLOCK_KEY)
    o_value = value_block * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    m_value = o_value < VALUE_WIDTH
    m_state = (o_key < KEY_WIDTH)[:, None] & m_value[None, :]
    o_state = (life_head * VALUE_WIDTH + o_value[None, :]) * KEY_WIDTH + o_key[:, None]
    o_stored = o_key[:, None] * VALUE_WIDTH + o_value[None, :]

    switch = erase_switch(erase_heads, head, ERASE)
    chunks = tl.cdiv(steps, CHUNK)
    b_d_state = tl.zeros((BLOCK_KEY, BLOCK_VALUE), dtype=tl.float32)
    if d_final is not None:
        b_d_state = tl.load(d_final + o_state, mask=m_state, other=0.0)
    for back in range(chunks):
        chunk = chunks - 1 - back
        place = life_head * chunks + chunk
        tl.store(d_states + place * KEY_WIDTH * VALUE_WIDTH + o_stored, b_d_state, mask=m_state)
        o_square = (place * CHUNK + o_step[:, None]) * CHUNK + o_step[None, :]
        m_step = chunk * CHUNK + o_step < steps
        o_row = (life * steps + chunk * CHUNK + o_step) * HEADS + head
        o_row_value = o_row[:, None] * VALUE_WIDTH + o_value[None, :]
        m_row_value = m_step[:, None] & m_value[None, :]

        b_key = load_keys(key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        b_d_output = tl.load(d_output + o_row_value, mask=m_row_value, other=0.0)
        b_d_written = tl.dot(b_key, b_d_state, input_precision=PRECISION)
        b_d_written *= tl.load(leaving + place * CHUNK + o_step)[:, None]
        b_d_written += tl.dot(tl.trans(tl.load(reads + o_square)), b_d_output, input_precision=PRECISION)
        b_d_known = switch * b_d_written
        if error_slope is not None:
            b_slope = tl.load(error_slope + o_row, mask=m_step, other=0.0)
            b_d_known += b_slope[:, None] * tl.load(errors + o_row_value, mask=m_row_value, other=0.0)
        if ERASE != 0:
            b_d_known = tl.dot(tl.trans(tl.load(inverse + o_square)), b_d_known, input_precision=PRECISION)
        tl.store(d_known + o_row_value, b_d_known, mask=m_row_value)
        if ERASE != 1:
            b_d_written -= tl.dot(tl.trans(tl.load(seen + o_square)), b_d_known, input_precision=PRECISION)
            tl.store(d_value + o_row_value, b_d_known + (1.0 - switch) * b_d_written, mask=m_row_value)

        b_kept_entry = tl.load(entry + place * CHUNK + o_step)
        b_d_state = tl.load(through + place) * b_d_state
        b_query = b_kept_entry[:, None] * load_keys(query, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        b_d_state += tl.dot(tl.trans(b_query), b_d_output, input_precision=PRECISION)
        if erase_key is not None:
            b_key = load_keys(erase_key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
        b_key = b_kept_entry[:, None] * b_key
        b_d_state -= tl.dot(tl.trans(b_key), b_d_known, input_precision=PRECISION)
    tl.store(d_initial + o_state, b_d_state, mask=m_state)


@triton.jit(do_not_specialize=["steps"])
def backward_chunks_kernel(
    query,
    key,
    value,
    write_rate,
    log_decay,
    erase_key,
    reset,
    erase_heads,
    errors,
    states,
    d_states,
    d_output,
    d_known,
    d_query,
    d_key,
    d_write_rate,
    d_log_decay,
    d_erase_key,
    steps,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    ERASE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Every chunk by itself: what is left once the states, their gradients and x are known.

    With A = kept b_j (dO W^T) and A' = [i > j] kept b_j (x W^T), both `[C, C]`:

        dQ   = kept_entry (dO S) + A K
        dK_e = -kept_entry (x S) - A' K
        dK   = kept_exit b (W dS) + A^T Q - A'^T K_e
        db_j = the same sums over i and over the exit, of A, A' and b W without their b_j
        dg_s = every product of a gradient with what was kept across s, summed
    """
    program = tl.program_id(0).to(tl.int64)
    chunks = tl.cdiv(steps, CHUNK)
    chunk = program % chunks
    life_head = program // chunks
    life = life_head // HEADS
    head = life_head % HEADS

    o_step = tl.arange(0, CHUNK)
    o_key = tl.arange(0, BLOCK_KEY)
    m_key = o_key < KEY_WIDTH
    m_step = chunk * CHUNK + o_step < steps
    o_token = life * steps + chunk * CHUNK + o_step
    o_row = o_token * HEADS + head
    later = o_step[:, None] > o_step[None, :]
    switch = erase_switch(erase_heads, head, ERASE)

    b_read_write = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)  # dO W^T
    b_known_write = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)  # x W^T
    b_read_entry = tl.zeros((CHUNK, BLOCK_KEY), dtype=tl.float32)  # dO S
    b_known_entry = tl.zeros((CHUNK, BLOCK_KEY), dtype=tl.float32)  # x S
    b_write_exit = tl.zeros((CHUNK, BLOCK_KEY), dtype=tl.float32)  # W dS
    entry_exit = 0.0  # <S, dS>
    for value_block in range(VALUE_BLOCKS):
        o_value = value_block * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
        m_value = o_value < VALUE_WIDTH
        o_row_value = o_row[:, None] * VALUE_WIDTH + o_value[None, :]
        m_row_value = m_step[:, None] & m_value[None, :]
        o_stored = (program * KEY_WIDTH + o_key[:, None]) * VALUE_WIDTH + o_value[None, :]
        m_state = m_key[:, None] & m_value[None, :]

        b_d_output = tl.load(d_output + o_row_value, mask=m_row_value, other=0.0)
        b_d_known = tl.load(d_known + o_row_value, mask=m_row_value, other=0.0)
        b_written = tl.load(errors + o_row_value, mask=m_row_value, other=0.0)
        if ERASE != 1:
            b_value = tl.load(value + o_row_value, mask=m_row_value, other=0.0).to(tl.float32)
            b_written = b_value - switch * (b_value - b_written)
        b_state = tl.load(states + o_stored, mask=m_state, other=0.0)
        b_d_state = tl.load(d_states + o_stored, mask=m_state, other=0.0)

        b_written_t = tl.trans(b_written)
        b_state_t = tl.trans(b_state)
        b_read_write += tl.dot(b_d_output, b_written_t, input_precision=PRECISION)
        b_known_write += tl.dot(b_d_known, b_written_t, input_precision=PRECISION)
        b_read_entry += tl.dot(b_d_output, b_state_t, input_precision=PRECISION)
        b_known_entry += tl.dot(b_d_known, b_state_t, input_precision=PRECISION)
        b_write_exit += tl.dot(b_written, tl.trans(b_d_state), input_precision=PRECISION)
        entry_exit += tl.sum(tl.sum(b_state * b_d_state, 1), 0)

    b_kept_entry, b_kept, b_kept_exit, kept_through = chunk_gates(log_decay, reset, o_row, o_token, m_step, CHUNK)
    b_rate = tl.load(write_rate + o_row, mask=m_step, other=0.0)
    b_query = load_keys(query, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
    b_key = load_keys(key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)
    b_erase_key = b_key
    if erase_key is not None:
        b_erase_key = load_keys(erase_key, o_row, m_step, KEY_WIDTH, BLOCK_KEY)

    b_read_write = b_kept * b_read_write
    b_known_write = tl.where(later, b_kept * b_known_write, 0.0)
    b_read_entry = b_kept_entry[:, None] * b_read_entry
    b_known_entry = b_kept_entry[:, None] * b_known_entry
    b_write_exit = b_kept_exit[:, None] * b_write_exit

    b_key_t = tl.trans(b_key)
    b_across = b_read_write * tl.dot(b_query, b_key_t, input_precision=PRECISION)
    b_across -= b_known_write * tl.dot(b_erase_key, b_key_t, input_precision=PRECISION)
    b_to_exit = tl.sum(b_write_exit * b_key, 1)
    tl.store(d_write_rate + o_row, tl.sum(b_across, 0) + b_to_exit, mask=m_step)
    if log_decay is not None:
        # [s, j]: of all that was written at j and kept across s; then the same from the entry, to the exit, and through
        b_kept_across = tl.cumsum(b_across * b_rate[None, :], 0, reverse=True)
        b_d_decay = tl.sum(tl.where(later, b_kept_across, 0.0), 1)
        b_from_entry = tl.sum(b_read_entry * b_query, 1) - tl.sum(b_known_entry * b_erase_key, 1)
        b_d_decay += tl.cumsum(b_from_entry, 0, reverse=True)
        b_d_decay += tl.sum(tl.where(later, (b_rate * b_to_exit)[None, :], 0.0), 1)
        b_d_decay += kept_through * entry_exit
        if reset is not None:
            b_reset = tl.load(reset + o_token, mask=m_step, other=0)
            b_d_decay = tl.where(b_reset != 0, 0.0, b_d_decay)
        tl.store(d_log_decay + o_row, b_d_decay, mask=m_step)

    o_row_key = o_row[:, None] * KEY_WIDTH + o_key[None, :]
    m_row_key = m_step[:, None] & m_key[None, :]
    b_read_write = b_read_write * b_rate[None, :]
    b_known_write = b_known_write * b_rate[None, :]
    b_d_query = b_read_entry + tl.dot(b_read_write, b_key, input_precision=PRECISION)
    tl.store(d_query + o_row_key, b_d_query, mask=m_row_key)
    b_d_erase_key = -b_known_entry - tl.dot(b_known_write, b_key, input_precision=PRECISION)
    b_d_key = b_rate[:, None] * b_write_exit
    b_d_key += tl.dot(tl.trans(b_read_write), b_query, input_precision=PRECISION)
    b_d_key -= tl.dot(tl.trans(b_known_write), b_erase_key, input_precision=PRECISION)
    if d_erase_key is not None:
        tl.store(d_erase_key + o_row_key, b_d_erase_key, mask=m_row_key)
    else:
        b_d_key += b_d_erase_key
    tl.store(d_key + o_row_key, b_d_key, mask=m_row_key)
