"""Checkpoints that carry everything, are written atomically, and can be read without executing anything.

    checkpoints/
      frames_000000262144/
        manifest.json                 TorchRL's: format, versions, which files belong
        digests.json                  SHA-256 of every other file: a truncated or altered checkpoint is refused by name
        components/...-training/      weights, optimizer, memory, counters, generators (loads with weights_only=True)
        components/...-environment/   state of the environment; a pickle where only that can hold it, which
        ``resume`` alone reads

A checkpoint is built in a hidden folder, synced to the disk, and renamed: it is there whole or not at all. Older
ones are removed only after that, so a full disk loses none.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torchrl.checkpoint import Checkpoint, CheckpointAdapter, GlobalRNGState, StateDictCheckpointAdapter

from lifelong.agents.distributed import Group
from lifelong.experiments.errors import UserError
from lifelong.experiments.versions import code_hash

_PREFIX = "frames_"
_DIGESTS = "digests.json"
_TENSORS_ONLY = StateDictCheckpointAdapter(payload_format="torch")


class Stateful(Protocol):
    """Anything with a state."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any) -> Any: ...


class CheckpointRefused(UserError):
    """A checkpoint that is truncated, altered, foreign, or of another configuration."""


class _Global:
    """The generators of the process (Python, NumPy, torch), for environments that draw from them."""

    def state_dict(self) -> dict[str, Any]:
        return GlobalRNGState().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        GlobalRNGState().load_state_dict(state)


class Parts:
    """What every rank of a training has for itself, side by side: a component of a checkpoint.

    ``gather`` is an exchange, to be made by all ranks before one of them saves; ``restore`` comes after loading.
    """

    def __init__(self, group: Group, own: Mapping[str, Stateful]) -> None:
        self.group = group
        self.own = {**own, "process": _Global()}
        self.parts: list[dict[str, Any]] = []

    def gather(self) -> None:
        self.parts = self.group.gather({name: each.state_dict() for name, each in self.own.items()})

    def restore(self) -> None:
        for name, state in self.parts[self.group.rank].items():
            self.own[name].load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": self.parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.parts = state["parts"]


class _PickleAdapter(CheckpointAdapter):
    """State that only pickle can hold. Loading it can execute code: only ``resume`` does, on one's own run."""

    adapter_id = "lifelong.pickle"
    filename = "state.pkl"

    def save(self, component: Stateful, path: Path, *, args: tuple, kwargs: Mapping) -> None:
        path.mkdir(parents=True)
        with (path / self.filename).open("wb") as file:
            pickle.dump(component.state_dict(), file)

    def load(
        self,
        component: Stateful,
        path: Path,
        *,
        map_location: Any,
        tensor_load_kwargs: Mapping,
        args: tuple,
        kwargs: Mapping,
    ) -> None:
        with (path / self.filename).open("rb") as file:
            component.load_state_dict(pickle.load(file))


def save_checkpoint(
    folder: Path,
    frames: int,
    config: str,
    training: Stateful,
    environment: Stateful,
    pickled_environment: bool,
    keep: int,
    ranks: int = 1,
) -> Path:
    """Write ``folder/frames_<frames>`` and then remove all but the newest ``keep``. ``config`` is the run's, as YAML.
    ``environment`` may be ``Parts`` of several ``ranks``.

    Raises:
        OSError, RuntimeError: the disk is full or cannot be written (torch says so with a RuntimeError); earlier
            checkpoints are untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    destination = folder / f"{_PREFIX}{frames:012d}"
    if destination.exists() and _is_whole(destination):
        return destination  # the run is where it was when it wrote this
    stage = folder / f".{destination.name}.stage-{os.getpid()}"
    try:
        metadata = {"project": "lifelong", "code": code_hash(), "frames": frames, "config": config, "ranks": ranks}
        _coordinator(training, environment, pickled_environment).save(stage, metadata=metadata)
        digests = {name: _digest(stage / name) for name in _files(stage)}
        (stage / _DIGESTS).write_text(json.dumps(digests, indent=1, sort_keys=True))
        for name in [*digests, _DIGESTS]:
            _sync(stage / name)
        shutil.rmtree(destination, ignore_errors=True)  # broken, or it would have been kept
        os.replace(stage, destination)
        _sync(folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return destination


def load_checkpoint(
    path: Path, training: Stateful, environment: Stateful | None, pickled_environment: bool = False, ranks: int = 1
) -> int:
    """Load a checkpoint into ``training`` and, unless None, ``environment`` and the process's generators. Returns
    its frames.

    With ``environment=None`` nothing is unpickled: reading somebody else's checkpoint executes nothing.

    Raises:
        CheckpointRefused: truncated, altered, not one of ours, of another configuration, or of another number of
            ranks.
    """
    metadata = verify_checkpoint(path)
    written_by = metadata.get("ranks", 1)
    if environment is not None and written_by != ranks:
        how = f"with torchrun --nproc-per-node {written_by}" if written_by > 1 else "without torchrun"
        raise CheckpointRefused(
            f"checkpoint {path} holds the lives of {written_by} ranks, not {ranks}; resume it {how}"
        )
    coordinator = _coordinator(training, environment, pickled_environment)
    try:
        coordinator.load(path, components={"training"} if environment is None else None)
    except (
        Exception
    ) as error:  # whatever a broken or foreign file makes torch, pickle or TorchRL raise ends in a refusal by name
        other = ""
        if metadata.get("code") != code_hash():
            other = "; other code wrote it: the versions.txt of its run says which, this is " + code_hash()
        raise CheckpointRefused(f"checkpoint {path} does not fit: {_one_line(error)}{other}") from error
    return int(metadata["frames"])


def drop_later_checkpoints(folder: Path, frames: int) -> None:
    """Remove what lies beyond ``frames``: a run that goes on from an earlier point writes its own."""
    for path in list_checkpoints(folder):
        if path.name > f"{_PREFIX}{frames:012d}":
            shutil.rmtree(path)


def verify_checkpoint(path: Path) -> dict[str, Any]:
    """Check that a checkpoint is whole and ours; returns its metadata.

    Raises:
        CheckpointRefused: says what is wrong with it.
    """
    if not path.is_dir() or not Checkpoint.is_checkpoint(path):
        raise CheckpointRefused(f"{path} is not a checkpoint (no valid manifest.json in it)")
    metadata = Checkpoint.manifest(path).get("metadata")
    if not isinstance(metadata, dict) or metadata.get("project") != "lifelong":
        raise CheckpointRefused(f"checkpoint {path} was not written by lifelong")
    try:
        digests = json.loads((path / _DIGESTS).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointRefused(f"checkpoint {path}: {_DIGESTS} is missing or unreadable") from error
    if not isinstance(digests, dict) or not set(_files(path)) - {_DIGESTS} <= set(digests):
        raise CheckpointRefused(f"checkpoint {path}: {_DIGESTS} does not list every file")
    for name, digest in digests.items():
        file = path / name
        if not file.is_file():
            raise CheckpointRefused(f"checkpoint {path}: {name} is missing")
        if _digest(file) != digest:
            raise CheckpointRefused(f"checkpoint {path}: {name} is truncated or altered")
    return metadata


def fingerprint(path: Path) -> str:
    """Tells checkpoints apart, whatever their names: the digest of their digests."""
    return _digest(path / _DIGESTS)


def _is_whole(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except CheckpointRefused:
        return False
    return True


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first. Hidden folders (half-written ones) are none."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.is_dir())


def latest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint that is whole; broken ones are passed over.

    Raises:
        CheckpointRefused: there is none; the reasons are given.
    """
    reasons = []
    for path in reversed(list_checkpoints(folder)):
        try:
            verify_checkpoint(path)
        except CheckpointRefused as error:
            reasons.append(str(error))
            continue
        return path
    raise CheckpointRefused("; ".join(reasons) if reasons else f"no checkpoint in {folder}")


def _coordinator(training: Stateful, environment: Stateful | None, pickled_environment: bool) -> Checkpoint:
    checkpoint = Checkpoint()
    checkpoint.register("training", training, adapter=_TENSORS_ONLY)
    if environment is not None:
        checkpoint.register(
            "environment", environment, adapter=_PickleAdapter() if pickled_environment else _TENSORS_ONLY
        )
        checkpoint.register("process", _Global(), adapter=_TENSORS_ONLY)
    return checkpoint


def _files(root: Path) -> list[str]:
    return sorted(file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    """What a killed process left half-written."""
    for path in folder.glob(f".{_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _one_line(error: BaseException, longest: int = 300) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= longest else text[:longest] + " ..."
