"""Run Triton kernels on CPU tensors in this process: `with interpreter(module): module.launch(...)`.

Triton decides when a kernel is *decorated* whether it is to be interpreted, by an environment variable, and a process
that chose so cannot compile any more. Here the compiled functions are swapped for interpreted ones, those of
`triton.language` among them, and all is put back afterwards, so that one test process can do both.

The interpreter computes in numpy. It does not know bfloat16 (it multiplies the bit patterns), ignores
`input_precision`, and takes blocks that a GPU refuses; compiling ahead of time finds what it passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType

import triton
import triton.language as tl
import triton.language.random
import triton.language.standard
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

# What the interpreter patches when an interpreted function calls another one, and never puts back by itself.
_PATCHED = (tl, tl.core, tl.math, tl.tensor, tl.dtype)
_LIBRARY = (tl, tl.core, tl.standard, tl.random)

# Keyed by identity: the hash of a JITFunction walks all its globals. The function is kept so that no id is used twice.
_interpreted: dict[int, tuple[JITFunction, InterpretedFunction]] = {}


@contextlib.contextmanager
def interpreter(*modules: ModuleType) -> Iterator[None]:
    """Inside, every kernel and helper in the globals of the modules is interpreted."""
    with contextlib.ExitStack() as stack:
        for owner in _PATCHED:
            stack.callback(_put_back, owner, dict(vars(owner)))
        stack.callback(setattr, triton.knobs.runtime, "interpret", triton.knobs.runtime.interpret)
        triton.knobs.runtime.interpret = True
        for module in {id(module): module for module in (*_LIBRARY, *modules)}.values():
            for name, function in list(vars(module).items()):
                if isinstance(function, JITFunction):
                    stack.callback(setattr, module, name, function)
                    setattr(module, name, _interpret(function))
        yield


def _interpret(function: JITFunction) -> InterpretedFunction:
    if id(function) not in _interpreted:
        _interpreted[id(function)] = function, InterpretedFunction(function.fn)
    return _interpreted[id(function)][1]


def _put_back(owner: object, before: dict[str, object]) -> None:
    for name in set(vars(owner)) - set(before):
        delattr(owner, name)
    for name, value in before.items():
        if vars(owner).get(name) is not value:
            setattr(owner, name, value)
