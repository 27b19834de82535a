"""A run that is killed and resumed is the run that was not: weights and logs, bit for bit."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lifelong.experiments.checkpoint import latest_checkpoint
from lifelong.experiments.engine import Job
from lifelong.experiments.one_run import run_to_end
from lifelong.experiments.run_folder import recorded_versions
from lifelong.experiments.versions import versions

ENVIRONMENTS = {
    "switching_bandit": ["env=switching_bandit"],
    "associative_recall": ["env=associative_recall"],
    "gymnasium": ["env=CartPole-v1"],
    "minigrid": ["env=minigrid_memory_s9"],
}


def training_state(run: Path) -> dict:
    (file,) = latest_checkpoint(run / "checkpoints").glob("components/*-training/state.pt")
    return torch.load(file, weights_only=True)


def assert_equal(left, right, where: str = "") -> None:
    """Equal to the bit, through all containers."""
    assert type(left) is type(right), where
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_equal(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for index, pair in enumerate(zip(left, right, strict=True)):
            assert_equal(*pair, f"{where}/{index}")
    else:
        assert left == right, where


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("time/")]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def wait_for_frames(run: Path, frames: int, process) -> None:
    """Until progress.csv has a row at or beyond ``frames``."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        table = run / "progress.csv"
        rows = table.read_text().splitlines()[1:] if table.exists() else []
        if rows and rows[-1].split(",")[0].isdigit() and int(rows[-1].split(",")[0]) >= frames:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    raise AssertionError("the run did not get there in time")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_killed_and_resumed_is_the_same_as_in_one_go(lifelong_process, start, tmp_path, tiny, name):
    words = [*ENVIRONMENTS[name], *tiny, "frames=3840", "checkpoint.every_frames=640"]
    whole = lifelong_process("train", *words, "out=whole")
    assert whole.returncode == 0, whole.stderr
    process = start("train", *words, "out=killed")
    wait_for_frames(tmp_path / "killed", 1280, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed" / "summary.json").exists(), "it was to be killed before its end"
    resumed = lifelong_process("resume", "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert_equal(training_state(tmp_path / "killed"), training_state(tmp_path / "whole"))
    assert (tmp_path / "killed" / "progress.csv").read_bytes() == (tmp_path / "whole" / "progress.csv").read_bytes()
    assert scalars(tmp_path / "killed") == scalars(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(lifelong, start, tmp_path, tiny, number):
    process = start("train", *tiny, "frames=100000", "out=run")
    wait_for_frames(tmp_path / "run", 256, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "lifelong resume run" in out
    assert "Traceback" not in err
    frames = training_state(tmp_path / "run")["frames"]
    assert frames >= 256
    resumed = lifelong("resume", "run", f"frames={frames + 256}")
    assert resumed.returncode == 0, resumed.stderr
    assert training_state(tmp_path / "run")["frames"] == frames + 256


def test_a_finished_run_can_be_given_more_frames(lifelong, tmp_path, tiny):
    assert lifelong("train", *tiny, "frames=256", "out=run").returncode == 0
    assert lifelong("resume", "run", "frames=512").returncode == 0
    assert training_state(tmp_path / "run")["frames"] == 512
    assert len((tmp_path / "run" / "command.txt").read_text().splitlines()) == 2


def test_a_config_edited_since_is_named_for_it_has_no_effect(lifelong, tmp_path, tiny):
    assert lifelong("train", *tiny, "frames=128", "out=run").returncode == 0
    assert "config.yaml" not in lifelong("resume", "run", "frames=256").stderr
    assert "config.yaml" not in lifelong("resume", "run").stderr  # fewer frames there than in the checkpoint is no edit
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text()
    file.write_text(text.replace("seed: 0", "seed: 5").replace("head_dim: 8", "head_dim: 16"))
    resumed = lifelong("resume", "run", "frames=384")
    assert resumed.returncode == 0, resumed.stderr
    (line,) = [line for line in resumed.stderr.splitlines() if "config.yaml" in line]
    assert line.endswith("says otherwise: memory.head_dim, seed")
    file.write_text(text.replace("frames: 128", "frames: 9999"))
    assert "config.yaml says otherwise: frames" in lifelong("resume", "run").stderr
    file.write_text(text.replace("seed: 0", "sed: 0"))
    resumed = lifelong("resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert "config.yaml cannot be read: sed" in resumed.stderr


OTHER_VERSIONS = ["torch 9.9.9", "code 0123456789ab"]


def test_a_run_resumed_on_other_versions_says_so(lifelong, tmp_path, tiny, monkeypatch):
    run = tmp_path / "run"
    assert lifelong("train", *tiny, "frames=128", "out=run").returncode == 0
    assert lifelong("resume", "run", "frames=256").returncode == 0
    assert recorded_versions(run) == [versions()]
    monkeypatch.setattr("lifelong.experiments.run_folder.versions", lambda: OTHER_VERSIONS)
    assert lifelong("resume", "run", "frames=384").returncode == 0
    assert recorded_versions(run) == [versions(), OTHER_VERSIONS]
    assert "resumed at 256 frames on:\ntorch 9.9.9\n" in (run / "versions.txt").read_text()


def test_a_run_that_a_comparison_goes_on_with_says_the_same(lifelong, tmp_path, tiny, monkeypatch):
    run = tmp_path / "run"
    assert lifelong("train", *tiny, "frames=128", "out=run").returncode == 0
    (run / "summary.json").unlink()  # as a kill leaves it
    monkeypatch.setattr("lifelong.experiments.run_folder.versions", lambda: OTHER_VERSIONS)
    assert run_to_end(Job(run, ())) == 0
    assert recorded_versions(run) == [versions(), OTHER_VERSIONS]
    assert (run / "command.txt").read_text().splitlines()[1:] == [f"lifelong resume {run}"]
