"""What a score on the MiniGrid memory tasks can be read against; the figures stand in ``envs/episode_references.py``.

Random actions are simulated. The others are exact: the layouts of an id differ in the agent's start and in two coin
tosses, so that shortest paths over (cell, direction) in each of them give the expectation.

python benchmarks/minigrid_references.py [--episodes 4000]
"""

from __future__ import annotations

import argparse
import statistics
from collections import deque
from typing import Any

import gymnasium
import torch

from lifelong.envs import make_env

State = tuple[int, int, int]  # column, row, direction
NAMES = ("minigrid_memory_s7", "minigrid_memory_s9", "minigrid_memory_s13")


def random_return(name: str, episodes: int, num_lives: int = 64) -> tuple[float, float, int]:
    """Mean return of uniform random actions, its standard error, and the number of episodes that it was taken over."""
    env = make_env({"name": name, "num_lives": num_lives, "seed": 0})
    env.reset()
    generator = torch.Generator().manual_seed(0)
    returns: list[list[float]] = [[] for _ in range(num_lives)]
    running = torch.zeros(num_lives, dtype=torch.float64)
    per_life = -(-episodes // num_lives)
    while min(map(len, returns)) < per_life:  # as many of each life: waiting for a total would favour short episodes
        step = env.step(torch.randint(env.action_spec.n, (num_lives,), generator=generator))
        running += step.reward
        for life in torch.nonzero(step.terminated | step.truncated).flatten().tolist():
            returns[life].append(float(running[life]))
            running[life] = 0.0
    counted = [value for life in returns for value in life[:per_life]]
    return statistics.fmean(counted), statistics.stdev(counted) / len(counted) ** 0.5, len(counted)


def distances(env: Any, start: State) -> dict[State, int]:
    """Steps from ``start`` to every reachable state; the two cells that end the episode are not passed through."""
    found, queue = {start: 0}, deque([start])
    while queue:
        x, y, direction = state = queue.popleft()
        if (x, y) in (env.success_pos, env.failure_pos):
            continue
        ahead = (x + (direction == 0) - (direction == 2), y + (direction == 1) - (direction == 3))
        cell = env.grid.get(*ahead)
        neighbours = [(x, y, (direction + turn) % 4) for turn in (1, 3)]
        if cell is None or cell.can_overlap():
            neighbours.append((*ahead, direction))
        for neighbour in neighbours:
            if neighbour not in found:
                found[neighbour] = found[state] + 1
                queue.append(neighbour)
    return found


def to_cell(found: dict[State, int], cell: tuple[int, int]) -> int:
    return min(found[(*cell, direction)] for direction in range(4) if (*cell, direction) in found)


def sees(env: Any, state: State, cell: tuple[int, int]) -> bool:
    """Whether the agent at ``state`` sees ``cell``."""
    env.agent_pos, env.agent_dir = state[:2], state[2]
    where = env.relative_coords(*cell)
    return where is not None and bool(env.gen_obs()["image"][(*where, 0)])


def exact_returns(id: str, view_size: int) -> tuple[float, float, float]:
    """Mean returns of (knowing the side, learning it, always one side), over the layouts of ``id``."""
    env: Any = gymnasium.make(id, agent_view_size=view_size).unwrapped
    oracle, learner, guess = {}, {}, {}
    for seed in range(400):
        env.reset(seed=seed)
        start: State = (int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir))
        middle, end = env.height // 2, env.success_pos[0]
        layout = (start, env.success_pos)
        if layout in oracle:
            continue
        cue, sides = (1, middle - 1), [(end, middle - 1), (end, middle + 1)]
        objects = [(end, middle - 2), (end, middle + 2)]
        paths = {state: distances(env, state) for state in distances(env, start) if state[:2] not in sides}
        rest = {state: statistics.fmean(to_cell(paths[state], side) for side in sides) for state in paths}
        shows_cue = {state for state in paths if sees(env, state, cue)}
        shows_object = {state for state in paths if any(sees(env, state, at) for at in objects)}
        steps = to_cell(paths[start], env.success_pos)
        oracle[layout] = value(env, steps)
        guess[layout] = value(env, to_cell(paths[start], sides[1])) if env.success_pos == sides[1] else 0.0
        looked_at_both = min(  # whichever it looks at first; the side is known only afterwards
            paths[start][first] + paths[first][second] + rest[second]
            for one, other in ((shows_cue, shows_object), (shows_object, shows_cue))
            for first in one
            for second in other
        )
        learner[layout] = value(env, looked_at_both)
    return statistics.fmean(oracle.values()), statistics.fmean(learner.values()), statistics.fmean(guess.values())


def value(env: Any, steps: float) -> float:
    """What success after ``steps`` steps pays."""
    return 1 - 0.9 * steps / env.max_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=4000)
    arguments = parser.parse_args()
    print(f"{'environment':22} {'random (s.e.)':>18} {'one side':>9} {'learner':>9} {'oracle':>9}")
    for name in NAMES:
        env = make_env({"name": name, "num_lives": 1, "seed": 0})
        oracle, learner, guess = exact_returns(env.name, env.observation_spec["image"].shape[0])
        mean, error, _ = random_return(name, arguments.episodes)
        print(f"{name:22} {mean:10.4f} ({error:.4f}) {guess:9.4f} {learner:9.4f} {oracle:9.4f}", flush=True)


if __name__ == "__main__":
    main()
