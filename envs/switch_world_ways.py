"""The shortest way to a ball in ``switch_world``."""

from __future__ import annotations

from collections import deque

from minigrid.core.actions import Actions
from minigrid.core.constants import DIR_TO_VEC
from minigrid.minigrid_env import MiniGridEnv

Cell = tuple[int, int]
PICK_UP = int(Actions.pickup)
_LEFT, _RIGHT, _FORWARD = 0, 1, 2


def shortest_way(environment: MiniGridEnv, targets: set[Cell]) -> list[int] | None:
    """The actions that pick up the nearest of the balls at ``targets`` (breadth-first over cell and direction).

    None: other balls block every way.
    """
    x, y = environment.agent_pos
    start = (int(x), int(y), int(environment.agent_dir))
    came: dict[tuple[int, int, int], tuple[tuple[int, int, int], int] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        x, y, direction = state
        step = DIR_TO_VEC[direction]
        ahead = (x + int(step[0]), y + int(step[1]))
        if ahead in targets:
            actions = [PICK_UP]
            while (link := came[state]) is not None:
                state, action = link
                actions.append(action)
            return actions[::-1]
        neighbours = [((x, y, (direction - 1) % 4), _LEFT), ((x, y, (direction + 1) % 4), _RIGHT)]
        if environment.grid.get(*ahead) is None:
            neighbours.append(((*ahead, direction), _FORWARD))
        for neighbour, action in neighbours:
            if neighbour not in came:
                came[neighbour] = (state, action)
                queue.append(neighbour)
    return None
