"""``lifelong bench ppo``: frames per CPU-second of PPO on MiniGrid-MemoryS7, per core, and where the time goes.

32 environments, 7x7 view, segments of 128, 4 epochs of 2 minibatches, width 64, one thread. The cores take turns,
update by update, so that whatever else the machine does falls on all of them; the median update is reported. CPU
seconds are those of this process.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from lifelong.agents import Trainer
from lifelong.envs import BatchedEnv
from lifelong.experiments.build import build_env, build_trainer, set_up_process
from lifelong.experiments.config import group_names, load_config
from lifelong.experiments.errors import UserError, did_you_mean

_SETTINGS = [
    "env=minigrid_memory_s7",
    "algorithm.segment=128",
    "algorithm.epochs=4",
    "algorithm.minibatches=2",
    "agent.width=64",
]
_CORES = ["gated_delta", "linear_attention", "gru", "lstm", "none"]
_ROW = "{:<18} {:>12} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12}"


class _Timed:
    """An environment that adds up the CPU time of its steps."""

    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        started = time.process_time()
        result = self.env.step(action)
        self.seconds += time.process_time() - started
        return result


def main(arguments: list[str]) -> int:
    """``lifelong bench ppo [memory=a,b,...] [updates=N] [key=value ...]``."""
    cores, updates, overrides = _CORES, 7, []
    for word in arguments:
        key, _, value = word.partition("=")
        if key == "memory":
            cores = value.split(",")
            for core in cores:
                if core not in group_names("memory"):
                    known = group_names("memory")
                    raise UserError(f"memory={core}: unknown; allowed: {', '.join(known)}{did_you_mean(core, known)}")
        elif key == "updates":
            if not value.isdigit() or int(value) < 1:
                raise UserError(f"{word}: must be 1 or more")
            updates = int(value)
        else:
            overrides.append(word)
    runs = [_build(core, overrides) for core in cores]
    rows: dict[str, list[tuple[float, float, float]]] = {core: [] for core in cores}
    for round_number in range(updates + 1):
        for core, (trainer, env) in zip(cores, runs, strict=True):
            env.seconds = 0.0
            trainer.update()
            if round_number:  # the first update compiles, allocates and fills caches
                rows[core].append((env.seconds, trainer.timings["collect"] - env.seconds, trainer.timings["update"]))
    frames = runs[0][0].config.segment * runs[0][1].num_lives
    load = os.getloadavg()[0]
    print(f"PPO, {' '.join([*_SETTINGS, *overrides])}; medians of {updates} updates; 1-minute load {load:.1f}")
    print(_ROW.format("core", "frames/CPU-s", "us/frame", "env", "policy", "update", "state bytes", "parameters"))
    for core, (trainer, _) in zip(cores, runs, strict=True):
        total = statistics.median(sum(row) for row in rows[core])
        parts = [statistics.median(part) / frames * 1e6 for part in zip(*rows[core], strict=True)]
        size = sum(weight.numel() for weight in trainer.agent.parameters())
        cells = [f"{frames / total:,.0f}", f"{total / frames * 1e6:.0f}", *(f"{part:.0f}" for part in parts)]
        print(_ROW.format(core, *cells, f"{trainer.agent.core.state_bytes():,}", f"{size:,}"))
    return 0


def _build(core: str, overrides: list[str]) -> tuple[Trainer, _Timed]:
    config = load_config([*_SETTINGS, f"memory={core}", *overrides])
    device = set_up_process(config)
    env = _Timed(build_env(config, config.seed))
    return build_trainer(config, env, device), env  # type: ignore[arg-type]
