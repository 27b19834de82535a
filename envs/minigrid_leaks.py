"""Search for poses that give a MiniGrid memory task away: the cue and the place of its use, seen together.

An agent that can stand where one observation shows both needs no memory. MiniGrid-MemoryS7 and S9 with their view of
7 x 7 are such tasks; with 3 x 3 they are not.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from minigrid.core.constants import DIR_TO_VEC
from minigrid.envs import MemoryEnv

Pose = tuple[int, int, int]  # column, row, direction


class LeakSearch(NamedTuple):
    """What was found."""

    layouts: int  # worlds that were drawn
    leaking: int  # of them, with a reachable pose that shows both
    poses: int  # reachable poses over all layouts
    telling: int  # of them, those that show both
    example: Pose | None  # the first of these

    def __str__(self) -> str:
        where = ""
        if self.example is not None:
            x, y, direction = self.example
            where = f"; for example at column {x}, row {y}, direction {direction}"
        return (
            f"{self.leaking} of {self.layouts} layouts have a reachable pose that shows cue and goal together "
            f"({self.telling} of {self.poses} poses{where})"
        )


def search_leaks(environment: MemoryEnv, layouts: int = 100, seed: int = 0) -> LeakSearch:
    """Look from every reachable pose of ``layouts`` worlds.

    Args:
        environment: a MiniGrid memory task (unwrapped), with the view that the agent has; its world is drawn anew.
        layouts: worlds to draw.
        seed: of the first.
    """
    leaking = poses = telling = 0
    example: Pose | None = None
    for layout in range(layouts):
        environment.reset(seed=seed if layout == 0 else None)
        cue, ends = _places(environment)
        reachable = _reachable(environment)
        found = [pose for pose in reachable if _shows(environment, pose, cue, ends)]
        poses += len(reachable)
        telling += len(found)
        leaking += bool(found)
        example = example or (found[0] if found else None)
    return LeakSearch(layouts, leaking, poses, telling, example)


def _places(environment: MemoryEnv) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """The cells of the cue, and of the two objects at the end of the corridor, one of which is like it."""
    middle = environment.height // 2
    column = int(environment.success_pos[0])
    return (1, middle - 1), [(column, middle - 2), (column, middle + 2)]


def _reachable(environment: MemoryEnv) -> list[Pose]:
    """Poses that can be taken before the episode ends, from the agent's own on."""
    ends = {tuple(map(int, environment.success_pos)), tuple(map(int, environment.failure_pos))}
    x, y = environment.agent_pos
    start = (int(x), int(y), int(environment.agent_dir))
    found, queue = {start}, deque([start])
    while queue:
        x, y, direction = queue.popleft()
        step = DIR_TO_VEC[direction]
        ahead = (x + int(step[0]), y + int(step[1]))
        neighbours = [(x, y, (direction + turn) % 4) for turn in (1, 3)]
        cell = environment.grid.get(*ahead)
        if (cell is None or cell.can_overlap()) and ahead not in ends:
            neighbours.append((*ahead, direction))
        for neighbour in neighbours:
            if neighbour not in found:
                found.add(neighbour)
                queue.append(neighbour)
    return sorted(found)


def _shows(environment: MemoryEnv, pose: Pose, cue: tuple[int, int], ends: list[tuple[int, int]]) -> bool:
    """Whether the observation from ``pose`` shows the cue and one of the ends' objects."""
    position, direction = environment.agent_pos, environment.agent_dir
    environment.agent_pos, environment.agent_dir = np.array(pose[:2]), pose[2]
    try:
        seen = [environment.relative_coords(*cell) for cell in (cue, *ends)]
        if seen[0] is None or (seen[1] is None and seen[2] is None):
            return False  # not even behind a wall
        image = environment.gen_obs()["image"]
        shown = [place is not None and image[place][0] != 0 for place in seen]  # 0: hidden from view
        return bool(shown[0] and (shown[1] or shown[2]))
    finally:
        environment.agent_pos, environment.agent_dir = position, direction
