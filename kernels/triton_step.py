"""One step of the fast-weight operation, written over the state in place, Triton.

The step reads and writes every state once, and that is all that takes time: one program holds the whole state of one
head, so that the decay, the error, the write and the read happen in between.
"""

# Triton gives the parameters of kernels their types, so they are not annotated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lifelong.kernels.triton_common import Inputs, Tiling, after_reset, erase_switch, load_row, tile


def tiling(inputs: Inputs) -> Tiling:
    """A state to a program, up to 128 x 128; at most 64 registers of it to a thread."""
    return tile(inputs, smallest=1, largest_value_block=128, per_warp=1024, most_warps=8)


def step(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Launch the step: output `[B, H, Dv]` and surprise `[B, H]`; `inputs.initial` becomes the state after it."""
    tiles = tiling(inputs)
    output = inputs.value.new_empty(inputs.value.shape)
    surprise = inputs.empty(*inputs.rows)
    with inputs.on_device():
        step_kernel[(inputs.heads_in_all,)](
            inputs.query, inputs.key, inputs.value, inputs.write_rate, inputs.log_decay, inputs.erase_key,
            inputs.start, inputs.start_stride, inputs.reset, inputs.erase_heads, inputs.initial, output, surprise,
            ERROR_BEFORE_DECAY=inputs.error_before_decay, **inputs.constants(tiles),
        )  # fmt: skip
    return output, surprise


@triton.jit(do_not_specialize=["start_stride"])
def step_kernel(
    query,
    key,
    value,
    write_rate,
    log_decay,
    erase_key,
    start,
    start_stride,
    reset,
    erase_heads,
    state,
    output,
    surprise,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    ERASE: tl.constexpr,
    ERROR_BEFORE_DECAY: tl.constexpr,
):
    """S^- = exp(g) S;  e = v - S^- k_e;  S = S^- + b e k^T;  o = S q."""
    tl.static_assert(VALUE_BLOCKS == 1)
    row = tl.program_id(0).to(tl.int64)
    life = row // HEADS
    head = row % HEADS
    o_key = tl.arange(0, BLOCK_KEY)
    o_value = tl.arange(0, BLOCK_VALUE)
    m_key = o_key < KEY_WIDTH
    m_value = o_value < VALUE_WIDTH
    m_state = m_value[:, None] & m_key[None, :]
    o_tile = o_value[:, None] * KEY_WIDTH + o_key[None, :]
    o_start = life * start_stride + head * VALUE_WIDTH * KEY_WIDTH
    o_state = row * VALUE_WIDTH * KEY_WIDTH + o_tile

    b_state = tl.load(state + o_state, mask=m_state, other=0.0)
    b_key = load_row(key, row, o_key, m_key, KEY_WIDTH)
    b_query = load_row(query, row, o_key, m_key, KEY_WIDTH)
    b_value = load_row(value, row, o_value, m_value, VALUE_WIDTH)
    b_erase_key = b_key
    if erase_key is not None:
        b_erase_key = load_row(erase_key, row, o_key, m_key, KEY_WIDTH)

    b_state = after_reset(b_state, reset, life, start, o_start, o_tile, m_state)
    if ERROR_BEFORE_DECAY:
        b_known = tl.sum(b_state * b_erase_key[None, :], 1)
    if log_decay is not None:
        b_state *= tl.exp(tl.load(log_decay + row))
    if not ERROR_BEFORE_DECAY:
        b_known = tl.sum(b_state * b_erase_key[None, :], 1)
    b_written = tl.load(write_rate + row) * (b_value - erase_switch(erase_heads, head, ERASE) * b_known)
    b_state += b_written[:, None] * b_key[None, :]
    b_output = tl.sum(b_state * b_query[None, :], 1)

    b_error = b_value - b_known
    tl.store(state + o_state, b_state, mask=m_state)
    tl.store(output + row * VALUE_WIDTH + o_value, b_output.to(output.dtype.element_ty), mask=m_value)
    tl.store(surprise + row, tl.sqrt(tl.sum(b_error * b_error, 0)))
