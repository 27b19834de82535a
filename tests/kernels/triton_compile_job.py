"""Compile the set of kernels that must fit one target, and print what became of each as a line of JSON.

A process of its own, because a compiler that lost its way can only be stopped from outside. The argument is the target:
`triton_compile_job.py sm_90`.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import torch
from torch import Tensor

from lifelong.kernels import triton_chunked, triton_recurrent, triton_step
from lifelong.kernels.triton_common import Inputs, Result

# About 60 are needed where nothing is in Triton's cache.
CPU_SECONDS = 240

_LIVES, _STEPS, _HEADS = 3, 33, 4
_PER_HEAD = torch.tensor([True, False, True, True])
# What a call may have, from the least to the most.
PLAIN: dict[str, Any] = {"decay": False, "reset": False, "gradient_of_state": False, "erase": False}
GATED_DELTA: dict[str, Any] = {}
EVERYTHING: dict[str, Any] = {"erase": _PER_HEAD, "erase_key": True}
LOOP_EVERYTHING = EVERYTHING | {"start": True, "error_before_decay": True}

RECURRENT = [(width, GATED_DELTA) for width in (16, 32, 64, 128)]
RECURRENT += [(32, PLAIN), (128, LOOP_EVERYTHING), (64, {"dtype": torch.bfloat16})]
CHUNKED = [(width, GATED_DELTA) for width in (16, 32, 64)]
CHUNKED += [(32, PLAIN), (64, EVERYTHING), (64, {"dtype": torch.bfloat16})]


def inputs(
    width: int,
    *,
    lives: int = _LIVES,
    steps: int | None = _STEPS,
    dtype: torch.dtype = torch.float32,
    decay: bool = True,
    reset: bool = True,
    erase: bool | Tensor = True,
    erase_key: bool = False,
    start: bool = False,
    error_before_decay: bool = False,
) -> Inputs:
    """A call of zeros, for a step if `steps` is None."""
    rows = (lives, _HEADS) if steps is None else (lives, steps, _HEADS)
    scalar, vector = torch.zeros(rows), torch.zeros(*rows, width, dtype=dtype)
    return Inputs.prepare(
        vector,
        vector,
        vector,
        scalar,
        torch.zeros(lives, _HEADS, width, width),
        scalar if decay else None,
        vector if erase_key else None,
        torch.zeros(1, _HEADS, width, width) if start else None,
        torch.zeros(rows[:-1], dtype=torch.bool) if reset else None,
        erase if isinstance(erase, Tensor) else None,
        bool(torch.as_tensor(erase).any()),
        error_before_decay,
    )


def launch_sequence(kernels: Any, width: int, *, gradient_of_state: bool = True, **options: Any) -> None:
    """A forward and a backward pass with every gradient, or with that of the output alone."""
    call = inputs(width, **options)
    given = kernels.forward(call, keep_errors=True)
    result = Result(*given)
    d_final, slope = (result.final, result.surprise) if gradient_of_state else (None, None)
    kernels.backward(call, result, result.output, d_final, slope)


def main(target: str) -> None:
    """Compile and report. The chunked kernels multiply in float32 where the target knows no product of three."""
    # Of this process, and of each assembler that it starts: one bad choice of blocks took 700 s.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    from triton_compile_only import compile_only

    if target.startswith("gfx"):
        triton_chunked.dot_precision = lambda: "ieee"
    for kernels, cases in ((triton_recurrent, RECURRENT), (triton_chunked, CHUNKED)):
        for width, options in cases:
            with compile_only(target) as compiled:
                launch_sequence(kernels, width, **options)
            _report(kernels.__name__, width, compiled)
    for width, options in RECURRENT:
        with compile_only(target) as compiled:
            triton_step.step(inputs(width, steps=None, **_for_a_step(options)))
        _report(triton_step.__name__, width, compiled)


def _for_a_step(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "gradient_of_state"}


def _report(module: str, width: int, compiled: list[Any]) -> None:
    for kernel in compiled:
        print(json.dumps({"module": module, "width": width, **kernel._asdict()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
