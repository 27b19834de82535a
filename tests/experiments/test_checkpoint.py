"""Checkpoints are whole or not there, and what is not ours is refused by name."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from lifelong.experiments import checkpoint as module
from lifelong.experiments.checkpoint import (
    CheckpointRefused,
    drop_later_checkpoints,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)


class Box:
    """Something with a state."""

    def __init__(self, value) -> None:
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state) -> None:
        self.value = state["value"]


def save(folder: Path, frames: int, keep: int = 2, environment=1.0, pickled: bool = False) -> Path:
    return save_checkpoint(folder, frames, "seed: 0\n", Box(torch.arange(frames)), Box(environment), pickled, keep)


def test_what_was_saved_is_loaded_generators_included(tmp_path):
    torch.manual_seed(5)
    path = save(tmp_path, 3, environment=7.5)
    expected = torch.rand(2)
    torch.manual_seed(0)
    training, environment = Box(None), Box(None)
    assert load_checkpoint(path, training, environment) == 3
    assert torch.equal(training.value, torch.arange(3))
    assert environment.value == 7.5
    assert torch.equal(torch.rand(2), expected)


def test_only_the_newest_are_kept(tmp_path):
    for frames in (1, 2, 3, 4):
        save(tmp_path, frames, keep=2)
    assert [path.name[-2:] for path in list_checkpoints(tmp_path)] == ["03", "04"]


class Bomb:
    """Executes code when unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_reading_without_the_environment_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "run", 3, environment=Bomb(), pickled=True)
    training = Box(None)
    load_checkpoint(path, training, None)
    assert torch.equal(training.value, torch.arange(3))
    assert not Path("exploded").exists()
    load_checkpoint(path, training, Box(None), pickled_environment=True)
    assert Path("exploded").exists(), "the bomb must be able to go off, or this test shows nothing"


def test_code_in_the_tensors_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "run", 3)
    (file,) = path.glob("components/*-training/state.pt")
    torch.save({"value": Bomb()}, file)
    _renew_digest(path, file)
    with pytest.raises(CheckpointRefused, match="does not fit"):
        load_checkpoint(path, Box(None), None)
    assert not Path("exploded").exists()


@pytest.mark.parametrize("other", [True, False])
def test_what_does_not_fit_says_whether_other_code_wrote_it(tmp_path, monkeypatch, other):
    path = save(tmp_path / "run", 3)
    if other:
        monkeypatch.setattr(module, "code_hash", lambda: "0123456789ab")

    class Narrower(Box):
        def load_state_dict(self, state) -> None:
            raise RuntimeError("size mismatch")

    with pytest.raises(CheckpointRefused, match=r"does not fit: .*size mismatch") as refused:
        load_checkpoint(path, Narrower(None), None)
    assert ("other code wrote it" in str(refused.value)) == other


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_truncated_file_is_refused_by_name_and_the_one_before_is_taken(tmp_path, cut):
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    (file,) = second.glob("components/*-training/state.pt")
    content = file.read_bytes()
    file.write_bytes(content[:cut])
    with pytest.raises(CheckpointRefused, match=r"state\.pt is truncated or altered"):
        load_checkpoint(second, Box(None), None)
    assert latest_checkpoint(tmp_path) == first


def test_a_flipped_bit_is_refused(tmp_path):
    path = save(tmp_path, 2)
    (file,) = path.glob("components/*-training/state.pt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointRefused, match="truncated or altered"):
        verify_checkpoint(path)


@pytest.mark.parametrize("content", ["{}", "[]", "null", "{", "5"])
def test_a_list_of_digests_that_is_not_whole_is_refused(tmp_path, content):
    path = save(tmp_path, 2)
    (path / "digests.json").write_text(content)
    with pytest.raises(CheckpointRefused, match=r"digests\.json"):
        verify_checkpoint(path)


def test_what_lies_beyond_the_point_of_resumption_is_dropped(tmp_path):
    for frames in (1, 2, 3):
        save(tmp_path, frames, keep=3)
    drop_later_checkpoints(tmp_path, 2)
    assert [path.name[-2:] for path in list_checkpoints(tmp_path)] == ["01", "02"]


def test_a_missing_file_is_named(tmp_path):
    path = save(tmp_path, 2)
    (file,) = path.glob("components/*-training/state.pt")
    file.unlink()
    with pytest.raises(CheckpointRefused, match=r"state\.pt is missing"):
        verify_checkpoint(path)


def test_a_folder_that_is_no_checkpoint_of_ours_is_refused(tmp_path):
    (tmp_path / "frames_000000000001").mkdir()
    with pytest.raises(CheckpointRefused, match="is not a checkpoint"):
        latest_checkpoint(tmp_path)
    from torchrl.checkpoint import Checkpoint

    foreign = Checkpoint(thing=Box(torch.ones(1))).save(tmp_path / "foreign")
    with pytest.raises(CheckpointRefused, match="was not written by lifelong"):
        verify_checkpoint(foreign)


@pytest.mark.parametrize("where", ["torch.save", "sync", "rename"])
def test_a_full_disk_loses_no_earlier_checkpoint_and_leaves_no_half_of_the_new_one(tmp_path, monkeypatch, where):
    save(tmp_path, 1)
    first = save(tmp_path, 2)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if where == "torch.save":
            patch.setattr(torch, "save", full)
        elif where == "sync":
            patch.setattr(module, "_sync", full)
        else:
            patch.setattr(module.os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 3)
    assert latest_checkpoint(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir() if "stage" in path.name] == []
    assert latest_checkpoint(tmp_path) != save(tmp_path, 3)


def test_a_real_full_disk_loses_no_earlier_checkpoint(tmp_path):
    """On a file system of 1 MiB, where one can be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {disk} 2>/dev/null") != 0:
        pytest.skip("cannot mount a small file system here")
    try:
        first = save(disk, 1)
        with pytest.raises((OSError, RuntimeError)):
            save(disk, 10_000_000)
        assert latest_checkpoint(disk) == first
        load_checkpoint(first, Box(None), Box(None))
    finally:
        os.system(f"umount {disk}")


def test_what_a_killed_process_left_half_written_is_not_seen_and_is_swept_away(tmp_path):
    first = save(tmp_path, 1)
    half = tmp_path / ".frames_000000000002.stage-99999"
    shutil.copytree(first, half)
    (half / "manifest.json").unlink()
    assert latest_checkpoint(tmp_path) == first
    save(tmp_path, 3)
    assert not half.exists()


def _renew_digest(path: Path, file: Path) -> None:
    """Make an altered file pass the digest, so that what is tested is the loading."""
    import json

    digests = json.loads((path / "digests.json").read_text())
    digests[file.relative_to(path).as_posix()] = module._digest(file)
    (path / "digests.json").write_text(json.dumps(digests))


def test_a_pickle_is_really_used_for_the_environment_where_asked(tmp_path):
    path = save(tmp_path, 1, environment={1, 2}, pickled=True)
    (file,) = path.glob("components/*-environment/state.pkl")
    assert pickle.loads(file.read_bytes()) == {"value": {1, 2}}
