"""Runs of the command line, as a user runs it, in a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lifelong.experiments.cli import main

# Small enough for seconds: 8 lives, segments of 16, so 128 frames an update.
TINY = ["env.num_lives=8", "algorithm.segment=16", "algorithm.minibatches=2", "agent.width=16", "agent.head_width=16"]
TINY_CORE = ["memory.heads=2", "memory.head_dim=8"]


class Result(NamedTuple):
    """Of a command: as subprocess gives it."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def lifelong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """``lifelong(verb, word, ...)`` in the temporary folder, through the command's entry point, in this process."""

    def run(*words: str) -> Result:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["lifelong", *words])
        capsys.readouterr()
        code = main(list(words))
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def lifelong_process(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same in a process of its own."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(*words), cwd=tmp_path, capture_output=True, text=True, timeout=120, env=env())

    return run


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "lifelong.experiments.cli", *words]


def env() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """A process whose end is not waited for."""

    def run(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(*words), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env()
        )

    return run


@pytest.fixture
def tiny() -> list[str]:
    return [*TINY, *TINY_CORE]


@pytest.fixture
def tiny_any_core() -> list[str]:
    return TINY
