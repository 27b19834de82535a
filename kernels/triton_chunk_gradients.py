"""The gradients of keys, queries and gates, for every chunk by itself, Triton."""

# Triton gives the parameters of kernels their types, so they are not annotated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
from __future__ import annotations

import triton
import triton.language as tl

from lifelong.kernels.triton_chunk_matrices import chunk_gates, load_keys
from lifelong.kernels.triton_common import erase_switch, load_written


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
        b_written = load_written(errors, value, o_row_value, m_row_value, switch, ERASE)
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
