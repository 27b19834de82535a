"""POPGym's environments by id (Morad et al. 2023, *POPGym: Benchmarking Partially Observable Reinforcement Learning*).

The package is optional: ``pip install popgym``. Only its environments are used; its baselines need old libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from lifelong.envs.base import BatchedEnv, References
from lifelong.envs.gymnasium_env import ResetMemory, make_gymnasium
from lifelong.envs.options import did_you_mean
from lifelong.envs.registry import register_env

_PREFIX, _SUFFIX = "popgym-", "-v0"


@register_env("popgym")
def make_popgym(
    num_lives: int,
    seed: int,
    id: str = "RepeatPreviousEasy",
    reset_memory: ResetMemory = "episode",
    life_steps: int | None = None,
    max_episode_steps: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Mapping[str, Any]] = (),
    first_life: int = 0,
) -> BatchedEnv:
    """B environments of a POPGym id.

    Args:
        num_lives: B.
        seed: root of the environments' seeds.
        id: for example RepeatPreviousEasy; ``popgym-RepeatPreviousEasy-v0`` is understood too.
        reset_memory, life_steps, max_episode_steps, kwargs, wrappers, first_life: as for ``gymnasium``.

    Raises:
        ValueError: popgym is not installed, or an unknown id or option (with the nearest match).
        UnsupportedSpace: an observation or action space that is not served.
    """
    try:
        importlib.import_module("popgym")  # registers its ids
    except ImportError as error:
        raise ValueError(f"popgym: needs the package popgym ({error}); install it with: pip install popgym") from error
    short = id.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    known = popgym_ids()
    if short not in known:
        raise ValueError(f"popgym: unknown id {id!r}; known: {', '.join(known)}{did_you_mean(short, known)}")
    env = make_gymnasium(
        num_lives,
        seed,
        id=f"{_PREFIX}{short}{_SUFFIX}",
        reset_memory=reset_memory,
        life_steps=life_steps,
        max_episode_steps=max_episode_steps,
        kwargs=kwargs,
        wrappers=wrappers,
        first_life=first_life,
    )
    if max_episode_steps is None and not kwargs and not wrappers:
        env.references = POPGYM_REFERENCES.get(short)
    return env


def popgym_ids() -> list[str]:
    """The registered ids, without prefix and version; empty before popgym is imported."""
    ids = [id.removeprefix(_PREFIX) for id in gymnasium.registry if id.startswith(_PREFIX)]
    return sorted(id.removesuffix(_SUFFIX) for id in ids if id.endswith(_SUFFIX))


def _levels(random: float, note: str, order_free: float | None = None, order_free_note: str = "") -> References:
    """Returns of an episode in [-1, 1]: every right answer adds the same, and all right is 1."""
    notes = {"random": note, "oracle": "every answer right"}
    if order_free is not None:
        notes["order_free"] = order_free_note
    return References("episode", random, 1.0, order_free=order_free, notes=notes)


_CHANCE = "closed form: 2 / answers - 1, for a right answer adds as much as a wrong one takes"
_COUNTING = "answers the suit that is most probable by counts alone, without order; simulation over 2000 episodes"


def _chance(answers: int) -> References:
    return _levels(2 / answers - 1, _CHANCE)


#: by short id; published plateaus at the order-free floor are no memory of order
POPGYM_REFERENCES: dict[str, References] = {
    **{f"RepeatFirst{level}": _chance(4) for level in ("Easy", "Medium", "Hard")},
    **{f"Autoencode{level}": _chance(4) for level in ("Easy", "Medium", "Hard")},
    "RepeatPreviousEasy": _levels(-0.5, _CHANCE, -0.346, _COUNTING),
    "RepeatPreviousMedium": _levels(-0.5, _CHANCE, -0.429, _COUNTING),
    "RepeatPreviousHard": _levels(-0.5, _CHANCE, -0.447, _COUNTING),
    "CountRecallEasy": _chance(27),
    "CountRecallMedium": _chance(27),
    "CountRecallHard": _chance(17),
}
