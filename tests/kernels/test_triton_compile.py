"""The Triton kernels, compiled ahead of time by the project's own launch code for GPUs that are not there.

The interpreter runs what a compiler refuses, and says nothing of registers, shared memory or the width of integers.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the package triton is not installed")

from triton.runtime.jit import JITFunction

from lifelong.kernels import (
    triton_chunk_gradients,
    triton_chunk_matrices,
    triton_chunk_walks,
    triton_chunked,
    triton_recurrent,
    triton_step,
)

from .triton_compile_job import inputs, launch_sequence
from .triton_compile_only import SHARED_MEMORY, compile_only

# Who launches, and where the kernels are.
MODULES = {
    triton_chunked: (triton_chunk_matrices, triton_chunk_walks, triton_chunk_gradients),
    triton_recurrent: (triton_recurrent,),
    triton_step: (triton_step,),
}

# The job limits its own processor time; this is for a machine that has other things to do.
SECONDS_PER_TARGET = 1800


@pytest.fixture(scope="module", params=SHARED_MEMORY)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def compiled(target: str) -> list[dict[str, Any]]:
    """The stated set: loop and step up to a width of 128, chunks up to 64; float32, bfloat16; few and all options."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("triton_compile_job.py"), target],
        env={**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_PER_TARGET,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_kernel_compiles_and_keeps_its_state_in_registers(target: str, compiled: list[dict[str, Any]]) -> None:
    for kernel in compiled:
        assert kernel["spilled"] == 0, describe(kernel)
        assert kernel["shared_memory"] <= SHARED_MEMORY[target], describe(kernel)

    launched = {(kernel["module"], kernel["name"]) for kernel in compiled}
    written = {
        (launcher.__name__, name)
        for launcher, modules in MODULES.items()
        for module in modules
        for name, function in inspect.getmembers(module, lambda member: isinstance(member, JITFunction))
        if name.endswith("_kernel")
    }
    assert launched == written


@pytest.mark.slow
def test_places_in_memory_are_computed_with_64_bits(compiled: list[dict[str, Any]]) -> None:
    """Elements past 2^31 are reached: products are 64 bits wide, but for steps of one life and rows of one state."""
    for kernel in compiled:
        place = re.search(r"%(\w+) = tt.get_program_id x : i32", kernel["ttir"])
        assert place, describe(kernel)
        for line in re.findall(rf".*= .*%{place[1]}\b.*", kernel["ttir"]):
            assert "get_program_id" in line or re.search(r"arith\.extsi .* : i32 to i64", line), line
        for line in re.findall(r".*arith\.muli .* : (?:tensor<.*xi32>|i32)\b.*", kernel["ttir"]):
            assert re.search(r"arith\.muli %(chunk|value_block)\w*, %c\d+_i32", line), line


def describe(kernel: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in kernel.items() if name not in ("ttir", "hash"))


KERNELS = [triton_recurrent, triton_chunked]


@pytest.mark.parametrize("kernels", KERNELS)
def test_other_numbers_of_lives_and_steps_compile_nothing_new(kernels: Any) -> None:
    hashes = []
    for lives, steps in ((2, 1), (2, 16), (1, 37), (5, 64)):
        with compile_only("sm_90") as compiled:
            launch_sequence(kernels, 16, lives=lives, steps=steps)
        hashes.append([kernel.hash for kernel in compiled])
    assert all(others == hashes[0] for others in hashes)


@pytest.mark.parametrize("kernels", KERNELS)
def test_more_heads_in_all_than_the_second_axis_of_a_grid_can_hold(kernels: Any) -> None:
    with compile_only("sm_90") as compiled:
        launch_sequence(kernels, 16, lives=20_000, steps=1)
    assert compiled
    for kernel in compiled:
        assert kernel.grid == (80_000,)


def test_more_steps_of_heads_than_the_second_axis_of_a_grid_can_hold() -> None:
    with compile_only("sm_90") as compiled:
        triton_step.step(inputs(16, lives=20_000, steps=None))
    assert [kernel.grid for kernel in compiled] == [(80_000,)]
