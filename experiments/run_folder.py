"""The folder of a run: where it lies and what is in it.

config.yaml  command.txt  versions.txt  progress.csv  timing.csv  events.out.tfevents.*  checkpoints/  summary.json
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lifelong.experiments.checkpoint import CheckpointRefused, latest_checkpoint, list_checkpoints, verify_checkpoint
from lifelong.experiments.config import RunConfig, differing_keys, from_yaml, to_yaml
from lifelong.experiments.errors import UserError, did_you_mean
from lifelong.experiments.versions import versions

CHECKPOINTS = "checkpoints"
_RESUMED = "resumed at "  # how the line of versions.txt begins that the versions of a resume follow


class RunBusy(UserError):
    """Another process is writing into the run's folder."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the run for this process; the lock ends with the process, however it ends.

    Raises:
        RunBusy: another process holds it.
    """
    if sys.platform == "win32":  # no flock there
        yield
        return
    import fcntl

    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunBusy(f"{path}: another process is working on this run") from error
        yield


def create_run_folder(config: RunConfig) -> Path:
    """Make the folder and write what is known at the start.

    Raises:
        UserError: ``out`` holds a run already, or cannot be written.
    """
    path = Path(config.out) if config.out else _default_folder(config)
    if (path / "config.yaml").exists():
        raise UserError(f"out={path} holds a run already; go on with it: lifelong resume {path}")
    try:
        (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        write_atomically(path / "config.yaml", to_yaml(config))
        write_atomically(path / "versions.txt", "".join(f"{line}\n" for line in versions()))
        append_command(path)
    except OSError as error:
        raise UserError(f"out={path}: cannot write there: {error.strerror}") from error
    return path


def append_command(path: Path) -> None:
    """Add the present command line to ``command.txt``: one line for each train and resume."""
    with (path / "command.txt").open("a") as file:
        file.write(" ".join(["lifelong", *map(shlex.quote, sys.argv[1:])]) + "\n")


def append_versions(path: Path, frames: int) -> None:
    """Add what this process runs on to ``versions.txt``, where a run that goes on at ``frames`` ran on other versions
    before.
    """
    if versions() != recorded_versions(path)[-1]:
        file = path / "versions.txt"
        before = file.read_text(errors="replace") if file.exists() else ""
        lines = ["", f"{_RESUMED}{frames:,} frames on:", *versions()]
        write_atomically(file, before + "".join(f"{line}\n" for line in lines))


def recorded_versions(path: Path) -> list[list[str]]:
    """The versions that a run was begun on, and those of each resume on others than before; [[]] where it does not
    say.
    """
    file = path / "versions.txt"
    recorded: list[list[str]] = [[]]
    for line in file.read_text(errors="replace").splitlines() if file.exists() else []:
        if line.startswith(_RESUMED):
            recorded.append([])
        elif line:
            recorded[-1].append(line)
    return recorded


def find_checkpoint(run: str) -> tuple[Path, RunConfig]:
    """The checkpoint that ``run`` names (a run's folder: its newest whole one; or a checkpoint's folder) and its
    config.

    Raises:
        UserError: no such folder, nothing in it, or nothing whole in it.
    """
    path = Path(run)
    if not run or not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else [])
        raise UserError(f"{run}: no such folder{near}")
    if (path / CHECKPOINTS).is_dir():
        if not list_checkpoints(path / CHECKPOINTS):
            raise UserError(f"{run}: this run has no checkpoint yet")
        path = latest_checkpoint(path / CHECKPOINTS)
    metadata = verify_checkpoint(path)
    if "config" not in metadata:
        raise CheckpointRefused(f"checkpoint {path} holds no config")
    return path, from_yaml(metadata["config"])


def edits_without_effect(run: Path, config: RunConfig) -> str | None:
    """In what ``config.yaml`` differs from ``config``, the checkpoint's, which a resume goes by; None if in nothing."""
    try:
        edited = from_yaml((run / "config.yaml").read_text())
    except (OSError, UnicodeDecodeError, UserError) as error:
        return f"cannot be read: {error}"
    keys = differing_keys(edited, config)
    if edited.frames < config.frames:  # not edited: an earlier resume was given more
        keys.remove("frames")
    return f"says otherwise: {', '.join(keys)}" if keys else None


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that it is there whole, old or new, whatever happens."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def _default_folder(config: RunConfig) -> Path:
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{_environment_word(config)}_{config.memory['name']}_seed{config.seed}"
    path, count = Path("runs") / stem, 1
    while path.exists():
        count += 1
        path = Path("runs") / f"{stem}_{count}"
    return path


def _environment_word(config: RunConfig) -> str:
    """The environment in a folder's name: the id for Gymnasium and MiniGrid."""
    word = config.env.get("id") or config.env["name"]
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in str(word))
