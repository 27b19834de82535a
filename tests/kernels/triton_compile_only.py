"""Compile Triton kernels for a GPU that is not there: `with compile_only("sm_90") as compiled: module.launch(...)`.

The project's own launch code runs on CPU tensors, so that every kernel is specialised exactly as in use; a stub in the
place of Triton's driver names the target, and each launch ends when its kernel is compiled.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Bytes of shared memory that one program may ask for.
SHARED_MEMORY = {"sm_80": 166_912, "sm_90": 232_448, "gfx942": 65_536}


class Compiled(NamedTuple):
    """One kernel as it would run: `spilled` counts the bytes of registers that did not fit."""

    name: str
    hash: str
    grid: tuple[int, ...]
    registers: int
    spilled: int
    shared_memory: int
    num_warps: int
    ttir: str


@contextlib.contextmanager
def compile_only(target: str) -> Iterator[list[Compiled]]:
    """Inside, kernels are compiled for `target` and not run; the list receives one entry a launch."""
    launched: list[Any] = []
    compiled: list[Compiled] = []
    run = JITFunction.run

    def compile_instead(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        launched.append((kernel, tuple(grid)))
        return kernel

    active = triton.runtime.driver._active
    triton.runtime.driver.set_active(_StubDriver(TARGETS[target]))
    JITFunction.run = compile_instead
    try:
        yield compiled
        measure = _measure_cuda if TARGETS[target].backend == "cuda" else _measure_hip
        compiled.extend(measure(kernel, grid) for kernel, grid in launched)
    finally:
        JITFunction.run = run
        triton.runtime.driver.set_active(active)


class _StubDriver(DriverBase):
    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*"

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        # Triton keeps what it compiled by device: one number a target.
        return list(TARGETS.values()).index(self.target)

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing can be timed on a device that is not there")


def _measure_cuda(kernel: Any, grid: tuple[int, ...]) -> Compiled:
    """Assemble once more, to hear what the assembler says: the finished kernel does not tell spills from the stack."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    arch = kernel.metadata.target.arch
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(kernel.asm["ptx"])
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={sm_arch_from_capability(arch)}", source, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
    spilled = sum(int(count) for count in re.findall(r"(\d+) bytes spill", said))
    registers = re.search(r"Used (\d+) registers", said)
    assert registers, said
    return _describe(kernel, grid, int(registers[1]), spilled, kernel.metadata.shared)


def _measure_hip(kernel: Any, grid: tuple[int, ...]) -> Compiled:
    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", kernel.asm["amdgcn"])
        assert found, name
        return int(found[1])

    spilled = 4 * (field("vgpr_spill_count") + field("sgpr_spill_count")) + field("private_segment_fixed_size")
    return _describe(kernel, grid, field("vgpr_count"), spilled, field("group_segment_fixed_size"))


def _describe(kernel: Any, grid: tuple[int, ...], registers: int, spilled: int, shared_memory: int) -> Compiled:
    num_warps, ttir = kernel.metadata.num_warps, str(kernel.asm["ttir"])
    return Compiled(kernel.name, kernel.hash, grid, registers, spilled, shared_memory, num_warps, ttir)
