"""Speed and soak of the batched environments: env steps per CPU-second, and the memory that a long life leaves behind.

python benchmarks/batched_envs.py [--lives 256] [--only NAME ...] [--faces] [--soak 1000000]
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


def soak(env: TensorEnv[Any], steps: int) -> float:
    """Growth of the process's memory in MiB over ``steps`` steps, after the first tenth."""
    plan = torch.randint(env.num_actions, (997, env.num_lives), device=env.device)
    env.reset()
    before = 0.0
    for t in range(steps):
        if t == steps // 10:
            before = resident_mebibytes()
        env.step(plan[t % len(plan)])
    return resident_mebibytes() - before


def main() -> None:
    factories = {name: env_factory(name) for name in env_names()}
    batched = [name for name, kind in factories.items() if isinstance(kind, type) and issubclass(kind, TensorEnv)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lives", type=int, default=256, help="B")
    parser.add_argument("--only", nargs="+", choices=batched, default=batched, help="environments")
    parser.add_argument("--faces", action="store_true", help="also step through the TorchRL and the Gymnasium face")
    parser.add_argument(
        "--soak", type=int, metavar="STEPS", help="also step 8 lives so often, and report memory growth"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"one thread, B = {arguments.lives}, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in arguments.only:
        env = make_env({"name": name, "num_lives": arguments.lives, "seed": 0})
        assert isinstance(env, TensorEnv)
        median, best = steps_per_second(env)
        print(f"{name:24s} {median / 1e6:6.2f} M env steps/CPU-s (best {best / 1e6:.2f})", flush=True)
        if arguments.faces:
            through_torchrl, through_gymnasium = faces_steps_per_second(name, arguments.lives)
            print(
                f"{'':24s} {through_torchrl / 1e6:6.2f} M TorchRL face, {through_gymnasium / 1e6:.2f} M Gymnasium face"
            )
        if arguments.soak:
            small = make_env({"name": name, "num_lives": 8, "seed": 0})
            assert isinstance(small, TensorEnv)
            print(f"{'':24s} {soak(small, arguments.soak):+6.2f} MiB over {arguments.soak:,} steps", flush=True)


if __name__ == "__main__":
    main()
