"""The C kernels as Python objects: compiled and loaded on first use, and the struct through which they are called."""

from __future__ import annotations

import ctypes
import functools
import struct
import warnings
from pathlib import Path

import torch
from torch import Tensor

from lifelong.kernels.compile import CompileError, compile_library

_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "native.c"
_HEADERS = tuple(_FOLDER / f"native_{name}.h" for name in ("backward", "call", "forward", "memory", "sweep", "vector"))
REAL_BYTES = {torch.float32: 4, torch.float64: 8}

# Starting and joining a thread costs 10 us at best; so many elements of states, summed over the steps, take about
# 250 us forward on one core.
WORK_PER_THREAD = 2**21


# The struct of native_call.h, field for field. A view is the address and the strides over life, step and head.
_VIEW = "4q"
_SIZES, _OPTIONS = "6q", "4q d"
_INPUTS = 9 * _VIEW + "3q"
_MADE = "5q"
_GRADIENTS = 2 * _VIEW + "12q"
_CALL = struct.Struct("@" + _SIZES + _OPTIONS + _INPUTS + _MADE + _GRADIENTS)
NO_VIEW = (0, 0, 0, 0)
NO_GRADIENTS = (0,) * (2 * 4 + 12)


class Library:
    """The three kernels in one precision. They take the fields of the struct; the caller keeps its tensors alive."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        library.fast_weight_call_bytes.restype = ctypes.c_int64
        if library.fast_weight_call_bytes() != _CALL.size:
            raise CompileError(f"{path} does not fit this version of the package; delete it")
        self._forward = library.fast_weight_forward
        self._backward = library.fast_weight_backward
        self._step = library.fast_weight_step
        for function in (self._forward, self._backward, self._step):
            function.argtypes = (ctypes.c_char_p,)
            function.restype = ctypes.c_int

    def forward(self, *fields: float) -> None:
        _check(self._forward(_CALL.pack(*fields)))

    def backward(self, *fields: float) -> None:
        _check(self._backward(_CALL.pack(*fields)))

    def step(self, *fields: float) -> None:
        _check(self._step(_CALL.pack(*fields)))


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("the native fast-weight kernel could not allocate its workspace")


@functools.cache
def load_library(dtype: torch.dtype) -> Library:
    """The kernels for float32 or float64, compiled if they are not in the cache. Raises `CompileError`."""
    path = compile_library(_SOURCE, _HEADERS, (f"LIFELONG_REAL_BYTES={REAL_BYTES[dtype]}",))
    try:
        return Library(path)
    except OSError as error:
        raise CompileError(f"{path} cannot be loaded: {error}") from error


@functools.cache
def loading_problem() -> str | None:
    """Why the kernels cannot be used on this machine, None if they can. Warns when it is asked first."""
    try:
        load_library(torch.float32)
    except CompileError as error:
        warnings.warn(
            f'the native fast-weight kernels cannot be used, and implementation="auto" takes slower ones: {error}',
            RuntimeWarning,
            stacklevel=2,
        )
        return str(error)
    return None


def thread_count(work: int, items: int) -> int:
    """How many threads are worth it for `work` elements of states over all steps, in `items` independent parts."""
    return max(1, min(torch.get_num_threads(), items, work // WORK_PER_THREAD))


def view(tensor: Tensor | None, keep: list[Tensor], is_step: bool = False) -> tuple[int, int, int, int]:
    """The tensor as the kernels see it: `[B, T, H, D]`, `[B, T, H]` or `[B, T]`, for a step without the T axis.

    It is copied to contiguous memory if its last D is not; `keep` holds the copy.
    """
    if tensor is None:
        return NO_VIEW
    strides = tensor.stride()
    axes = len(strides) + is_step
    if axes == 4 and strides[-1] != 1:
        tensor = tensor.contiguous()
        keep.append(tensor)
        strides = tensor.stride()
    if is_step:
        return tensor.data_ptr(), strides[0], 0, strides[1] if axes > 2 else 0
    return tensor.data_ptr(), strides[0], strides[1], strides[2] if axes > 2 else 0


def pointer(tensor: Tensor | None, keep: list[Tensor]) -> int:
    """The address of the tensor, copied to contiguous memory if it is not; `keep` holds the copy."""
    if tensor is None or tensor.numel() == 0:
        return 0
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
        keep.append(tensor)
    return tensor.data_ptr()
