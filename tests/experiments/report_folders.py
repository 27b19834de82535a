"""Run folders as ``lifelong train`` leaves them, made of numbers that a test chooses, and how a report reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lifelong.experiments.report_contents import Section, make_sections
from lifelong.experiments.report_plan import read_plan
from lifelong.experiments.report_runs import read_runs

VERSIONS = "python 3.11.7 on Linux x86_64\nlifelong 0.1.0\ntorch 2.13.0\n"
REFERENCES = {"random": 0.25, "memoryless": 0.25, "ideal_learner": 0.97, "oracle": 1.0}
STEP = 1_000  # frames of an update
CHANGE_AGES = ("0_10", "10_30", "30_100", "100_300", "300_on")
FLAT = [0.5] * 8  # a curve
OPTIONS = {"life_steps": 200, "lives": 2, "seed": 0}  # of an evaluation


def write_run(
    folder: Path,
    core: str = "gru",
    seed: int = 0,
    curve: list[float] | np.ndarray = (0.25, 0.5, 0.75, 1.0),
    *,
    env: dict[str, Any] | None = None,
    rate: float = 0.002,
    references: dict[str, float] | None = None,
    per: str = "step",
    versions: str = VERSIONS,
    memory: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
    finished: bool = True,
    fps: float = 500.0,
) -> Path:
    """A run whose metric has the values of ``curve``, one update each; NaN for an update that has none yet.

    ``changes``: dotted keys of the config, for example {"algorithm.gamma": 0.9}.
    """
    references = REFERENCES if references is None else references
    config = {
        "env": env or {"name": "switching_bandit", "num_lives": 64},
        "memory": {"name": core, **(memory or {})},
        "algorithm": {"name": "ppo", "gamma": 0.5, "learning_rate": rate, "final_learning_rate": rate / 4},
        "agent": {"width": 64},
        "seed": seed,
        "frames": len(curve) * STEP,
        "threads": 1,
        "out": str(folder),
    }
    for key, value in (changes or {}).items():
        group, name = key.split(".")
        config[group][name] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "versions.txt").write_text(versions)
    metric = {"step": "rollout/reward_rate", "episode": "rollout/ep_rew_mean"}[per]
    columns = ["frames", metric, "memory/state_bytes", *(f"life/reward_after_change_{age}" for age in CHANGE_AGES)]
    table, timing = [",".join(columns)], ["frames,time/fps"]
    for index, value in enumerate(curve):
        ages = [value * share for share in (0.6, 0.8, 0.9, 1.0, 1.0)]
        cells = [(index + 1) * STEP, "" if np.isnan(value) else value, 4096.0, *ages]
        table.append(",".join(map(str, cells)))
        timing.append(f"{(index + 1) * STEP},{fps}")
    (folder / "progress.csv").write_text("\n".join(table) + "\n")
    (folder / "timing.csv").write_text("\n".join(timing) + "\n")
    if finished:
        tail = [value for index, value in enumerate(curve) if (index + 1) > 0.75 * len(curve)]
        summary = {
            "env": config["env"]["name"],
            "memory": core,
            "seed": seed,
            "frames": len(curve) * STEP,
            "per": per,
            "final_quarter": float(np.mean(tail)),
            "best": float(np.nanmax(curve)),
            "references": references,
            "frames_per_second": fps,
            "core_parameters": 12_345,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_seeds(folder: Path, core: str, levels: Sequence[float], **options: Any) -> None:
    """One run a seed, each at a level of its own from first to last."""
    for seed, level in enumerate(levels):
        write_run(folder / core / f"seed{seed}", core, seed, [level] * 8, **options)


def write_plan(
    folder: Path, cells: list[dict[str, Any]], failed: Sequence[dict[str, str]] = (), **comparison: Any
) -> None:
    """``compare.json``; of ``cells`` only what a test is about."""
    settings = {"match": "none", "budget": None, "seeds": 1, "tuning_seeds": 1, "learning_rates": [0.002, 0.005]}
    plan: dict[str, Any] = {"comparison": settings | comparison, "failed": list(failed)}
    plan["cells"] = [{"learning_rate": None, **cell} for cell in cells]
    (folder / "compare.json").write_text(json.dumps(plan))


def write_evaluation(
    run: Path, options: dict[str, Any], curves: dict[str, Any] | None, scores: list[float], **more: Any
) -> Path:
    """An evaluation of ``run`` with one span of 100 steps for each score, and ``more``."""
    spans = [
        {
            "start": 100 * index,
            "stop": 100 * (index + 1),
            "value": score,
            "score": score,
            "microseconds_per_step": 50.0,
            "memory": {"memory/state_bytes": 4096.0, "memory/state_norm": 0.1, "memory/state_max": 2.0},
        }
        for index, score in enumerate(scores)
    ]
    result = {"options": options, "spans": spans} | ({} if curves is None else {"curves": curves}) | more
    path = run / f"evaluation_{options['life_steps']}_steps_seed{options.get('seed', 0)}.json"
    path.write_text(json.dumps(result))
    return path


def sections_of(folder: Path) -> list[Section]:
    """What a report makes of ``folder``, in which nothing is broken and nothing is there twice."""
    runs, left_out = read_runs(folder)
    assert left_out == []
    plan, corrupt = read_plan(folder)
    assert corrupt == []
    sections, twice = make_sections(runs, plan)
    assert twice == []
    return sections
