"""Environments by name: ``make_env(config)``, ``env_names()``, ``@register_env``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from lifelong.envs.base import BatchedEnv
from lifelong.envs.options import did_you_mean

_FACTORIES: dict[str, Callable[..., BatchedEnv]] = {}


def register_env(name: str) -> Callable[[Callable[..., BatchedEnv]], Callable[..., BatchedEnv]]:
    """Class or function decorator: make an environment known as ``name``. It is called as ``factory(num_lives=,
    seed=, **options)``.
    """

    def add(factory: Callable[..., BatchedEnv]) -> Callable[..., BatchedEnv]:
        if name in _FACTORIES:
            raise ValueError(f"environment {name!r} is registered already")
        _FACTORIES[name] = factory
        return factory

    return add


def env_names() -> list[str]:
    """The names that ``make_env`` knows, sorted."""
    return sorted(_FACTORIES)


def env_factory(name: str) -> Callable[..., BatchedEnv]:
    """What was registered as ``name``. Raises ValueError for an unknown name (the message gives the nearest match)."""
    if name not in _FACTORIES:
        raise ValueError(
            f"unknown environment {name!r}; known: {', '.join(env_names())}{did_you_mean(name, env_names())}"
        )
    return _FACTORIES[name]


def make_env(config: Mapping[str, Any]) -> BatchedEnv:
    """Build a batch of environments.

    Args:
        config: ``name`` (see ``env_names()``), ``num_lives`` (B), ``seed``, and the options of that environment.

    Raises:
        ValueError: an unknown name or option (the message gives the nearest match), or an option out of range.
    """
    options = dict(config)
    name = options.pop("name")
    factory = env_factory(name)
    _check_option_names(name, factory, options)
    return factory(**options)


def _check_option_names(name: str, factory: Callable[..., BatchedEnv], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # the factory checks for itself
    for option in options:
        if option not in parameters:
            hint = did_you_mean(option, parameters)
            raise ValueError(f"environment {name!r} has no option {option!r}; allowed: {', '.join(parameters)}{hint}")
