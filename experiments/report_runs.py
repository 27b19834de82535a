"""Run folders as a report reads them: what they hold, or why they cannot be used.

Nothing of a run is executed or unpickled: ``config.yaml``, ``versions.txt``, ``summary.json``, ``progress.csv``,
``timing.csv`` and ``evaluation_*.json`` are read, and a report needs no checkpoints.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lifelong.experiments.metrics.aggregate import Array
from lifelong.experiments.run_folder import recorded_versions
from lifelong.experiments.run_log import read_rows

_METRICS = {"step": "rollout/reward_rate", "episode": "rollout/ep_rew_mean"}
_AFTER_CHANGE = "life/reward_after_change_"
_STATE_BYTES = "memory/state_bytes"
#: how the columns of progress.csv begin that are read here, but for "frames"
CURVES = (*_METRICS.values(), _AFTER_CHANGE, _STATE_BYTES)
_NOT_SAID = "not said"
# How a run's folder is known, even where its config is gone.
_MARKS = ("config.yaml", "progress.csv", "summary.json")
# What the records of an evaluation must hold for a figure to be made of them.
_RECORDS = {
    "recall_by_age": ("age", "hits", "trials"),
    "recovery": ("steps", "censored"),
    "changes": ("judged", "all"),
    "adaptation": ("steps_since_change", "reward", "count"),
}


class Unusable(Exception):
    """Why a folder cannot be reported on, in one line."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: str  # relative to the folder that is reported on
    config: dict[str, Any]
    versions: tuple[str, ...]  # "torch 2.12.0 then 2.13.0" where the run was resumed on another
    codes: tuple[str, ...]  # of the package, which changes more often than its version; the code of the start first
    per: str  # "step": the curve is the reward rate; "episode": the mean return of the last episodes
    references: dict[str, float]
    final_quarter: float
    best: float
    frames: Array  # [N] of the curve's points
    values: Array  # [N]; NaN where no episode had ended
    after_change: dict[str, float]  # reward rate by steps since the rule changed, in the final quarter
    core_parameters: int | None
    state_bytes: float | None
    frames_per_second: float | None
    seconds: float | None  # of the clock, summed over the updates
    evaluations: list[dict[str, Any]]

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def learning_rate(self) -> tuple[float, float]:
        """First and final."""
        algorithm = self.config["algorithm"]
        first = float(algorithm["learning_rate"])
        return first, float(algorithm.get("final_learning_rate", first))


@dataclass(frozen=True)
class LeftOut:
    """A run that the numbers do not hold."""

    path: str
    reason: str


def read_runs(folder: Path) -> tuple[list[Run], list[LeftOut]]:
    """Every run below ``folder``, in the order of their paths."""
    runs, left_out = [], []
    for path in _run_folders(folder):
        name = path.relative_to(folder).as_posix()
        try:
            runs.append(_read_run(path, name))
        except Unusable as error:
            left_out.append(LeftOut(name, str(error)))
            continue
        for file in sorted(path.glob("evaluation_*.json")):
            try:
                runs[-1].evaluations.append(_read_evaluation(file, int(runs[-1].frames[-1])))
            except Unusable as error:
                left_out.append(LeftOut(f"{name}/{file.name}", str(error)))
    return runs, left_out


def _run_folders(folder: Path) -> Iterator[Path]:
    for directory, children, names in os.walk(folder):
        children.sort()
        if any(mark in names for mark in _MARKS):
            children.clear()  # checkpoints and evaluations below are parts of this run
            yield Path(directory)


def _read_run(path: Path, name: str) -> Run:
    config = _read_config(path / "config.yaml")
    if not (path / "summary.json").exists():
        raise Unusable(_how_far(path, config))
    summary = _read_json(path / "summary.json")
    try:
        per, frames = summary["per"], int(summary["frames"])
        final, best = summary["final_quarter"], summary["best"]
        references = {key: float(value) for key, value in summary["references"].items()}
        rows = read_rows(path / "progress.csv")
        series = np.array([(int(row["frames"]), _number(row.get(_METRICS[per], ""))) for row in rows], np.float64)
        tail = [row for row in rows if int(row["frames"]) > 0.75 * frames]
        after_change = _means(tail, _AFTER_CHANGE)
        state_bytes = _means(tail, _STATE_BYTES).get("")
        seconds = _seconds(read_rows(path / "timing.csv"))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise Unusable(f"corrupt: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if references and not {"random", "oracle"} <= references.keys():
        raise Unusable("corrupt: references without random or oracle")
    if final is None or best is None:
        raise Unusable("no episode ended, so nothing was reached that could be reported")
    if not len(series) or series[-1, 0] != frames:
        end = f"{int(series[-1, 0]):,}" if len(series) else "0"
        raise Unusable(f"corrupt: progress.csv ends at {end} frames, summary.json at {frames:,}")
    if not math.isfinite(final) or not math.isfinite(best):
        raise Unusable("its rewards are not finite")
    versions = _versions(path)
    codes = versions.pop("code", (_NOT_SAID,))  # which does not make runs incomparable
    return Run(
        path=name,
        config=config,
        versions=tuple(f"{name} {' then '.join(found)}" for name, found in versions.items()),
        codes=codes,
        per=per,
        references=references,
        final_quarter=float(final),
        best=float(best),
        frames=series[:, 0],
        values=series[:, 1],
        after_change=after_change,
        core_parameters=summary.get("core_parameters"),
        state_bytes=state_bytes,
        frames_per_second=summary.get("frames_per_second"),
        seconds=seconds,
        evaluations=[],
    )


def _versions(path: Path) -> dict[str, tuple[str, ...]]:
    """By the first word of a line of ``versions.txt``; several where the run was resumed on others than before."""
    recorded = [dict(line.split(" ", 1) for line in lines if " " in line) for lines in recorded_versions(path)]
    names = dict.fromkeys(name for versions in recorded for name in versions)
    return {
        name: tuple(found for found, _ in groupby(versions.get(name, _NOT_SAID) for versions in recorded))
        for name in names
    }


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text())
        for group in ("env", "memory"):
            config[group]["name"]
        int(config["seed"]), float(config["algorithm"]["learning_rate"])
    except FileNotFoundError as error:
        raise Unusable("corrupt: config.yaml is missing") from error
    except (yaml.YAMLError, KeyError, TypeError, ValueError, OSError) as error:
        raise Unusable("corrupt: config.yaml cannot be read") from error
    return dict(config)


def _how_far(path: Path, config: dict[str, Any]) -> str:
    """Of a run without a summary: where it is, and the last that it said where a comparison kept that."""
    try:
        rows = read_rows(path / "progress.csv")
        done = int(rows[-1]["frames"]) if rows else 0
    except (ValueError, KeyError, OSError):
        return "unfinished, and progress.csv cannot be read"
    log = path.with_name(f"{path.name}.log")
    said = [line for line in _text(log).splitlines() if line.startswith("lifelong: ")]
    why = f"; {said[-1].removeprefix('lifelong: ')}" if said else ""
    return f"unfinished: {done:,} of {int(config.get('frames', 0)):,} frames{why}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise Unusable(f"corrupt: {path.name} cannot be read") from error
    if not isinstance(value, dict):
        raise Unusable(f"corrupt: {path.name} is not a mapping")
    return value


def _read_evaluation(path: Path, frames: int) -> dict[str, Any]:
    """Of a run that is at so many frames."""
    value = _read_json(path)
    if not isinstance(value.get("options"), dict):
        raise Unusable(f"corrupt: {path.name} holds no options")
    checkpoint = str(value.get("checkpoint", ""))
    trained = re.fullmatch(r"frames_(\d+)", checkpoint)
    if trained and int(trained[1]) != frames:
        raise Unusable(f"of another checkpoint, {checkpoint}: the run is at {frames:,} frames; evaluate it again")
    if value.get("fault"):
        raise Unusable(f"the life ended in an error and does not go on: {' '.join(str(value['fault']).split())}")
    if value.get("finished") is False:
        raise Unusable("unfinished: the life goes on when it is evaluated again")
    lifetime = value.get("lifetime_score")
    if lifetime is not None and not (isinstance(lifetime, dict) and lifetime.keys() >= {"whole", "second_half"}):
        raise Unusable(f"corrupt: {path.name}: lifetime_score must hold whole, second_half")
    records = {"spans": value.get("spans", []), **(value.get("curves") or {})}
    for name, keys in {"spans": ("stop",), **_RECORDS}.items():
        if not all(isinstance(each, dict) and each.keys() >= set(keys) for each in records.get(name, [])):
            raise Unusable(f"corrupt: {path.name}: every record of {name} must hold {', '.join(keys)}")
    return value


def _means(rows: list[dict[str, str]], prefix: str) -> dict[str, float]:
    """Mean of each column whose name begins so, by the rest of its name."""
    columns = [column for column in (rows[-1] if rows else {}) if column.startswith(prefix)]
    found = {}
    for column in columns:
        values = [float(row[column]) for row in rows if row.get(column)]
        if values:
            found[column.removeprefix(prefix)] = float(np.mean(values))
    return found


def _seconds(rows: list[dict[str, str]]) -> float | None:
    """Time of the clock, from the speed at each logged update: a stop between two processes does not count."""
    total, before = 0.0, 0
    for row in rows:
        total += (int(row["frames"]) - before) / float(row["time/fps"])
        before = int(row["frames"])
    return total if rows else None


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _number(word: str | None) -> float:
    return float(word) if word else float("nan")
