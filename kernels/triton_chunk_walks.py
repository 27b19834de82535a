"""The kernels that walk the chunks of a sequence in their order, a state or its gradient in registers, Triton.

Their operands are the `Matrices` of `triton_chunk_matrices`; the equations are in `triton_chunked`.
"""

# Triton gives the parameters of kernels their types, so they are not annotated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl

from lifelong.kernels.triton_chunk_matrices import load_keys
from lifelong.kernels.triton_common import erase_switch, load_written, program_place


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
    value_block, life_head, life, head = program_place(HEADS, VALUE_BLOCKS)

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
    value_block, life_head, life, head = program_place(HEADS, VALUE_BLOCKS)

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
        b_written = load_written(errors, value, o_row_value, m_row_value, switch, ERASE)
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
    value_block, life_head, life, head = program_place(HEADS, VALUE_BLOCKS)

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
