"""What logging, telemetry and checkpoints cost: frames per CPU-second of the default run with and without them.

    python benchmarks/overhead.py [rounds=5] [frames=131072] [key=value ...]

With: as ``lifelong train`` does it, a row in progress.csv, TensorBoard and timing.csv at every update, the memory's
health at every update, plasticity at every tenth, a checkpoint every 100,000 frames and at the end. Without: none of
these but the checkpoint at the end, which is taken off the clock. The two take turns in one process, one thread; the
median of the ratios is printed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from lifelong.experiments import train
from lifelong.experiments.build import build_env, build_trainer, set_up_process
from lifelong.experiments.config import load_config
from lifelong.experiments.run_folder import create_run_folder

QUIET = ["log.every_updates=1000000000", "checkpoint.every_frames=1000000000", "algorithm.plasticity_every=0"]


def cpu_seconds(words: list[str], quiet: bool) -> float:
    """CPU time of a run from its first update to its end."""
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
        config = load_config([*words, *(QUIET if quiet else []), f"out={Path(home) / 'run'}"])
        device = set_up_process(config)
        env = build_env(config, config.seed)
        trainer = build_trainer(config, env, device)
        run = train._Run(config, create_run_folder(config), env, trainer, resume_at=None)
        if quiet:
            stack.enter_context(mock.patch("lifelong.agents.trainer.memory_health", return_value={}))
        for stream in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(stream(stack.enter_context(open(os.devnull, "w"))))
        started, off = time.process_time(), 0.0
        if quiet:
            save = run._save

            def timed_save() -> None:
                nonlocal off
                begun = time.process_time()
                save()
                off += time.process_time() - begun

            stack.enter_context(mock.patch.object(run, "_save", timed_save))
        run.go()
        return time.process_time() - started - off


def main() -> None:
    options: dict[str, Any] = {"rounds": 5, "frames": 131072}
    rest = []
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        if key in options:
            options[key] = int(value)
        else:
            rest.append(word)
    words = [*rest, f"frames={options['frames']}"]
    cpu_seconds([*rest, "frames=16384"], quiet=False)  # compiles, allocates and fills caches
    pairs = []
    for number in range(options["rounds"]):
        both = {quiet: cpu_seconds(words, quiet) for quiet in ((True, False) if number % 2 else (False, True))}
        pairs.append((both[False], both[True]))
        print(f"with {both[False]:.2f} s, without {both[True]:.2f} s: {both[False] / both[True] - 1:+.1%}", flush=True)
    ratio = statistics.median(full / bare for full, bare in pairs)
    rate = options["frames"] / statistics.median(full for full, _ in pairs)
    print(
        f"logging, telemetry and checkpoints: {ratio - 1:+.1%} of CPU time; {rate:,.0f} frames per CPU-second with them"
    )


if __name__ == "__main__":
    main()
