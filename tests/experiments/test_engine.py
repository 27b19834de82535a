"""``LocalEngine`` alone: how a run ends, what it prints, and that it leaves with whoever began it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lifelong.experiments.engine import Ended, Job, LocalEngine
from lifelong.experiments.run_folder import RunBusy, locked

COMPARISON = """
import sys, time
from pathlib import Path
from lifelong.experiments.engine import Job, LocalEngine
LocalEngine(1, 1).start(Job(Path(sys.argv[1]), tuple(sys.argv[2:])))
time.sleep(600)
"""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engine = LocalEngine(1, 1)
    yield engine
    engine.stop()


@pytest.fixture
def endless(tmp_path: Path, tiny: list[str]) -> Job:
    return Job(tmp_path / "endless", ("env=switching_bandit", "frames=1000000000", *tiny))


def end_of(engine: LocalEngine) -> Ended:
    over: list[Ended] = []
    wait_for(lambda: bool(over.extend(engine.ended()) or over))
    return over[0]


def test_a_job_that_gets_to_its_end_has_no_fault_and_one_that_does_not_says_why(
    engine: LocalEngine, tmp_path: Path, tiny: list[str]
) -> None:
    good = Job(tmp_path / "good", ("env=switching_bandit", "frames=128", *tiny))
    engine.start(good)
    assert end_of(engine) == Ended(good, None)
    assert (good.folder / "summary.json").exists()
    assert "final quarter" in good.log.read_text()

    bad = Job(tmp_path / "bad", ("env=switching_bandit", "memory=gruu"))
    engine.start(bad)
    fault = end_of(engine).fault
    assert fault is not None
    assert fault.startswith("memory=gruu: unknown")
    assert fault in bad.log.read_text()
    assert engine.ended() == []


def test_stop_lets_a_run_write_its_checkpoint(engine: LocalEngine, endless: Job) -> None:
    engine.start(endless)
    wait_for(lambda: has_learned(endless))
    engine.stop()
    assert_left_well(endless)


def test_a_run_leaves_when_the_comparison_is_killed(endless: Job) -> None:
    comparison = subprocess.Popen(
        [sys.executable, "-c", COMPARISON, str(endless.folder), *endless.words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    wait_for(lambda: has_learned(endless))
    comparison.send_signal(signal.SIGKILL)
    comparison.wait()
    wait_for(lambda: is_free(endless))
    assert_left_well(endless)


def has_learned(job: Job) -> bool:
    progress = job.folder / "progress.csv"
    return progress.exists() and progress.read_text().count("\n") > 1


def is_free(job: Job) -> bool:
    try:
        with locked(job.folder):
            return True
    except RunBusy:
        return False


def assert_left_well(job: Job) -> None:
    assert "go on with: lifelong resume" in job.log.read_text()
    assert any((job.folder / "checkpoints").glob("frames_*"))


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("slots", "threads", "owned"),
    [
        (None, 1, [{2}, {3}, {5}, {7}]),
        (None, 2, [{2, 3}, {5, 7}]),
        (4, 1, [{2}, {3}, {5}, {7}]),
        (3, 1, [set()] * 3),  # two comparisons side by side would own the same processors
        (8, 1, [set()] * 8),
        (1, 8, [set()]),
    ],
)
def test_runs_own_processors_where_they_fill_the_machine(
    monkeypatch: pytest.MonkeyPatch, slots: int | None, threads: int, owned: list[set[int]]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {5, 2, 7, 3}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert LocalEngine(slots, threads)._free == owned
