"""Wrappers by name, for the option ``wrappers`` of the Gymnasium and MiniGrid environments.

    wrappers: [{name: continuing}, {name: action_remap, schedule: {name: markov, regimes: 4, hazard: 0.001}}]

The first stands innermost. Each is a Gymnasium wrapper too, see the modules ``wrapper_*``; other people's wrappers go
inside the first of them, never between two or, where the memory outlives an episode, around (refused).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium

from lifelong.envs.life_wrapper import LifeWrapper
from lifelong.envs.options import did_you_mean
from lifelong.envs.wrapper_continuing import Continuing
from lifelong.envs.wrapper_drift_physics import DriftPhysics
from lifelong.envs.wrapper_goal_relocate import GoalRelocate
from lifelong.envs.wrapper_lifetime import Lifetime
from lifelong.envs.wrapper_permutations import ActionRemap, ObservationPermute
from lifelong.envs.wrapper_wind import Wind

WRAPPERS: dict[str, type[LifeWrapper]] = {
    kind.name: kind
    for kind in (Continuing, Lifetime, ActionRemap, Wind, GoalRelocate, ObservationPermute, DriftPhysics)
}


def wrap_environments(
    owner: str,
    environments: Sequence[gymnasium.Env[Any, Any]],
    wrappers: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[gymnasium.Env[Any, Any]]:
    """Put the wrappers around each environment.

    Args:
        owner: the environment's registered name, for messages.
        environments: what to wrap.
        wrappers: ``name`` and options of each, the innermost first.
        defaults: options by wrapper name, taken where the config does not give them.

    Raises:
        ValueError: an unknown wrapper or option (with the nearest match), an option out of range, a wrapper on an
            environment that it does not fit, or one that stands twice.
    """
    wrapped = list(environments)
    for kind, options in _parse(owner, wrappers):
        options = {**(defaults or {}).get(kind.name, {}), **options}
        try:
            wrapped = [kind(environment, **options) for environment in wrapped]
        except ValueError as error:
            raise ValueError(f"{owner}: wrapper {error}") from error
    return wrapped


def ends_of_episodes(
    owner: str, wrappers: Sequence[Mapping[str, Any]], reset_memory: str, limit_option: str, limit: int | None
) -> Literal["own", "none"]:
    """Whether episodes still have ends of the environment's own, under these wrappers.

    Raises:
        ValueError: options that contradict each other, such as a life without end whose memory is dropped at ends.
    """
    names = [kind.name for kind, _ in _parse(owner, wrappers)]
    if Continuing.name in names and Lifetime.name in names:
        raise ValueError(
            f"{owner}: the wrappers continuing and lifetime exclude each other: no end, or one after k episodes"
        )
    if Continuing.name in names:
        if reset_memory != "life":
            raise ValueError(f"{owner}: the wrapper continuing needs reset_memory=life: its episodes have no ends")
        if limit not in (None, -1):
            raise ValueError(
                f"{owner}: {limit_option}={limit} is not allowed with the wrapper continuing; leave it null"
            )
        return "none"
    if Lifetime.name in names and reset_memory != "episode":
        raise ValueError(f"{owner}: the wrapper lifetime needs reset_memory=episode: it ends lives itself")
    return "own"


def _parse(owner: str, wrappers: Any) -> list[tuple[type[LifeWrapper], dict[str, Any]]]:
    """Classes and options, their names checked."""
    if isinstance(wrappers, str | Mapping) or not isinstance(wrappers, Sequence):
        raise ValueError(
            f"{owner}: wrappers={wrappers!r} is not allowed; allowed: a list such as [{{name: continuing}}]"
        )
    parsed: list[tuple[type[LifeWrapper], dict[str, Any]]] = []
    for wrapper in wrappers:
        if not isinstance(wrapper, Mapping) or "name" not in wrapper:
            raise ValueError(
                f"{owner}: the wrapper {wrapper!r} is not allowed; allowed: a mapping such as {{name: continuing}}"
            )
        options = dict(wrapper)
        name = options.pop("name")
        if name not in WRAPPERS:
            known = ", ".join(WRAPPERS)
            raise ValueError(f"{owner}: unknown wrapper {name!r}; known: {known}{did_you_mean(name, WRAPPERS)}")
        kind = WRAPPERS[name]
        parameters = dict(inspect.signature(kind).parameters)
        del parameters["env"]
        for option in options:
            if option not in parameters:
                allowed = ", ".join(parameters)
                near = did_you_mean(option, parameters)
                raise ValueError(f"{owner}: the wrapper {name} has no option {option!r}; allowed: {allowed}{near}")
        for option, parameter in parameters.items():
            if parameter.default is parameter.empty and option not in options:
                raise ValueError(f"{owner}: the wrapper {name} needs the option {option!r}")
        same = [other for other_kind, other in parsed if other_kind is kind]
        if any(other.get("parameter") == options.get("parameter") for other in same):
            raise ValueError(
                f"{owner}: the wrapper {name} stands twice; allowed: once (drift_physics: once per parameter)"
            )
        parsed.append((kind, options))
    return parsed
