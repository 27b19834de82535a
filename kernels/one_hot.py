"""Products with one-hot vectors, for networks that read integers: rows of a table are added up, no zeros are touched.

In C on the CPU, as plain torch elsewhere and where nothing can be compiled. A MiniGrid view of 7 x 7 cells is 147 ones
among 1,000 numbers.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lifelong.kernels.compile import compile_library
from lifelong.kernels.native_library import REAL_BYTES, loading_problem

_FOLDER = Path(__file__).parent


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
        IndexError: a value is outside its range (on a GPU torch says so in its own way).
    """
    values = values.long()
    if table.device.type == "cpu" and table.dtype in REAL_BYTES and loading_problem() is None:
        product: Tensor = _Product.apply(values, sizes, columns, table)
        return product
    return planes(values, columns, len(table), table.dtype) @ table


def planes(values: Tensor, columns: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """What ``one_hot_product`` multiplies with, written out: [..., J] -> [..., size]."""
    index = (values.unsqueeze(-2) + columns).flatten(-2)
    ones = torch.ones((), dtype=dtype, device=values.device).expand(index.shape)
    return torch.zeros(*values.shape[:-1], size, dtype=dtype, device=values.device).scatter_add_(-1, index, ones)


class _Rows(ctypes.Structure):
    """``struct rows`` of one_hot.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("values", "sizes", "columns")] + [
        (name, ctypes.c_int64) for name in ("count", "entries", "readings", "width")
    ]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sizes: Tensor, columns: Tensor, table: Tensor) -> Tensor:
        values, table = values.contiguous(), table.contiguous()
        rows, library = _rows(values, sizes, columns, table.shape[1]), _library(table.dtype)
        misfit = library.one_hot_misfit(rows)
        if misfit >= 0:
            entry = misfit % len(sizes)
            raise IndexError(f"entry {entry} is {values.flatten()[misfit]}, and must be in [0, {sizes[entry]})")
        ctx.save_for_backward(values, sizes, columns)
        ctx.table_shape = table.shape
        sums = table.new_empty(*values.shape[:-1], table.shape[1])
        library.one_hot_forward(rows, table.data_ptr(), sums.data_ptr())
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_sums: Tensor) -> tuple[None, None, None, Tensor]:
        values, sizes, columns = ctx.saved_tensors
        d_sums = d_sums.contiguous()
        d_table = d_sums.new_zeros(ctx.table_shape)
        rows = _rows(values, sizes, columns, d_sums.shape[-1])
        _library(d_sums.dtype).one_hot_backward(rows, d_sums.data_ptr(), d_table.data_ptr())
        return None, None, None, d_table


def _rows(values: Tensor, sizes: Tensor, columns: Tensor, width: int) -> ctypes.Array[ctypes.c_char] | Any:
    """By reference. The tensors must outlive it."""
    entries = len(sizes)
    return ctypes.byref(
        _Rows(
            *(tensor.data_ptr() for tensor in (values, sizes, columns)),
            values.numel() // entries,
            entries,
            len(columns),
            width,
        )
    )


@functools.cache
def _library(dtype: torch.dtype) -> ctypes.CDLL:
    defines = (f"LIFELONG_REAL_BYTES={REAL_BYTES[dtype]}",)
    library = ctypes.CDLL(str(compile_library(_FOLDER / "one_hot.c", (_FOLDER / "native_vector.h",), defines)))
    pointer = ctypes.c_void_p
    library.one_hot_misfit.argtypes, library.one_hot_misfit.restype = (pointer,), ctypes.c_int64
    for function in (library.one_hot_forward, library.one_hot_backward):
        function.argtypes, function.restype = (pointer, pointer, pointer), None
    return library
