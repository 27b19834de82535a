"""Where the runs of a comparison are computed: ``engine=local``, processes of this machine; ``engine=ray``, a cluster.

An engine starts runs and says which have ended. It needs no memory of its own: a run that was lost is started again
by the same call and goes on from its last checkpoint (``lifelong.experiments.one_run``).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

ONE_RUN = "lifelong.experiments.one_run"


@dataclass(frozen=True)
class Job:
    """A run to be brought to its end, or a finished run to be evaluated over one life.

    Args:
        folder: of the run.
        words: of its config; those of ``lifelong evaluate`` if it is to be evaluated.
        verb: train or evaluate.
    """

    folder: Path
    words: tuple[str, ...]
    threads: int = 1
    gpus: float = 0.0
    verb: str = "train"

    @property
    def log(self) -> Path:
        """What the run prints, beside its folder."""
        return self.folder.with_suffix(".log")


@dataclass(frozen=True)
class Ended:
    """A job that is over. ``fault`` is None, or one line that says why the run did not get to its end."""

    job: Job
    fault: str | None


class Engine(Protocol):
    """Computes jobs, at most ``slots`` at a time."""

    slots: int

    def start(self, job: Job) -> None:
        """Begin a job; never waits."""

    def ended(self) -> Iterable[Ended]:
        """The jobs that ended since the last call."""

    def stop(self) -> None:
        """Ask all jobs to write a checkpoint and leave, and wait for them."""


class LocalEngine:
    """Processes on this machine.

    Where the runs fill the machine each slot has processors of its own, so that they do not chase each other from core
    to core; fewer are left to the scheduler, or two comparisons side by side would own the same processors. Every run
    is told how many threads it may use (``OMP_NUM_THREADS``): two runs with one thread each beat one run with two. Runs
    are forked from one server that has imported everything, which saves each of them the seconds that importing takes.

    Args:
        slots: runs at a time; None for as many as there are processors for.
        threads: threads of a run.
    """

    def __init__(self, slots: int | None, threads: int) -> None:
        processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        count = len(processors) or os.cpu_count() or 1
        self.slots = max(1, count // threads) if slots is None else slots
        shares = [set(processors[index * threads : (index + 1) * threads]) for index in range(self.slots)]
        fills = self.slots == len(processors) // threads
        self._free = shares if fills else [set() for _ in range(self.slots)]
        self._running: dict[BaseProcess, tuple[Job, set[int]]] = {}
        os.environ["OMP_NUM_THREADS"] = str(threads)  # the server and all runs take it over from here
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([ONE_RUN])

    def start(self, job: Job) -> None:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        share = self._free.pop()
        process = self._context.Process(target=_run, args=(job, share))
        process.start()
        self._running[process] = job, share

    def ended(self) -> list[Ended]:
        over = [process for process in self._running if process.exitcode is not None]
        result = []
        for process in over:
            job, share = self._running.pop(process)
            self._free.append(share)
            result.append(Ended(job, None if process.exitcode == 0 else fault_of(job, process.exitcode or 0)))
        return result

    def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.join()


def _run(job: Job, processors: set[int]) -> None:
    """A run in a process of its own, on ``processors``; what it prints goes to its log."""
    os.setsid()  # Ctrl-C in the terminal reaches the comparison, which asks its runs to stop
    if processors:
        os.sched_setaffinity(0, processors)
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from lifelong.experiments.one_run import run

    sys.exit(run(job))


def fault_of(job: Job, code: int) -> str:
    """One line about a run that failed: the last that it printed, or the signal that ended it."""
    if code < 0:
        return f"ended by signal {-code}"
    lines = job.log.read_text(errors="replace").strip().splitlines() if job.log.exists() else []
    said = [line for line in lines if line.startswith("lifelong: ")] or lines
    return said[-1].removeprefix("lifelong: ") if said else f"ended with code {code}"
