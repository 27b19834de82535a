"""Train several seeds with one config and say what each reached: the learning figures of the README.

    python benchmarks/learning.py experiment=minigrid_memory_s9 seeds=5 jobs=2 threshold=0.9 out=runs/s9
    python benchmarks/learning.py experiment=switching_bandit memory=gru seeds=3 out=runs/bandit_gru

Runs that are finished are not run again; one that was stopped goes on where it was. The value is what the
environment is judged by: the mean return of the last 100 episodes, or the reward rate of a step. Printed per seed:
frames when it first reached the threshold, best, lowest after that, mean of the final quarter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lifelong.experiments.run_log import read_rows

LIFELONG = [sys.executable, "-m", "lifelong.experiments.cli"]


def run_seed(seed: int, folder: Path, words: list[str]) -> Path:
    """Train one seed to its end, from wherever it is."""
    run = folder / f"seed{seed}"
    if not (run / "summary.json").exists():
        started = any((run / "checkpoints").glob("frames_*"))
        command = ["resume", str(run)] if started else ["train", *words, f"seed={seed}", f"out={run}"]
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"seed{seed}.log").open("a") as log:
            subprocess.run([*LIFELONG, *command], check=True, stdout=log, stderr=subprocess.STDOUT)
    return run


def describe(run: Path, threshold: float) -> tuple[str, float]:
    """A line about one run, and its final quarter."""
    summary = json.loads((run / "summary.json").read_text())
    column = "rollout/ep_rew_mean" if summary["per"] == "episode" else "rollout/reward_rate"
    series = [(int(row["frames"]), float(row[column])) for row in read_rows(run / "progress.csv") if row.get(column)]
    hit = next((frames for frames, value in series if value >= threshold), None)
    after = [value for frames, value in series if hit is not None and frames >= hit]
    reached = "never" if hit is None else f"{hit:,}"
    lowest = f"{min(after):.3f}" if after else "-"
    score = summary["final_quarter_score"]
    line = (
        f"{run.name:<8} {reached:>12} {summary['best']:>8.3f} {lowest:>8} {summary['final_quarter']:>14.3f} "
        f"{score if score is not None else float('nan'):>8.3f} {summary['frames_per_second']:>10,.0f}"
    )
    return line, summary["final_quarter"]


def main(words: list[str]) -> None:
    options = {"seeds": "3", "jobs": "1", "threshold": "0.9", "out": "runs/learning"}
    rest = []
    for word in words:
        key, _, value = word.partition("=")
        if key in options:
            options[key] = value
        else:
            rest.append(word)
    folder, threshold = Path(options["out"]), float(options["threshold"])
    with ThreadPoolExecutor(int(options["jobs"])) as pool:
        runs = list(pool.map(lambda seed: run_seed(seed, folder, rest), range(int(options["seeds"]))))
    print(" ".join(rest))
    print(
        f"{'':<8} {f'>={threshold}':>12} {'best':>8} {'lowest':>8} {'final quarter':>14} {'score':>8} {'frames/s':>10}"
    )
    finals = []
    for run in runs:
        line, final = describe(run, threshold)
        finals.append(final)
        print(line)
    mean = sum(finals) / len(finals)
    print(f"final quarter over {len(finals)} seeds: mean {mean:.3f}, {min(finals):.3f} to {max(finals):.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
