"""Kill train, compare and evaluate with SIGKILL at random moments, call them again until they end (``resume`` in place
of ``train`` where there is a checkpoint), and compare what they leave with what an unbroken call leaves: weights, logs
and results, bit for bit on the CPU.

    python benchmarks/kills.py [kills=20] [seed=0] [out=runs/kills]

Every victim is a call of the command line. A life that is evaluated keeps its state twice a second here (once a minute
otherwise), so that kills fall between states too.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lifelong.experiments.checkpoint import latest_checkpoint, load_checkpoint

PYTHON = [sys.executable, "-c"]
CALL = "import sys; from lifelong.experiments import cli, evaluate; evaluate.SAVE_SECONDS = 0.5; sys.exit(cli.main({}))"
SMALL = ["checkpoint.every_frames=4000", "env.num_lives=16", "memory.heads=2", "memory.head_dim=8"]
TRAIN = ["env=switching_bandit", "frames=40000", *SMALL]
COMPARE = [
    "env=recall_stream",
    "memory=gated_delta,delta",
    "seeds=2",
    "learning_rates=1e-3,3e-3",
    "frames=8000",
    *SMALL,
]
# What differs between two runs that are the same: clocks, processes, places.
CLOCKED = {"microseconds_per_step", "cpu_microseconds_per_step", "microseconds", "process_bytes", "frames_per_second"}


def call(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [*PYTHON, CALL.format(words)],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def to_the_end(words: list[str], folder: Path) -> float:
    """Run unbroken; returns its seconds."""
    started = time.monotonic()
    process = call(words, folder)
    if process.wait() != 0:
        raise SystemExit(f"{words[0]} failed: {folder / 'log.txt'}")
    return time.monotonic() - started


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clocks(inner) for key, inner in value.items() if key not in CLOCKED}
    return [without_clocks(inner) for inner in value] if isinstance(value, list) else value


class Kept:
    """Whatever a checkpoint holds of the training."""

    state: Any = None

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def training_state(run: Path) -> Any:
    """Weights, optimiser, memory, generators and counters at the end of a run."""
    kept = Kept()
    load_checkpoint(latest_checkpoint(run / "checkpoints"), kept, None)
    return kept.state


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def runs_equal(a: Path, b: Path) -> bool:
    logs = (a / "progress.csv").read_bytes() == (b / "progress.csv").read_bytes()
    first, second = (without_clocks(json.loads((run / "summary.json").read_text())) for run in (a, b))
    return logs and bool(first == second) and same(training_state(a), training_state(b))


def trained_equal(a: Path, b: Path) -> bool:
    return runs_equal(a / "run", b / "run")


def compared_equal(a: Path, b: Path) -> bool:
    runs = [
        sorted(path.parent.relative_to(folder) for path in (folder / "all").rglob("summary.json")) for folder in (a, b)
    ]
    chosen = [
        [cell["learning_rate"] for cell in json.loads((folder / "all/compare.json").read_text())["cells"]]
        for folder in (a, b)
    ]
    return (
        bool(runs[0])
        and runs[0] == runs[1]
        and chosen[0] == chosen[1]
        and all(runs_equal(a / r, b / r) for r in runs[0])
    )


def evaluated_equal(a: Path, b: Path) -> bool:
    files = [sorted((folder / "run").glob("evaluation_*.json")) for folder in (a, b)]
    first, second = ([without_clocks(json.loads(path.read_text())) for path in each] for each in files)
    return len(first) == 1 and bool(first == second)


def words_again(words: list[str], folder: Path) -> list[str]:
    """What is typed after a kill: the same, but ``resume`` where a training has a checkpoint to go on from."""
    if words[0] != "train":
        return words
    if any((folder / "run/checkpoints").glob("frames_*")):
        return ["resume", "run"]
    shutil.rmtree(folder / "run", ignore_errors=True)
    return words


VICTIMS: dict[str, tuple[list[str], Callable[[Path, Path], bool]]] = {
    "train": (["train", *TRAIN, "out=run"], trained_equal),
    "compare": (["compare", *COMPARE, "out=all"], compared_equal),
    "evaluate": (["evaluate", "run", "life_steps=6000", "lives=16"], evaluated_equal),
}


def main() -> None:
    options = {"kills": "20", "seed": "0", "out": "runs/kills"}
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        if key not in options:
            raise SystemExit(f"{word}: allowed are {', '.join(options)}")
        options[key] = value
    moments, home = random.Random(int(options["seed"])), Path(options["out"])
    shutil.rmtree(home, ignore_errors=True)
    whole, seconds = home / "whole", {}
    whole.mkdir(parents=True)
    for verb, (words, _) in VICTIMS.items():
        seconds[verb] = to_the_end(words, whole)
    print("unbroken: " + ", ".join(f"{verb} {time:.0f} s" for verb, time in seconds.items()), flush=True)

    kills, faults, verbs = 0, 0, list(VICTIMS)
    while kills < int(options["kills"]):
        verb = verbs[kills % len(verbs)]
        words, equal = VICTIMS[verb]
        folder = home / f"{kills:02d}_{verb}"
        folder.mkdir()
        if verb == "evaluate":
            shutil.copytree(whole / "run", folder / "run", ignore=shutil.ignore_patterns("evaluation_*", ".eval*"))
        fell = []
        for _ in range(2):  # twice in one run
            process, after = call(words_again(words, folder), folder), moments.uniform(0.1, 1.0) * seconds[verb]
            try:
                process.wait(after)
                break  # over before its time
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                fell.append(f"{after:.1f} s")
        to_the_end(words_again(words, folder), folder)
        good = equal(whole, folder)
        faults += not good
        print(f"{verb:<9} killed after {', '.join(fell) or 'nothing'}: {'equal' if good else 'DIFFERENT'}", flush=True)
    print(f"{kills} kills, {faults} runs that differ")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
