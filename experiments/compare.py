"""``lifelong compare``: which memory, in which world? Every core at its own best learning rate, over seeds.

Stage one trains every core at every learning rate on ``tuning_seeds`` seeds; stage two trains it at the best of them
(mean of the final quarter) on all ``seeds``. Everything that is known lies in the folder: a comparison that was killed
is gone on with by the same command, and finished runs are not run again.

    FOLDER/compare.json                            the plan, the matched cores, the rates that were chosen
    FOLDER/<env>/<memory>/lr<rate>/seed<k>/        a run, as ``lifelong train`` leaves it
    FOLDER/<env>/<memory>/lr<rate>/seed<k>.log     what it printed
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lifelong.experiments.compare_table import CellProgress, CoreSize, LiveTable, Result, print_results, print_sizes
from lifelong.experiments.comparison import Cell, ComparisonConfig, cells_of, load_comparison, run_config
from lifelong.experiments.engine import Ended, Engine, Job, LocalEngine
from lifelong.experiments.errors import UserError
from lifelong.experiments.matching import match
from lifelong.experiments.run_folder import locked, versions, write_json
from lifelong.experiments.run_log import read_rows
from lifelong.memory import MemoryCore, make_core

_POLL_SECONDS = 1.0


def compare(words: list[str]) -> int:
    """``lifelong compare experiment=NAME [env=a,b] [memory=a,b] [seeds=N] [learning_rates=x,y] [key=value ...]``."""
    config = load_comparison(words)
    cells = cells_of(config)
    folder = Path(config.out or _default_folder(words))
    matched = _match(config, cells)
    if config.plan_only:
        runs = runs_of(config) * len(matched)
        frames = runs_of(config) * sum(each.frames for each in matched)
        print(f"{len(matched)} cores in environments, {runs} runs, {frames:,} frames; nothing was run")
        return 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={folder}: cannot write there: {error.strerror}") from error
    with locked(folder):
        comparison = _Comparison(config, matched, folder)
        comparison.refuse_other_settings()
        with _engine(config, run_config(cells[0]).threads) as engine:
            return comparison.go(engine)


@dataclasses.dataclass
class Matched:
    """A cell whose core has the size that the comparison asks for."""

    cell: Cell
    size: dict[str, int]  # parameters and state_bytes of its core
    frames: int


class _Comparison:
    """What is to be run, what runs, what is over."""

    def __init__(self, config: ComparisonConfig, matched: list[Matched], folder: Path) -> None:
        self.config, self.matched, self.folder = config, matched, folder
        self.threads = run_config(matched[0].cell).threads
        self.chosen: dict[tuple[str, str], float] = {}
        self.failed: list[Ended] = []
        self._finals: dict[Path, float | None] = {}
        self._earlier: dict[tuple[str, str], dict[str, Any]] = {}  # cells of earlier calls that are not in this one

    def job(self, cell: Cell, learning_rate: float, seed: int) -> Job:
        return cell.job(self.folder, learning_rate, seed, self.threads, self.config.gpus)

    def tuning_jobs(self, cell: Cell) -> list[Job]:
        """Stage one; nothing where there is one learning rate only."""
        rates = self.config.learning_rates
        if len(rates) == 1:
            return []
        return [self.job(cell, rate, seed) for seed in range(self.config.tuning_seeds) for rate in rates]

    def jobs_of(self, cell: Cell) -> list[Job]:
        """All runs of a cell that are known today: stage one, and stage two once its learning rate is chosen."""
        jobs = self.tuning_jobs(cell)
        rate = self.chosen.get((cell.env, cell.memory))
        if rate is not None:
            jobs += [job for seed in range(self.config.seeds) if (job := self.job(cell, rate, seed)) not in jobs]
        return jobs

    def choose(self, cell: Cell) -> None:
        """The learning rate with the best mean final quarter, once all runs of stage one are over."""
        key = cell.env, cell.memory
        over = {ended.job for ended in self.failed}
        if key in self.chosen or not all(_finished(job) or job in over for job in self.tuning_jobs(cell)):
            return
        values = {}
        for rate in self.config.learning_rates:
            jobs = [self.job(cell, rate, seed) for seed in range(self.config.tuning_seeds)]
            known = [final for job in jobs if (final := self.final(job)) is not None]
            if known:
                values[rate] = sum(known) / len(known)
        if values or len(self.config.learning_rates) == 1:
            self.chosen[key] = max(values, key=values.__getitem__) if values else self.config.learning_rates[0]
            self.write()

    def go(self, engine: Engine) -> int:
        """Run everything; returns the exit code."""
        running: set[Job] = set()
        with LiveTable() as table:
            try:
                while True:
                    for ended in engine.ended():
                        running.discard(ended.job)
                        if ended.fault is not None or not _finished(ended.job):
                            self.failed.append(Ended(ended.job, ended.fault or "ended without a summary"))
                        table.say(ended)
                    for matched in self.matched:
                        self.choose(matched.cell)
                    waiting = self._waiting(running)
                    while waiting and len(running) < engine.slots:
                        job = waiting.pop(0)
                        engine.start(job)
                        running.add(job)
                    table.update([self.progress(matched, running) for matched in self.matched])
                    if not running:
                        break
                    time.sleep(_POLL_SECONDS)
            except KeyboardInterrupt:
                engine.stop()
                raise
        self.write()
        self._conclude()
        return 1 if self.failed else 0

    def _waiting(self, running: set[Job]) -> list[Job]:
        """Runs to be started, in order: environment by environment, stage one of all cores first, seed by seed."""
        over = {ended.job for ended in self.failed}
        jobs = [job for matched in self.matched for job in self.jobs_of(matched.cell)]
        return [job for job in jobs if job not in running and job not in over and not _finished(job)]

    def final(self, job: Job) -> float | None:
        """The final quarter of a finished run: its score where the environment has references, else its value."""
        if job.folder not in self._finals and _finished(job):
            summary = json.loads((job.folder / "summary.json").read_text())
            score = summary["final_quarter_score"]
            self._finals[job.folder] = summary["final_quarter"] if score is None else score
        return self._finals.get(job.folder)

    def progress(self, matched: Matched, running: set[Job]) -> CellProgress:
        """How far a cell is."""
        config, cell = self.config, matched.cell
        planned = runs_of(config)
        jobs = self.jobs_of(cell)
        done = [job for job in jobs if _finished(job)]
        frames = len(done) * matched.frames + sum(_frames_of(job) for job in running if job in jobs)
        rate = self.chosen.get((cell.env, cell.memory))
        counted = done if rate is None else [self.job(cell, rate, seed) for seed in range(config.seeds)]
        known = [final for job in counted if (final := self.final(job)) is not None]
        return CellProgress(
            cell.env,
            cell.memory,
            rate,
            len(done),
            planned,
            frames,
            planned * matched.frames,
            (sum(known) / len(known) if rate is not None else max(known)) if known else None,
            sum(job in jobs for job in running),
        )

    def results(self) -> list[Result]:
        """Of every cell that has a finished run at its learning rate."""
        found = []
        for matched in self.matched:
            rate = self.chosen.get((matched.cell.env, matched.cell.memory))
            jobs = [] if rate is None else [self.job(matched.cell, rate, seed) for seed in range(self.config.seeds)]
            summaries = [json.loads((job.folder / "summary.json").read_text()) for job in jobs if _finished(job)]
            if rate is not None and summaries:
                kind = "" if summaries[0]["final_quarter_score"] is None else "_score"
                finals, bests = ([each[f"{name}{kind}"] for each in summaries] for name in ("final_quarter", "best"))
                speed = sum(each["frames_per_second"] for each in summaries) / len(summaries)
                cell = matched.cell
                found.append(Result(cell.env, cell.memory, rate, finals, bests, speed, **matched.size))
        return found

    def plan(self) -> dict[str, Any]:
        """What ``compare.json`` holds."""
        return {
            "comparison": dataclasses.asdict(self.config),
            "versions": versions(),
            "cells": [
                {
                    "env": matched.cell.env,
                    "memory": matched.cell.memory,
                    "words": list(matched.cell.words),
                    "fall": matched.cell.fall,
                    **matched.size,
                    "learning_rate": self.chosen.get((matched.cell.env, matched.cell.memory)),
                }
                for matched in self.matched
            ]
            + list(self._earlier.values()),
            "failed": [{"run": str(ended.job.folder), "fault": ended.fault} for ended in self.failed],
        }

    def write(self) -> None:
        write_json(self.folder / "compare.json", self.plan())

    def refuse_other_settings(self) -> None:
        """A folder holds one comparison: cores, environments, rates and seeds may be added, words not changed.

        Raises:
            UserError: a cell that is there already was run with other words.
        """
        path = self.folder / "compare.json"
        if path.exists():
            try:
                self._earlier = {(cell["env"], cell["memory"]): cell for cell in json.loads(path.read_text())["cells"]}
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}: cannot be read; use another out=") from error
            for matched in self.matched:
                before = self._earlier.pop((matched.cell.env, matched.cell.memory), None)
                if before is not None and before["words"] != list(matched.cell.words):
                    changed = sorted(set(before["words"]) ^ set(matched.cell.words))
                    raise UserError(
                        f"out={self.folder}: holds {matched.cell.memory} in {matched.cell.env} with other settings "
                        f"({', '.join(changed)}); use another out="
                    )
        self.write()

    def _conclude(self) -> None:
        print_results(self.results())
        for ended in self.failed:
            print(f"failed: {ended.job.folder}: {ended.fault} (its log: {ended.job.log})", file=sys.stderr)
        print(f"figures and tables: lifelong report {self.folder}")


def runs_of(config: ComparisonConfig) -> int:
    """How many runs a core has in an environment: learning rates on the seeds that choose, and the other seeds."""
    return config.tuning_seeds * len(config.learning_rates) + config.seeds - config.tuning_seeds


def _match(config: ComparisonConfig, cells: list[Cell]) -> list[Matched]:
    """Give every core the size of the budget (None: that of the first core as configured), and print the sizes."""
    result, budget, sizes = [], config.budget, {}
    for cell in cells:
        run = run_config(cell)
        options, width = dict(run.memory), run.agent.width
        name, note = options.pop("name"), ""
        words: tuple[str, ...] = ()
        try:
            core = make_core(name, width, **options)
            if config.match != "none":
                budget = budget or _size(core)[config.match]
                found = match(name, options, width, **{config.match: budget})
                words = tuple(f"memory.{key}={value}" for key, value in found.options.items() if options[key] != value)
                core, note = make_core(name, width, **found.options), found.note
        except ValueError as error:
            raise UserError(f"memory={name}: {' '.join(str(error).split())}") from error
        result.append(Matched(dataclasses.replace(cell, words=(*cell.words, *words)), _size(core), run.frames))
        sizes[cell.memory] = CoreSize(cell.memory, **_size(core), options=" ".join(words), note=note)
    print_sizes("" if budget is None else f"matched to {budget:,} {config.match.replace('_', ' ')}", sizes.values())
    return result


def _size(core: MemoryCore) -> dict[str, int]:
    return {
        "parameters": sum(parameter.numel() for parameter in core.parameters()),
        "state_bytes": core.state_bytes(),
    }


@contextmanager
def _engine(config: ComparisonConfig, threads: int) -> Iterator[Engine]:
    if config.engine == "ray":
        from lifelong.experiments.engine_ray import RayEngine  # ray is an optional package

        engine: Engine = RayEngine(config.jobs, threads, config.gpus, config.ray_address)
    else:
        engine = LocalEngine(config.jobs, threads)
    try:
        yield engine
    finally:
        engine.stop()


def _frames_of(job: Job) -> int:
    """Frames that a run in progress has logged."""
    rows = read_rows(job.folder / "timing.csv")
    return int(rows[-1]["frames"]) if rows else 0


def _finished(job: Job) -> bool:
    return (job.folder / "summary.json").exists()


def _default_folder(words: list[str]) -> str:
    name = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), "compare")
    return f"runs/{name}"
