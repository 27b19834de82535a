"""Frames per CPU-second of recurrent PPO on MiniGrid-MemoryS7, ours beside other people's, in one run.

    pip install sb3-contrib torch-ac
    python benchmarks/peers.py [rounds=3] [updates=20] [only=lifelong,lifelong-64,torch-ac,sb3-contrib]

Everybody: 16 environments, 7x7 view, segments of 128 steps, 4 epochs, one thread, a memory of width 64. Theirs are
LSTMs at their own defaults otherwise (torch-ac is what rl-starter-files trains with: convolutions, batches of 256,
gradients through 4 steps; sb3-contrib: dense layers, batches of 256). Ours is gated delta, gradients through 128 steps:
"lifelong" with the four heads of 32 that it comes with, twice as wide as theirs, "lifelong-64" with two.
Each is a process of its own, and so is CPU time: of the process and its children, of ``updates`` updates less of one,
so that importing is no part of it. They take turns; medians over the rounds. (CleanRL's LSTM script reads frames of
84 x 84 only.)
"""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

ENV, ENVS, SEGMENT, WIDTH = "MiniGrid-MemoryS7-v0", 16, 128, 64


def lifelong(updates: int, heads: int = 4) -> None:
    from lifelong.experiments.cli import main

    words = [f"env.num_lives={ENVS}", f"algorithm.segment={SEGMENT}", "algorithm.minibatches=2", f"agent.width={WIDTH}"]
    words.append(f"memory.heads={heads}")
    with tempfile.TemporaryDirectory() as home:
        frames = f"frames={updates * ENVS * SEGMENT}"
        main(["train", "env=minigrid_memory_s7", "memory=gated_delta", *words, frames, f"out={home}/run"])


def sb3_contrib(updates: int) -> None:
    import gymnasium
    import minigrid  # noqa: F401 - registers the environment
    import torch
    from gymnasium.wrappers import FlattenObservation
    from minigrid.wrappers import ImgObsWrapper
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    envs = make_vec_env(lambda: FlattenObservation(ImgObsWrapper(gymnasium.make(ENV))), n_envs=ENVS)
    model = RecurrentPPO(
        "MlpLstmPolicy", envs, n_steps=SEGMENT, n_epochs=4, batch_size=256, policy_kwargs={"lstm_hidden_size": WIDTH}
    )
    model.learn(updates * ENVS * SEGMENT)


def torch_ac(updates: int) -> None:
    import gymnasium
    import minigrid  # noqa: F401 - registers the environment
    import torch
    from torch import Tensor, nn
    from torch.distributions import Categorical
    from torch_ac import DictList, PPOAlgo

    class Model(nn.Module):
        """Three convolutions, an LSTM, two heads: the sizes of rl-starter-files."""

        recurrent, memory_size = True, 2 * WIDTH

        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Sequential(
                *(nn.Conv2d(3, 16, 2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(16, 32, 2), nn.ReLU(), nn.Conv2d(32, 64, 2), nn.ReLU(), nn.Flatten()),
            )
            self.memory = nn.LSTMCell(64, WIDTH)
            self.actor = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 7))
            self.critic = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

        def forward(self, observation: Any, memory: Tensor) -> tuple[Categorical, Tensor, Tensor]:
            hidden = self.memory(self.image(observation.image), tuple(memory.chunk(2, 1)))
            logits = self.actor(hidden[0]).log_softmax(1)
            return Categorical(logits=logits), self.critic(hidden[0]).squeeze(1), torch.cat(hidden, 1)

    def stacked(observations: list[dict[str, Any]], device: torch.device | None = None) -> DictList:
        images = torch.stack([torch.as_tensor(each["image"]) for each in observations])
        return DictList({"image": images.permute(0, 3, 1, 2).float()})

    torch.set_num_threads(1)
    envs = [gymnasium.make(ENV) for _ in range(ENVS)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    algorithm = PPOAlgo(envs, Model(), torch.device("cpu"), SEGMENT, preprocess_obss=stacked)
    for _ in range(updates):
        experiences, _ = algorithm.collect_experiences()
        algorithm.update_parameters(experiences)


CONTENDERS: dict[str, Callable[[int], None]] = {
    "lifelong": lifelong,
    "lifelong-64": partial(lifelong, heads=2),
    "torch-ac": torch_ac,
    "sb3-contrib": sb3_contrib,
}


def cpu_seconds(name: str, updates: int) -> float:
    """Of a process that trains for ``updates`` updates, and of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "--one", name, str(updates)]
    result = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{name} failed:\n{result.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        CONTENDERS[sys.argv[2]](int(sys.argv[3]))
        return
    options = {"rounds": "3", "updates": "20", "only": ",".join(CONTENDERS)}
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        if key not in options:
            raise SystemExit(f"{word}: allowed are {', '.join(options)}")
        options[key] = value
    names = [name for name in options["only"].split(",") if _installed(name)]
    rounds, updates = int(options["rounds"]), int(options["updates"])
    frames = (updates - 1) * ENVS * SEGMENT
    rates: dict[str, list[float]] = {name: [] for name in names}
    print(f"{ENV}, {frames:,} frames, {rounds} rounds; 1-minute load {os.getloadavg()[0]:.1f}", flush=True)
    for _ in range(rounds):
        for name in names:
            rates[name].append(frames / (cpu_seconds(name, updates) - cpu_seconds(name, 1)))
    ours = {name: statistics.median(found) for name, found in rates.items() if name.startswith("lifelong")}
    for name, found in rates.items():
        middle = statistics.median(found)
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        over = ", ".join(f"{each} over it {rate / middle:.1f}" for each, rate in ours.items())
        print(f"{name:<12} {middle:>7,.0f} frames per CPU-second ({spread}); {over}")


def _installed(name: str) -> bool:
    there = importlib.util.find_spec(name.removesuffix("-64").replace("-", "_")) is not None
    if not there:
        print(f"{name}: not installed, left out")
    return there


if __name__ == "__main__":
    main()
