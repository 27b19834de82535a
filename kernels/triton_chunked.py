"""The fast-weight operation in chunks of 16 steps, Triton: matrix products in the place of most of the loop over time.

For the writes j and reads i of a chunk, with S the state at its entry and kept(i, j) what decays and resets leave of
write j at step i,

    (I + L) W = V - [erase] kept_entry (K_e S^T),       L_ij = [erase] [i > j] kept(i, j) b_j (k_e_i . k_j)
    O = kept_entry (Q S^T) + (kept (Q K^T)) (b W)
    S <- kept_through S + (kept_exit b W)^T K

What walks the sequence, one chunk after the other (`triton_chunk_walks`), is kept short: all that depends on keys and
gates alone is worked out beforehand (`triton_chunk_matrices`), and their gradients afterwards
(`triton_chunk_gradients`), for all chunks at once. The backward pass makes the states at the entries of chunks anew
from the errors, which needs no solve, and holds two states a chunk while it runs.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from lifelong.kernels.triton_chunk_gradients import backward_chunks_kernel
from lifelong.kernels.triton_chunk_matrices import CHUNK, chunk_matrices
from lifelong.kernels.triton_chunk_walks import backward_states_kernel, entry_states_kernel, forward_kernel
from lifelong.kernels.triton_common import ERASE_ON, Gradients, Inputs, Result, Tiling, tile


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
        matrices = chunk_matrices(inputs, constants)
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
        matrices = chunk_matrices(inputs, constants)
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
