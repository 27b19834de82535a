"""The fast-weight operation as a loop over time in one kernel each way, Triton.

A program keeps `block_value` rows of one head's state in registers and walks the sequence. The backward pass stores no
states either: it walks back with the gradient of the state alone, then forward again with the state alone, rebuilt from
the errors that the forward pass kept. That is enough, because

- the gradients of value, write rate and the second half of the key's need only the gradient of the state,
- those of the query and of the erase key need only the state,
- that of the log-decay is <S^-, dS^->, a number that changes from step to step by known scalar products.

Programs that share a head's rows each write their part of the gradients that sum over rows; torch adds the parts.
"""

# Triton gives the parameters of kernels their types, so they are not annotated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lifelong.kernels.triton_common import (
    ERASE_ON,
    Gradients,
    Inputs,
    Result,
    Tiling,
    after_reset,
    erase_switch,
    load_row,
    load_written,
    program_place,
    sum_parts,
    tile,
)


def tiling(inputs: Inputs) -> Tiling:
    """At most 32 rows a program: up to a width of 128, no kernel of this file then spills on sm_80 and sm_90.

    With a learned reset state the backward pass holds a second block of that size, so it gets twice the threads.
    """
    per_warp, most_warps = (1024, 4) if inputs.start is None else (512, 8)
    return tile(inputs, smallest=1, largest_value_block=32, per_warp=per_warp, most_warps=most_warps)


def forward(inputs: Inputs, *, keep_errors: bool) -> Result:
    """Launch the forward pass."""
    tiles = tiling(inputs)
    output = inputs.empty(*inputs.value.shape)
    final = inputs.empty(*inputs.initial.shape)
    errors = inputs.empty(*inputs.value.shape) if keep_errors else None
    squared_error = inputs.empty(*inputs.rows, tiles.value_blocks)
    with inputs.on_device():
        forward_kernel[(inputs.heads_in_all * tiles.value_blocks,)](
            inputs.query, inputs.key, inputs.value, inputs.write_rate, inputs.log_decay, inputs.erase_key,
            inputs.start, inputs.start_stride, inputs.reset, inputs.erase_heads, inputs.initial,
            output, final, squared_error, errors, inputs.steps,
            ERROR_BEFORE_DECAY=inputs.error_before_decay, **inputs.constants(tiles),
        )  # fmt: skip
    return Result(output, final, squared_error.sum(-1).sqrt_(), errors)


def backward(
    inputs: Inputs, result: Result, d_output: Tensor, d_final: Tensor | None, error_slope: Tensor | None
) -> Gradients:
    """Launch the two backward passes. `error_slope` `[B, T, H]` times e is what |e| adds to the gradient of e."""
    tiles = tiling(inputs)
    constants = inputs.constants(tiles) | {"ERROR_BEFORE_DECAY": inputs.error_before_decay}
    grid = (inputs.heads_in_all * tiles.value_blocks,)
    parts = (*inputs.rows, tiles.value_blocks)

    d_query = inputs.empty(*parts, inputs.key_width)
    d_key = inputs.empty(*parts, inputs.key_width)
    d_erase_key = None if inputs.erase_key is None else inputs.empty(*parts, inputs.key_width)
    d_value = inputs.empty(*inputs.value.shape)
    d_known = None if constants["ERASE"] == ERASE_ON else inputs.empty(*inputs.value.shape)
    d_write_rate = inputs.empty(*parts)
    d_log_decay = None if inputs.log_decay is None else inputs.empty(*parts)
    d_start = None if inputs.start is None else inputs.empty(*inputs.initial.shape)
    d_initial = inputs.empty(*inputs.initial.shape)
    with inputs.on_device():
        backward_kernel[grid](
            inputs.query, inputs.key, inputs.value, inputs.write_rate, inputs.log_decay, inputs.erase_key,
            inputs.reset, inputs.erase_heads, result.output, result.final, result.errors,
            error_slope, d_output, d_final,
            d_key, d_value, d_write_rate, d_log_decay, d_known, d_start, d_initial, inputs.steps, **constants,
        )  # fmt: skip
        backward_reads_kernel[grid](
            inputs.key, inputs.value, inputs.write_rate, inputs.log_decay,
            inputs.start, inputs.start_stride, inputs.reset, inputs.erase_heads, inputs.initial, result.errors,
            d_output, d_value if d_known is None else d_known,
            d_query, d_key if d_erase_key is None else d_erase_key, inputs.steps,
            ADD_TO_ERASE_KEY=d_erase_key is None, **constants,
        )  # fmt: skip
    return Gradients(
        query=sum_parts(d_query, 3),
        key=sum_parts(d_key, 3),
        value=d_value,
        write_rate=sum_parts(d_write_rate, 3),
        initial=d_initial,
        log_decay=None if d_log_decay is None else sum_parts(d_log_decay, 3),
        erase_key=None if d_erase_key is None else sum_parts(d_erase_key, 3),
        start=d_start,
    )


@triton.jit(do_not_specialize=["steps", "start_stride"])
def forward_kernel(
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
    initial,
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
    ERASE: tl.constexpr,
    ERROR_BEFORE_DECAY: tl.constexpr,
):
    """S^- = exp(g) S;  e = v - S^- k_e;  S = S^- + b e k^T;  o = S q."""
    value_block, life_head, life, head = program_place(HEADS, VALUE_BLOCKS)

    o_key = tl.arange(0, BLOCK_KEY)
    o_value = value_block * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    m_key = o_key < KEY_WIDTH
    m_value = o_value < VALUE_WIDTH
    m_state = m_value[:, None] & m_key[None, :]
    o_tile = o_value[:, None] * KEY_WIDTH + o_key[None, :]
    o_start = life * start_stride + head * VALUE_WIDTH * KEY_WIDTH
    o_state = life_head * VALUE_WIDTH * KEY_WIDTH + o_tile

    switch = erase_switch(erase_heads, head, ERASE)
    b_state = tl.load(initial + o_state, mask=m_state, other=0.0)
    token = life * steps
    row = token * HEADS + head
    for _ in range(steps):
        b_key = load_row(key, row, o_key, m_key, KEY_WIDTH)
        b_query = load_row(query, row, o_key, m_key, KEY_WIDTH)
        b_value = load_row(value, row, o_value, m_value, VALUE_WIDTH)
        b_erase_key = b_key
        if erase_key is not None:
            b_erase_key = load_row(erase_key, row, o_key, m_key, KEY_WIDTH)
        rate = tl.load(write_rate + row)

        b_state = after_reset(b_state, reset, token, start, o_start, o_tile, m_state)
        if ERROR_BEFORE_DECAY:
            b_known = tl.sum(b_state * b_erase_key[None, :], 1)
        if log_decay is not None:
            b_state *= tl.exp(tl.load(log_decay + row))
        if not ERROR_BEFORE_DECAY:
            b_known = tl.sum(b_state * b_erase_key[None, :], 1)
        b_written = rate * (b_value - switch * b_known)
        b_state += b_written[:, None] * b_key[None, :]
        b_output = tl.sum(b_state * b_query[None, :], 1)

        b_error = b_value - b_known
        tl.store(output + row * VALUE_WIDTH + o_value, b_output, mask=m_value)
        tl.store(squared_error + row * VALUE_BLOCKS + value_block, tl.sum(b_error * b_error, 0))
        if errors is not None:
            tl.store(errors + row * VALUE_WIDTH + o_value, b_error, mask=m_value)
        token += 1
        row += HEADS
    tl.store(final + o_state, b_state, mask=m_state)


@triton.jit(do_not_specialize=["steps"])
def backward_kernel(
    query,
    key,
    value,
    write_rate,
    log_decay,
    erase_key,
    reset,
    erase_heads,
    output,
    final,
    errors,
    error_slope,
    d_output,
    d_final,
    d_key,
    d_value,
    d_write_rate,
    d_log_decay,
    d_known,
    d_start,
    d_initial,
    steps,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    ERASE: tl.constexpr,
    ERROR_BEFORE_DECAY: tl.constexpr,
):
    """Back in time with dS, the gradient of the state:

        dS += do q^T;  du = dS k;  dw = b du (of the written error w);  x = [erase] dw + slope e
        dk = b dS^T w;  db = du . w;  dv = x + [not erase] dw;  dS <- exp(g) (dS - x k_e^T)

    `d_known` receives x, with its sign turned the gradient of S^- k_e. `decay_sum` is <S, dS>.
    """
    value_block, life_head, life, head = program_place(HEADS, VALUE_BLOCKS)

    o_key = tl.arange(0, BLOCK_KEY)
    o_value = value_block * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    m_key = o_key < KEY_WIDTH
    m_value = o_value < VALUE_WIDTH
    m_state = m_value[:, None] & m_key[None, :]
    o_state = life_head * VALUE_WIDTH * KEY_WIDTH + o_value[:, None] * KEY_WIDTH + o_key[None, :]

    switch = erase_switch(erase_heads, head, ERASE)
    b_d_state = tl.zeros((BLOCK_VALUE, BLOCK_KEY), dtype=tl.float32)
    decay_sum = 0.0
    if d_final is not None:
        b_d_state = tl.load(d_final + o_state, mask=m_state, other=0.0)
        if log_decay is not None:
            b_state = tl.load(final + o_state, mask=m_state, other=0.0)
            decay_sum = tl.sum(tl.sum(b_state * b_d_state, 1), 0)
    if d_start is not None:
        b_d_start = tl.zeros((BLOCK_VALUE, BLOCK_KEY), dtype=tl.float32)

    token = (life + 1) * steps - 1
    row = token * HEADS + head
    for _ in range(steps):
        b_key = load_row(key, row, o_key, m_key, KEY_WIDTH)
        b_value = load_row(value, row, o_value, m_value, VALUE_WIDTH)
        b_error = load_row(errors, row, o_value, m_value, VALUE_WIDTH)
        b_erase_key = b_key
        if erase_key is not None:
            b_erase_key = load_row(erase_key, row, o_key, m_key, KEY_WIDTH)
        rate = tl.load(write_rate + row)
        b_known = b_value - b_error
        b_written = b_value - switch * b_known

        b_query = load_row(query, row, o_key, m_key, KEY_WIDTH)
        b_d_output = load_row(d_output, row, o_value, m_value, VALUE_WIDTH)
        b_d_state += b_d_output[:, None] * b_query[None, :]
        b_d_update = tl.sum(b_d_state * b_key[None, :], 1)
        b_d_key = rate * tl.sum(b_d_state * b_written[:, None], 0)
        d_rate = tl.sum(b_d_update * b_written, 0)
        b_d_written = rate * b_d_update
        b_d_known = switch * b_d_written
        if error_slope is not None:
            b_d_known += tl.load(error_slope + row) * b_error
        b_d_value = b_d_known
        if ERASE != 1:
            b_d_value += (1.0 - switch) * b_d_written

        if not ERROR_BEFORE_DECAY:
            b_d_state -= b_d_known[:, None] * b_erase_key[None, :]
        if log_decay is not None:
            b_output = load_row(output, row, o_value, m_value, VALUE_WIDTH)
            decay_sum += tl.sum(b_d_output * b_output, 0) - rate * d_rate
            if not ERROR_BEFORE_DECAY:
                decay_sum -= tl.sum(b_d_known * b_known, 0)
            if reset is not None and d_start is None:
                decay_sum = tl.where(tl.load(reset + token) != 0, 0.0, decay_sum)
            tl.store(d_log_decay + row * VALUE_BLOCKS + value_block, decay_sum)
            b_d_state *= tl.exp(tl.load(log_decay + row))
            if ERROR_BEFORE_DECAY:
                decay_sum -= tl.sum(b_d_known * b_known, 0)
        if ERROR_BEFORE_DECAY:
            b_d_state -= b_d_known[:, None] * b_erase_key[None, :]
        if reset is not None:
            dropped = tl.load(reset + token) != 0
            if d_start is not None:
                b_d_start += tl.where(dropped, b_d_state, 0.0)
            decay_sum = tl.where(dropped, 0.0, decay_sum)
            b_d_state = tl.where(dropped, 0.0, b_d_state)

        tl.store(d_key + (row * VALUE_BLOCKS + value_block) * KEY_WIDTH + o_key, b_d_key, mask=m_key)
        tl.store(d_value + row * VALUE_WIDTH + o_value, b_d_value, mask=m_value)
        tl.store(d_write_rate + row * VALUE_BLOCKS + value_block, d_rate)
        if d_known is not None:
            tl.store(d_known + row * VALUE_WIDTH + o_value, b_d_known, mask=m_value)
        token -= 1
        row -= HEADS
    tl.store(d_initial + o_state, b_d_state, mask=m_state)
    if d_start is not None:
        tl.store(d_start + o_state, b_d_start, mask=m_state)


@triton.jit(do_not_specialize=["steps", "start_stride"])
def backward_reads_kernel(
    key,
    value,
    write_rate,
    log_decay,
    start,
    start_stride,
    reset,
    erase_heads,
    initial,
    errors,
    d_output,
    d_known,
    d_query,
    d_erase_key,
    steps,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    VALUE_BLOCKS: tl.constexpr,
    ERASE: tl.constexpr,
    ERROR_BEFORE_DECAY: tl.constexpr,
    ADD_TO_ERASE_KEY: tl.constexpr,
):
    """Forward in time with the state: dk_e = -(S^-)^T x and dq = S^T do. ADD_TO_ERASE_KEY: dk_e lands on top of dk."""
    value_block, life_head, life, head = program_place(HEADS, VALUE_BLOCKS)

    o_key = tl.arange(0, BLOCK_KEY)
    o_value = value_block * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    m_key = o_key < KEY_WIDTH
    m_value = o_value < VALUE_WIDTH
    m_state = m_value[:, None] & m_key[None, :]
    o_tile = o_value[:, None] * KEY_WIDTH + o_key[None, :]
    o_start = life * start_stride + head * VALUE_WIDTH * KEY_WIDTH

    switch = erase_switch(erase_heads, head, ERASE)
    b_state = tl.load(initial + life_head * VALUE_WIDTH * KEY_WIDTH + o_tile, mask=m_state, other=0.0)
    token = life * steps
    row = token * HEADS + head
    for _ in range(steps):
        b_key = load_row(key, row, o_key, m_key, KEY_WIDTH)
        b_written = load_written(errors, value, row * VALUE_WIDTH + o_value, m_value, switch, ERASE)
        b_d_known = load_row(d_known, row, o_value, m_value, VALUE_WIDTH)
        rate = tl.load(write_rate + row)

        b_state = after_reset(b_state, reset, token, start, o_start, o_tile, m_state)
        if ERROR_BEFORE_DECAY:
            b_d_erase_key = -tl.sum(b_state * b_d_known[:, None], 0)
        if log_decay is not None:
            b_state *= tl.exp(tl.load(log_decay + row))
        if not ERROR_BEFORE_DECAY:
            b_d_erase_key = -tl.sum(b_state * b_d_known[:, None], 0)
        b_state += (rate * b_written)[:, None] * b_key[None, :]

        o_part = (row * VALUE_BLOCKS + value_block) * KEY_WIDTH + o_key
        if ADD_TO_ERASE_KEY:
            b_d_erase_key += tl.load(d_erase_key + o_part, mask=m_key, other=0.0)
        tl.store(d_erase_key + o_part, b_d_erase_key, mask=m_key)
        b_d_output = load_row(d_output, row, o_value, m_value, VALUE_WIDTH)
        tl.store(d_query + o_part, tl.sum(b_state * b_d_output[:, None], 0), mask=m_key)
        token += 1
        row += HEADS
