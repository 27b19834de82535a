"""Memory cores by name: ``make_core``, ``core_names``, ``@register_core``, ``@register_design``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from lifelong.memory.core import MemoryCore
from lifelong.memory.word_hints import check_all_matter, elsewhere

Core = TypeVar("Core", bound=type[MemoryCore])

_CORES: dict[str, type[MemoryCore]] = {}


def register_core(name: str) -> Callable[[Core], Core]:
    """Class decorator: make a core known to ``make_core`` and to the configs as ``name``."""

    def add(core: Core) -> Core:
        if name in _CORES:
            raise ValueError(f"memory core {name!r} is registered already")
        _CORES[name] = core
        core.config_name = name
        return core

    return add


def register_design(name: str, design: type[Any], **choices: Any) -> Callable[[Core], Core]:
    """Class decorator: register a core whose options are the fields of a dataclass, with ``choices`` as defaults.

    The constructor of the decorated class takes dim and an instance of the dataclass.

    Example:
        >>> @register_design("huber_attention", Design, objective="huber", retention="none")
        >>> class HuberAttention(ParametricCore):
        >>>     \"\"\"What it computes, and whose idea it is.\"\"\"
    """

    def add(core: Core) -> Core:
        construct: Callable[..., None] = core.__init__
        defaults = {field.name: choices.get(field.name, field.default) for field in fields(design)}
        assert MISSING not in defaults.values()

        # `core_options` and `make_core` read options, their types and defaults off the constructor.
        def build(self: MemoryCore, dim: int, **options: Any) -> None:
            chosen = design(**{**choices, **options})
            check_all_matter(chosen, defaults)
            construct(self, dim, chosen)

        parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in ("self", "dim")]
        for option, default in defaults.items():
            parameters.append(inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default))
        build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        build.__annotations__ = {"dim": int, **get_type_hints(design)}
        core.__init__ = build  # type: ignore[method-assign]
        return register_core(name)(core)

    return add


def core_names() -> list[str]:
    """The names that ``make_core`` knows, sorted."""
    return sorted(_CORES)


def core_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a core, by name: the parameters of its constructor after ``dim``."""
    parameters = inspect.signature(_lookup(name).__init__).parameters
    return {key: value for key, value in parameters.items() if key not in ("self", "dim")}


def reason_to_lack(name: str, option: str) -> str | None:
    """Why a core cannot have an option that others have; None where it names no reason (``MemoryCore.lacks``)."""
    return _lookup(name).lacks.get(option)


def make_core(name: str, dim: int, **options: Any) -> MemoryCore:
    """Build the core ``name`` of width ``dim``.

    Raises:
        ValueError: unknown name or option, or a value of the wrong type or not finite; the message says what is
            allowed.
    """
    core = _lookup(name)
    allowed = core_options(name)
    for option in options:
        reason = reason_to_lack(name, option)
        if reason is not None:
            raise ValueError(f"memory core {name!r} has no option {option!r}: {reason}")
        if option not in allowed:
            known = ", ".join(allowed)
            hint = elsewhere(option, options[option]) or did_you_mean(option, list(allowed))
            raise ValueError(f"memory core {name!r} has no option {option!r}; allowed: {known}{hint}")
    for option, value in options.items():
        wanted = wanted_instead(name, option, value)
        if wanted is not None:
            raise ValueError(f"option {option} of memory core {name!r} must be {wanted}, not {value!r}")
    return core(dim, **options)


def wanted_instead(name: str, option: str, value: object) -> str | None:
    """What an option of a core must be, in words, if ``value`` is not that; None if it is, or nothing is declared.

    The constructor's annotations say it. A number must be finite in float32, which parameters are made in.
    """
    types = get_type_hints(_lookup(name).__init__)
    if option not in types:
        return None
    if not _fits(value, types[option]):
        return " or ".join(_TYPE_NAMES.get(each, str(each)) for each in _alternatives(types[option]))
    if isinstance(value, float) and not abs(value) <= _LARGEST:
        return f"a finite number, {_LARGEST:.1e} at most in size"
    return None


_LARGEST = torch.finfo(torch.float32).max


_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    list[str]: "a list of words",
    NoneType: "null",
}


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """``int | None`` -> (int, NoneType); ``int`` -> (int,)."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _fits(value: object, annotation: Any) -> bool:
    """Whether a value from a config file may stand for an option of that type; types no file can hold are let pass."""
    for kind in _alternatives(annotation):
        if kind == list[str]:
            if isinstance(value, list) and all(isinstance(word, str) for word in value):
                return True
            continue
        if kind not in _TYPE_NAMES or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
            return True
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return True
    return False


def _lookup(name: str) -> type[MemoryCore]:
    if name not in _CORES:
        known = core_names()
        raise ValueError(f"unknown memory core {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")
    return _CORES[name]


def did_you_mean(word: object, known: list[str]) -> str:
    """The end of an error message: the known word nearest to ``word``, or nothing if none is near."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""
