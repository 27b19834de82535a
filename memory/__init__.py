"""Memory cores: what an agent remembers by, behind one contract."""

from lifelong.memory import classic, feed_forward, parametric  # noqa: F401  (registers the cores)
from lifelong.memory.core import MemoryCore
from lifelong.memory.registry import core_names, core_options, make_core, register_core

__all__ = ["MemoryCore", "core_names", "core_options", "make_core", "register_core"]
