"""Speed of MiniGrid: CPU microseconds per environment step with random actions, restarts included.

``stock`` is ``gymnasium.make`` in a loop; ``view`` the same environment, unwrapped, with the observation of
``PartialView``; ``batch`` is ``make_env`` with B lives, tensors and all. The three take turns within a round; medians
over rounds, ratios to stock.

python benchmarks/minigrid_speed.py [--lives 32] [--rounds 9] [--ids MiniGrid-MemoryS7-v0 ...]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from lifelong.envs import make_env
from lifelong.envs.minigrid_observation import PartialView

IDS = (
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-MemoryS13-v0",
    "MiniGrid-Empty-8x8-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-Dynamic-Obstacles-8x8-v0",
    "BabyAI-GoToLocal-v0",
)


def single(environment: Any) -> Callable[[int], None]:
    """Steps one environment."""
    actions = np.random.default_rng(0).integers(0, environment.action_space.n, 1000).tolist()
    environment.reset(seed=0)

    def run(steps: int) -> None:
        for t in range(steps):
            _, _, terminated, truncated, _ = environment.step(actions[t % 1000])
            if terminated or truncated:
                environment.reset()

    return run


def batch(id: str, num_lives: int) -> Callable[[int], None]:
    """Steps a batch, ``steps`` counting the steps of all its lives."""
    env = make_env({"name": "minigrid", "id": id, "num_lives": num_lives, "seed": 0})
    actions = torch.randint(env.action_spec.n, (1000, num_lives), generator=torch.Generator().manual_seed(0))
    env.reset()

    def run(steps: int) -> None:
        for t in range(steps // num_lives):
            env.step(actions[t % 1000])

    return run


def microseconds(run: Callable[[int], None], steps: int) -> float:
    start = time.process_time()
    with contextlib.redirect_stdout(None):  # BabyAI's own prints
        run(steps)
    return (time.process_time() - start) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1920)
    parser.add_argument("--ids", nargs="+", default=IDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'us per step':36} {'stock':>7} {'view':>7} {'batch':>7}   ratios")
    for id in arguments.ids:
        bare = gymnasium.make(id, disable_env_checker=True).unwrapped
        PartialView(bare).install()
        with contextlib.redirect_stdout(None):
            runs = [single(gymnasium.make(id)), single(bare), batch(id, arguments.lives)]
        rounds = [[microseconds(run, arguments.steps) for run in runs] for _ in range(arguments.rounds)]
        stock, view, batched = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"{id:36} {stock:7.1f} {view:7.1f} {batched:7.1f}   {stock / view:.1f}, {stock / batched:.1f}", flush=True
        )


if __name__ == "__main__":
    main()
