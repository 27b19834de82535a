"""``lifelong compare``: which memory, in which world? Every core at its own best learning rate, over seeds.

Stage one trains every core at every learning rate on ``tuning_seeds`` seeds; stage two trains it at the best of them
(mean of the final quarter) on all ``seeds``, and each of these is evaluated over one unbroken life if ``evaluate`` says
so. Everything that is known lies in the folder: a comparison that was killed is gone on with by the same command, and
finished runs are not run again.

    FOLDER/compare.json                            the plan, the matched cores, the rates that were chosen
    FOLDER/<env>/<memory>/lr<rate>/seed<k>/        a run, as ``lifelong train`` and ``evaluate`` leave it
    FOLDER/<env>/<memory>/lr<rate>/seed<k>.log     what it printed
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lifelong.experiments.compare_plan import Plan
from lifelong.experiments.compare_sizes import Matched, match_cells
from lifelong.experiments.compare_table import CellProgress, LiveTable, Result, print_results
from lifelong.experiments.comparison import Cell, ComparisonConfig, cells_of, load_comparison, run_config
from lifelong.experiments.engine import Ended, Engine, Job, LocalEngine
from lifelong.experiments.errors import UserError
from lifelong.experiments.evaluate_options import parse_options
from lifelong.experiments.run_folder import locked
from lifelong.experiments.run_log import read_rows

_POLL_SECONDS = 1.0


def compare(words: list[str]) -> int:
    """``lifelong compare experiment=NAME [env=a,b] [memory=a,b] [seeds=N] [learning_rates=x,y] [key=value ...]``."""
    config = load_comparison(words)
    cells = cells_of(config)
    folder = Path(config.out or _default_folder(words))
    matched = match_cells(config, cells)
    if config.plan_only:
        runs = runs_of(config) * len(matched)
        frames = runs_of(config) * sum(each.frames for each in matched)
        lives = f", {_counted(config.seeds * len(matched), 'life')}" if config.evaluate else ""
        places = f"{_counted(len(config.cores), 'core')} in {_counted(len(config.environments), 'environment')}"
        print(f"{places}, {_counted(runs, 'run')}, {frames:,} frames{lives}; nothing was run")
        return 0
    with _engine(config, run_config(cells[0]).threads) as engine:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"out={folder}: cannot write there: {error.strerror}") from error
        with locked(folder):
            return _Comparison(config, matched, folder).go(engine)


@dataclasses.dataclass(frozen=True)
class Reached:
    """What a finished run came to: scores where its environment has references, else values."""

    final: float
    best: float
    frames_per_second: float | None


class _Comparison:
    """What is to be run, what runs, what is over."""

    def __init__(self, config: ComparisonConfig, matched: list[Matched], folder: Path) -> None:
        self.config, self.matched, self.folder = config, matched, folder
        self.plan = Plan(folder, config, matched)
        self.threads = run_config(matched[0].cell).threads
        self.chosen: dict[tuple[str, str], float] = {}
        self.failed: list[Ended] = []
        self.lives = parse_options(config.evaluate)
        self._evaluated: set[Job] = set()
        self._reached: dict[Job, Reached | None] = {}

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

    def evaluations_of(self, cell: Cell) -> list[Job]:
        """The lives of the finished runs at the learning rate chosen."""
        rate = self.chosen.get((cell.env, cell.memory))
        if not self.config.evaluate or rate is None:
            return []
        # The runs are our own: what they import may be imported again.
        words = (*self.config.evaluate, *(word for word in cell.words if word.startswith("plugins=")))
        runs = [self.job(cell, rate, seed) for seed in range(self.config.seeds)]
        return [dataclasses.replace(run, words=words, verb="evaluate") for run in runs if self.over(run)]

    def over(self, job: Job) -> bool:
        """Whether it has come to its end, and well."""
        if job.verb == "train":
            return (job.folder / "summary.json").exists()
        if job not in self._evaluated and _life_ended(job.folder / f"{self.lives.stem}.json"):
            self._evaluated.add(job)
        return job in self._evaluated

    def choose(self, cell: Cell) -> None:
        """The learning rate with the best mean final quarter, once all runs of stage one are over."""
        key = cell.env, cell.memory
        failed = {ended.job for ended in self.failed}
        if key in self.chosen or not all(self.over(job) or job in failed for job in self.tuning_jobs(cell)):
            return
        values = {}
        for rate in self.config.learning_rates:
            jobs = [self.job(cell, rate, seed) for seed in range(self.config.tuning_seeds)]
            finals = [reached.final for reached in self._known(jobs)]
            if finals:
                values[rate] = sum(finals) / len(finals)
        if values or len(self.config.learning_rates) == 1:
            self.chosen[key] = max(values, key=values.__getitem__) if values else self.config.learning_rates[0]
            self.write()

    def go(self, engine: Engine) -> int:
        """Run everything; returns the exit code."""
        running: set[Job] = set()
        self.write()
        with LiveTable() as table:
            try:
                while True:
                    for ended in engine.ended():
                        running.discard(ended.job)
                        if ended.fault is None and not self.over(ended.job):
                            ended = Ended(ended.job, "ended without a result")
                        if ended.fault is not None:
                            self.failed.append(ended)
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
        """Runs to be started, in order: environment by environment and core by core, stage two of a core as soon as its
        learning rate is chosen; lives last.
        """
        failed = {ended.job for ended in self.failed}
        jobs = [job for matched in self.matched for job in self.jobs_of(matched.cell)]
        jobs += [job for matched in self.matched for job in self.evaluations_of(matched.cell)]
        return [job for job in jobs if job not in running and job not in failed and not self.over(job)]

    def reached(self, job: Job) -> Reached | None:
        """What a run came to, once it is finished; one that came to nothing is listed as failed."""
        if job not in self._reached and self.over(job):
            summary = _summary(job)
            self._reached[job] = None if isinstance(summary, str) else summary
            if isinstance(summary, str):
                self.failed.append(Ended(job, summary))
        return self._reached.get(job)

    def _known(self, jobs: list[Job]) -> list[Reached]:
        return [reached for job in jobs if (reached := self.reached(job)) is not None]

    def progress(self, matched: Matched, running: set[Job]) -> CellProgress:
        """How far a cell is."""
        config, cell = self.config, matched.cell
        planned = runs_of(config)
        jobs = self.jobs_of(cell)
        done = [job for job in jobs if self.over(job)]
        frames = len(done) * matched.frames + sum(_frames_of(job) for job in running if job in jobs)
        rate = self.chosen.get((cell.env, cell.memory))
        counted = done if rate is None else [self.job(cell, rate, seed) for seed in range(config.seeds)]
        finals = [reached.final for reached in self._known(counted)]
        return CellProgress(
            cell.env,
            cell.memory,
            rate,
            len(done),
            planned,
            frames,
            planned * matched.frames,
            (sum(finals) / len(finals) if rate is not None else max(finals)) if finals else None,
            sum(job in jobs for job in running),
            sum(map(self.over, self.evaluations_of(cell))),
            config.seeds if config.evaluate else 0,
        )

    def results(self) -> list[Result]:
        """Of every cell that has a finished run at its learning rate."""
        found = []
        for matched in self.matched:
            rate = self.chosen.get((matched.cell.env, matched.cell.memory))
            jobs = [] if rate is None else [self.job(matched.cell, rate, seed) for seed in range(self.config.seeds)]
            known = self._known(jobs)
            if rate is not None and known:
                speeds = [each.frames_per_second for each in known if each.frames_per_second is not None]
                found.append(
                    Result(
                        matched.cell.env,
                        matched.cell.memory,
                        rate,
                        [each.final for each in known],
                        [each.best for each in known],
                        sum(speeds) / len(speeds) if speeds else None,
                        **matched.size,
                    )
                )
        return found

    def write(self) -> None:
        self.plan.write(self.chosen, self.failed)

    def _conclude(self) -> None:
        print_results(self.results())
        for ended in self.failed:
            print(f"failed: {ended.job.folder}: {ended.fault} (its log: {ended.job.log})", file=sys.stderr)
        print(f"figures and tables: lifelong report {self.folder}")


def runs_of(config: ComparisonConfig) -> int:
    """How many runs a core has in an environment: learning rates on the seeds that choose, and the other seeds."""
    return config.tuning_seeds * len(config.learning_rates) + config.seeds - config.tuning_seeds


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


def _life_ended(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text())["finished"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _summary(job: Job) -> Reached | str:
    """What a finished run came to, or one line that says why that is not known."""
    path = job.folder / "summary.json"
    try:
        summary = json.loads(path.read_text())
        kind = "" if summary["final_quarter_score"] is None else "_score"
        final, best, speed = (summary[key] for key in (f"final_quarter{kind}", f"best{kind}", "frames_per_second"))
        if final is None or best is None:
            return "no episode ended in its final quarter, so it reached nothing that could be compared"
        if math.isfinite(final) and math.isfinite(best):
            return Reached(float(final), float(best), None if speed is None else float(speed))
        return "its rewards are not finite"
    except (OSError, ValueError, KeyError, TypeError):
        return "summary.json cannot be read; delete it, and the same command writes it anew"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _default_folder(words: list[str]) -> str:
    name = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), "compare")
    return f"runs/{name}"
