"""Memory cores by name: ``make_core``, ``core_names``, ``@register_core``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from lifelong.memory.core import MemoryCore

_CORES: dict[str, type[MemoryCore]] = {}


def register_core(name: str) -> Callable[[type[MemoryCore]], type[MemoryCore]]:
    """Class decorator: make a core known to ``make_core`` and to the configs as ``name``."""

    def add(core: type[MemoryCore]) -> type[MemoryCore]:
        if name in _CORES:
            raise ValueError(f"memory core {name!r} is registered already")
        _CORES[name] = core
        return core

    return add


def core_names() -> list[str]:
    """The names that ``make_core`` knows, sorted."""
    return sorted(_CORES)


def core_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a core, by name: the parameters of its constructor after ``dim``."""
    parameters = inspect.signature(_lookup(name).__init__).parameters
    return {key: value for key, value in parameters.items() if key not in ("self", "dim")}


def make_core(name: str, dim: int, **options: Any) -> MemoryCore:
    """Build the core ``name`` of width ``dim``.

    Raises:
        ValueError: unknown name or option; the message says what is allowed and gives the nearest match.
    """
    core = _lookup(name)
    allowed = core_options(name)
    for option in options:
        if option not in allowed:
            known = ", ".join(allowed)
            raise ValueError(
                f"memory core {name!r} has no option {option!r}; allowed: {known}{did_you_mean(option, list(allowed))}"
            )
    return core(dim, **options)


def _lookup(name: str) -> type[MemoryCore]:
    if name not in _CORES:
        known = core_names()
        raise ValueError(f"unknown memory core {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")
    return _CORES[name]


def did_you_mean(word: object, known: list[str]) -> str:
    """The end of an error message: the known word nearest to ``word``, or nothing if none is near."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""
