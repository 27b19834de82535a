"""Speed of the batched environments, in env steps per CPU-second; or with ``--soak`` what a long life of any
environment leaves behind in memory.

python benchmarks/batched_envs.py [--lives 256] [--only NAME ...] [--faces]
python benchmarks/batched_envs.py --soak 1000000 [--only NAME ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from typing import Any

import torch

from lifelong.envs import env_names, make_env
from lifelong.envs.batched import TensorEnv
from lifelong.envs.gymnasium_face import LifelongVectorEnv
from lifelong.envs.registry import env_factory
from lifelong.envs.torchrl_face import TorchRLEnv


def resident_mebibytes() -> float:
    """Memory of this process now (Linux), not at its peak."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def steps_per_second(env: TensorEnv[Any], rounds: int = 7, steps: int = 300) -> tuple[float, float]:
    """Env steps per CPU-second (of this process, all its threads): median and best of ``rounds``."""
    plan = torch.randint(env.num_actions, (steps, env.num_lives), device=env.device)
    env.reset()
    rates = []
    for _ in range(rounds + 1):
        start = time.process_time()
        for action in plan:
            env.step(action)
        rates.append(steps * env.num_lives / (time.process_time() - start))
    return statistics.median(rates[1:]), max(rates[1:])


def faces_steps_per_second(name: str, lives: int, steps: int = 200) -> tuple[float, float]:
    """Env steps per CPU-second through the TorchRL face (``step_and_maybe_reset``) and the Gymnasium face."""
    torchrl_face = TorchRLEnv({"name": name, "num_lives": lives, "seed": 0})
    plan = torch.randint(torchrl_face.env.num_actions, (steps, lives))
    carried = torchrl_face.reset()
    start = time.process_time()
    for action in plan:
        carried = torchrl_face.step_and_maybe_reset(carried.set("action", action))[1]
    through_torchrl = steps * lives / (time.process_time() - start)
    gymnasium_face = LifelongVectorEnv(name, lives)
    gymnasium_face.reset(seed=0)
    actions = plan.numpy()
    start = time.process_time()
    for action in actions:
        gymnasium_face.step(action)
    return through_torchrl, steps * lives / (time.process_time() - start)


#: what is soaked beside every registered environment: all wrappers, over MiniGrid and over Gymnasium
_OFTEN = {"name": "markov", "regimes": 4, "hazard": 0.01}
WRAPPED: dict[str, dict[str, Any]] = {
    "minigrid, wrapped": {
        "name": "minigrid",
        "id": "MiniGrid-Empty-8x8-v0",
        "reset_memory": "life",
        "wrappers": [
            {"name": "continuing"},
            {"name": "goal_relocate", "schedule": _OFTEN},
            {"name": "action_remap", "schedule": _OFTEN},
            {"name": "wind", "schedule": _OFTEN},
            {"name": "observation_permute", "schedule": _OFTEN},
        ],
    },
    "minigrid, lifetime": {"name": "minigrid", "wrappers": [{"name": "lifetime", "episodes": 10}]},
    "gymnasium, wrapped": {
        "name": "gymnasium",
        "reset_memory": "life",
        "wrappers": [
            {"name": "continuing"},
            {
                "name": "drift_physics",
                "parameter": "gravity",
                "schedule": {"name": "sine", "mean": 9.8, "amplitude": 2.0, "period": 1000},
            },
            {"name": "action_remap", "schedule": {"name": "square", "low": 0.0, "high": 1.0, "period": 200}},
        ],
    },
}


def soak(config: dict[str, Any], steps: int, lives: int = 8) -> tuple[float, float]:
    """Growth of the process's memory in MiB over ``steps`` steps of random actions, after the first tenth, and the
    env steps per CPU-second."""
    env = make_env({"num_lives": lives, "seed": 0, **config})
    spec = env.action_spec.expand(997, lives, *env.action_spec.shape)
    plan = spec.rand()
    env.reset()
    before, start = 0.0, time.process_time()
    for t in range(steps):
        if t == steps // 10:
            before = resident_mebibytes()
        env.step(plan[t % len(plan)])
    return resident_mebibytes() - before, steps * lives / (time.process_time() - start)


def main() -> None:
    factories = {name: env_factory(name) for name in env_names()}
    batched = [name for name, kind in factories.items() if isinstance(kind, type) and issubclass(kind, TensorEnv)]
    soaked: dict[str, dict[str, Any]] = {**{name: {"name": name} for name in factories}, **WRAPPED}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=256, help="B")
    parser.add_argument("--only", nargs="+", choices=list(soaked), metavar="NAME", help=", ".join(soaked))
    parser.add_argument("--faces", action="store_true", help="also step through the TorchRL and the Gymnasium face")
    parser.add_argument("--soak", type=int, metavar="STEPS", help="step 8 lives so often, and report memory growth")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load = f"one thread, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    if arguments.soak:
        print(f"{load}; {arguments.soak:,} steps of 8 lives", flush=True)
        for name in arguments.only or soaked:
            growth, rate = soak(soaked[name], arguments.soak)
            print(f"{name:24s} {growth:+7.2f} MiB   {rate / 1e3:8.1f} k env steps/CPU-s", flush=True)
        return
    print(f"{load}, B = {arguments.lives}")
    for name in arguments.only or batched:
        if name not in batched:
            parser.error(f"{name} is none of the batched suite; allowed: {', '.join(batched)}")
        env = make_env({"name": name, "num_lives": arguments.lives, "seed": 0})
        assert isinstance(env, TensorEnv)
        median, best = steps_per_second(env)
        print(f"{name:24s} {median / 1e6:6.2f} M env steps/CPU-s (best {best / 1e6:.2f})", flush=True)
        if arguments.faces:
            through_torchrl, through_gymnasium = faces_steps_per_second(name, arguments.lives)
            print(
                f"{'':24s} {through_torchrl / 1e6:6.2f} M TorchRL face, {through_gymnasium / 1e6:.2f} M Gymnasium face"
            )


if __name__ == "__main__":
    main()
