"""Memory cores: what an agent remembers by, behind one contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifelong.memory import (  # noqa: F401  (registers the cores)
    classic,
    feed_forward,
    ffm,
    frame_stack,
    gtrxl,
    lru,
    mamba2,
    mesa,
    min_gru,
    network_points,
    points,
    s5,
    shm,
    softmax,
    softmax_evicting,
)
from lifelong.memory.core import LifeTooLong, MemoryCore
from lifelong.memory.registry import core_names, core_options, make_core, register_core

if TYPE_CHECKING:
    from lifelong.memory.torchrl_module import MemoryModule

__all__ = ["LifeTooLong", "MemoryCore", "MemoryModule", "core_names", "core_options", "make_core", "register_core"]


def __getattr__(name: str) -> Any:
    # TorchRL takes seconds to import, and the cores do not need it.
    if name == "MemoryModule":
        from lifelong.memory.torchrl_module import MemoryModule

        return MemoryModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
