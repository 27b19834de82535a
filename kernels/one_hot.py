"""Products with one-hot vectors, for networks that read integers: rows of a table are added up, no zeros are touched.

In C, on the CPU. A MiniGrid view of 7 x 7 cells is 147 ones among 1,000 numbers.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lifelong.kernels.compile import CompileError, compile_library
from lifelong.kernels.native_library import REAL_BYTES

_FOLDER = Path(__file__).parent


def serves(values: Tensor, table: Tensor) -> bool:
    """Whether ``one_hot_product`` can take these: plain float32 or float64 on the CPU, outside of torch's compiler,
    transforms and dispatch modes, where a C compiler has been found.
    """
    return (
        type(values) is Tensor
        and isinstance(table, Tensor)
        and values.device.type == table.device.type == "cpu"
        and table.dtype in REAL_BYTES
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and _library(table.dtype) is not None
    )


def one_hot_product(values: Tensor, sizes: Tensor, columns: Tensor, table: Tensor) -> Tensor:
    """y = sum over r, j of table[columns[r, j] + values[..., j]]: a matrix times one-hot planes side by side.

    Args:
        values: [..., J], integers; entry j in [0, sizes[j]).
        sizes: [J] int64.
        columns: [R, J] int64: where the plane of entry j begins in the table, for each of R readings of it. The planes
            of the first reading overlap with no others.
        table: [S, D], float; gradients flow into it. It is copied if its rows do not lie together in memory.

    Returns:
        [..., D] in the table's dtype. A row does not depend, to the last bit, on the others.

    Raises:
        IndexError: a value is outside its range; it says where in the last axis.
        ValueError: shapes that do not fit each other.
    """
    if not values.shape[-1:] == sizes.shape == columns.shape[1:] or table.dim() != 2:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (values, sizes, columns, table))
        raise ValueError(f"values [..., J], sizes [J], columns [R, J] and table [S, D] are asked for, not {shapes}")
    product: Tensor = _Product.apply(values.long(), sizes.long(), columns.long(), table)
    return product


def planes(values: Tensor, columns: Tensor, size: int) -> Tensor:
    """What ``one_hot_product`` multiplies with, [..., J] -> [..., size] float32. Ranges are not checked."""
    index = (values.long().unsqueeze(-2) + columns).flatten(-2)
    written = torch.zeros(*values.shape[:-1], size, device=values.device)
    if len(columns) == 1:
        return written.scatter_(-1, index, 1.0)
    return written.scatter_add_(-1, index, written.new_ones(()).expand(index.shape))


class _Rows(ctypes.Structure):
    """``struct rows`` of one_hot.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("values", "sizes", "columns")] + [
        (name, ctypes.c_int64) for name in ("count", "entries", "readings", "width", "table_rows")
    ]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sizes: Tensor, columns: Tensor, table: Tensor) -> Tensor:
        values, sizes, columns, table = (each.contiguous() for each in (values, sizes, columns, table))
        ctx.save_for_backward(values, sizes, columns)
        ctx.table_shape = table.shape
        sums = table.new_empty(*values.shape[:-1], table.shape[1])
        library, rows = _checked(values, sizes, columns, table.shape, table.dtype)
        library.one_hot_forward(rows, table.data_ptr(), sums.data_ptr())
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_sums: Tensor) -> tuple[None, None, None, Tensor]:
        d_sums = d_sums.contiguous()
        d_table = d_sums.new_zeros(ctx.table_shape)
        # Checked again: what a buffer of somebody else's held may have changed, and torch need not know.
        values, sizes, columns = ctx.saved_tensors
        library, rows = _checked(values, sizes, columns, ctx.table_shape, d_sums.dtype)
        library.one_hot_backward(rows, d_sums.data_ptr(), d_table.data_ptr())
        return None, None, None, d_table


def _checked(
    values: Tensor, sizes: Tensor, columns: Tensor, table_shape: torch.Size, dtype: torch.dtype
) -> tuple[ctypes.CDLL, Any]:
    """The library, and what it is to be called with; the tensors must outlive it."""
    library = _library(dtype)
    assert library is not None
    addresses = (tensor.data_ptr() for tensor in (values, sizes, columns))
    entries = len(sizes)
    rows = _Rows(*addresses, values.shape[:-1].numel(), entries, len(columns), table_shape[1], table_shape[0])
    misfit = library.one_hot_misfit(ctypes.byref(rows))
    if misfit == -2:
        raise ValueError(f"columns and sizes reach beyond the {table_shape[0]} rows of the table")
    if misfit >= 0:
        entry = misfit % entries
        raise IndexError(f"entry {entry} is {values.flatten()[misfit]}, and must be in [0, {sizes[entry]})")
    return library, ctypes.byref(rows)


@functools.cache
def _library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The kernels in this precision, compiled if they are not in the cache; None where they cannot be."""
    defines = (f"LIFELONG_REAL_BYTES={REAL_BYTES[dtype]}",)
    try:
        library = ctypes.CDLL(str(compile_library(_FOLDER / "one_hot.c", (_FOLDER / "native_vector.h",), defines)))
    except (CompileError, OSError):
        return None  # slower, and the same: nothing that a user would have to know
    pointer = ctypes.c_void_p
    library.one_hot_misfit.argtypes, library.one_hot_misfit.restype = (pointer,), ctypes.c_int64
    for function in (library.one_hot_forward, library.one_hot_backward):
        function.argtypes, function.restype = (pointer, pointer, pointer), None
    return library
