"""Any MiniGrid or BabyAI id, its observation built fast (``minigrid_observation``), with options for memory tasks.

What the agent sees: ``image`` uint8 [view, view, 3], each cell as (object, colour, state) indices, whose spec says how
many of each there are, so that an encoder can one-hot or embed them; ``direction`` and ``mission`` on request.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium
import minigrid  # noqa: F401  (registers the ids)
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing
from minigrid.core.actions import Actions
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.minigrid_env import MiniGridEnv
from torchrl.data import Categorical, MultiCategorical

from lifelong.envs.base import UnsupportedSpace
from lifelong.envs.episode_references import MINIGRID_REFERENCES
from lifelong.envs.gymnasium_env import GymnasiumEnv, ResetMemory, build_environment, episode_limit
from lifelong.envs.minigrid_missions import LONGEST_MISSION, VOCABULARY_SIZE, MissionTokens
from lifelong.envs.minigrid_observation import PartialView
from lifelong.envs.options import check_choice, check_count, did_you_mean
from lifelong.envs.registry import register_env
from lifelong.envs.spaces import DiscreteActions, Entry, ObservationLayout
from lifelong.envs.wrapper_continuing import NO_STEP_LIMIT, ConstantReward
from lifelong.envs.wrappers import ends_of_episodes, wrap_environments

_MEMORY_ACTIONS = ("left", "right", "forward")


@register_env("minigrid")
def make_minigrid(
    num_lives: int,
    seed: int,
    id: str = "MiniGrid-MemoryS7-v0",
    view_size: int | None = None,
    direction: bool = False,
    mission: Literal["drop", "tokens"] = "drop",
    mission_length: int = LONGEST_MISSION,
    actions: Sequence[int | str] | None = None,
    constant_reward: bool = False,
    max_steps: int | None = None,
    see_through_walls: bool | None = None,
    reset_memory: ResetMemory = "episode",
    life_steps: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Mapping[str, Any]] = (),
    first_life: int = 0,
) -> GymnasiumEnv:
    """B environments of a MiniGrid or BabyAI id.

    Args:
        num_lives: B.
        seed: root of the environments' seeds.
        id: a registered id of a MiniGrid environment.
        view_size: cells on a side of the agent's view, odd, at least 3; None: the id's own (7).
        direction: show ``direction`` (an absolute compass, 0 to 3: it gives away what a memory task asks to remember).
        mission: "drop", or "tokens": int64 [mission_length], see ``minigrid_missions``.
        mission_length: length that token ids are padded to.
        actions: indices or names of the actions that the agent has, in this order; None: all of the id's.
        constant_reward: success pays 1 instead of 1 - 0.9 t / max_steps.
        max_steps: steps until truncation; None: the id's own; -1: no limit.
        see_through_walls: None: the id's own.
        reset_memory: "episode": ends of episodes end the life; "life": they are soft resets.
        life_steps: with reset_memory="life", cut a life after this many steps; None: never.
        kwargs: passed on to ``gymnasium.make``.
        wrappers: what is put around each environment, the innermost first: ``name`` and options, see ``wrappers``.
            ``action_remap`` permutes the agent's ``actions`` unless it names others.
        first_life: index of the first life, to split a batch over processes.

    Raises:
        ValueError: an unknown id, action or option value, or a wrapper that does not fit.
        UnsupportedSpace: the id is no MiniGrid environment, or wraps its image away.
    """
    check_count("minigrid", "num_lives", num_lives)
    check_choice("minigrid", "mission", mission, ("drop", "tokens"))
    check_count("minigrid", "mission_length", mission_length)
    if view_size is not None and (check_count("minigrid", "view_size", view_size, low=3) % 2 == 0):
        raise ValueError(f"minigrid: view_size={view_size} is not allowed; allowed: odd integers of at least 3")
    options = dict(kwargs or {})
    limit = episode_limit("minigrid", "max_steps", max_steps)
    ends_of_episodes("minigrid", wrappers, reset_memory, "max_steps", limit)
    if limit is not None:
        options["max_steps"] = NO_STEP_LIMIT if limit == -1 else limit
    environments = []
    for _ in range(num_lives):
        environment = _build(id, options)
        base = environment.unwrapped
        if view_size is not None:
            base.agent_view_size = view_size
            image_space = spaces.Box(0, 255, (view_size, view_size, 3), np.uint8)
            base.observation_space = spaces.Dict({**base.observation_space.spaces, "image": image_space})
        if see_through_walls is not None:
            base.see_through_walls = see_through_walls
        if constant_reward:
            base._reward = ConstantReward(1.0)
        environments.append(environment)

    actions_of_id = int(environments[0].action_space.n)
    choices = list(range(actions_of_id)) if actions is None else _action_indices(actions, actions_of_id)
    environments = wrap_environments("minigrid", environments, wrappers, {"action_remap": {"actions": choices}})
    known = (id, int(environments[0].unwrapped.agent_view_size), tuple(choices))
    standard = not constant_reward and see_through_walls is None and not options and not wrappers
    return GymnasiumEnv(
        environments,
        minigrid_layout(environments[0], id, direction, mission_length if mission == "tokens" else None),
        DiscreteActions(len(choices), choices=choices),
        name=id,
        seed=seed,
        reset_memory=reset_memory,
        life_steps=life_steps,
        references=MINIGRID_REFERENCES.get(known) if standard else None,
        first_life=first_life,
    )


register_env("minigrid_memory_s7")(partial(make_minigrid, id="MiniGrid-MemoryS7-v0"))
register_env("minigrid_memory_s9")(
    partial(make_minigrid, id="MiniGrid-MemoryS9-v0", view_size=3, actions=_MEMORY_ACTIONS)
)
register_env("minigrid_memory_s13")(
    partial(make_minigrid, id="MiniGrid-MemoryS13-v0", view_size=3, actions=_MEMORY_ACTIONS)
)


class BoundedPlacement:
    """Ends MiniGrid's search for a free cell, which never ends in a full room (some BabyAI levels come to that).

    After 10^5 draws ``place_obj`` raises RecursionError, as it does by itself when given ``max_tries``: BabyAI's levels
    then start over with another draw. A search that would have succeeded does so long before.
    """

    max_tries = 100_000

    def __init__(self, environment: MiniGridEnv) -> None:
        self.environment = environment

    def place_obj(
        self, obj: Any, top: Any = None, size: Any = None, reject_fn: Any = None, max_tries: float = math.inf
    ) -> Any:
        """``MiniGridEnv.place_obj`` with at most ``max_tries`` draws."""
        environment = self.environment
        tries = min(max_tries, self.max_tries)
        return type(environment).place_obj(environment, obj, top, size, reject_fn, tries)


class QuietReset(gymnasium.Wrapper):
    """Keeps BabyAI's "Sampling rejected" lines, dozens per hundred episodes, off the terminal."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        with contextlib.redirect_stdout(None):
            return self.env.reset(**arguments)


def _build(id: str, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    environment = build_environment("minigrid", id, None, options)
    while type(environment) is OrderEnforcing:
        environment = environment.env
    base = environment.unwrapped
    if not isinstance(base, MiniGridEnv):
        raise UnsupportedSpace(f"minigrid: {id} is no MiniGrid environment ({type(base).__name__}); use name=gymnasium")
    base.place_obj = BoundedPlacement(base).place_obj
    PartialView(base).install()
    return QuietReset(environment) if isinstance(base, RoomGridLevel) else environment


def _action_indices(actions: Sequence[int | str], count: int) -> list[int]:
    """Actions by name or index as indices, each allowed once."""
    names = [action.name for action in Actions][:count]
    indices = []
    for action in actions:
        if action in names:
            index = names.index(str(action))
        elif isinstance(action, int) and not isinstance(action, bool) and 0 <= action < count:
            index = action
        else:
            hint = did_you_mean(action, names)
            raise ValueError(
                f"minigrid: unknown action {action!r}; allowed: {', '.join(names)}, or 0 to {count - 1}{hint}"
            )
        indices.append(index)
    if not indices or len(set(indices)) < len(indices):
        raise ValueError(f"minigrid: actions={list(actions)!r} must name at least one action, and each once")
    return indices


def minigrid_layout(
    environment: gymnasium.Env[Any, Any], id: str, direction: bool, mission_length: int | None
) -> ObservationLayout:
    """What the agent sees of a MiniGrid environment. Raises UnsupportedSpace: its image is no grid of cells."""
    space = environment.observation_space
    image = space.spaces.get("image") if isinstance(space, spaces.Dict) else None
    if not isinstance(image, spaces.Box) or image.dtype != np.uint8 or len(image.shape) != 3 or image.shape[2] != 3:
        raise UnsupportedSpace(
            f"minigrid: observation 'image' of {id} is {image}; served is Box uint8 [width, height, 3]"
        )
    keeps_own = "gen_obs" not in vars(
        environment.unwrapped
    )  # such an image may show the agent, whose state is its direction
    sizes = np.array([len(OBJECT_TO_IDX), len(COLOR_TO_IDX), 4 if keeps_own else len(STATE_TO_IDX)], np.uint8)
    counts = torch.from_numpy(sizes.astype(np.int64)).expand(image.shape)
    entries = [
        Entry(
            "image",
            ("image",),
            tuple(image.shape),
            np.dtype(np.uint8),
            MultiCategorical(counts, dtype=torch.uint8),
            sizes=sizes,
        )
    ]
    if direction:
        entries.append(Entry("direction", ("direction",), (), np.dtype(np.int64), Categorical(4), sizes=4))
    if mission_length is not None:
        spec = Categorical(VOCABULARY_SIZE, shape=torch.Size([mission_length]))
        tokens = MissionTokens(mission_length)
        entries.append(Entry("mission", ("mission",), (mission_length,), np.dtype(np.int64), spec, convert=tokens))
    return ObservationLayout(entries)
