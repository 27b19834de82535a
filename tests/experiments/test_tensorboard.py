"""What TensorBoard shows of a run, read back from its server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
Command = Callable[..., Any]


@pytest.fixture
def served(lifelong: Command, tiny: list[str], tmp_path: Path) -> Any:
    """TensorBoard over a folder with a resumed run and an evaluation of it; ``get(path)`` reads an answer."""
    assert lifelong("train", "env=switching_bandit", *tiny, "frames=256", "out=runs/a").returncode == 0
    assert lifelong("resume", "runs/a", "frames=512").returncode == 0
    assert lifelong("evaluate", "runs/a", "life_steps=20", "lives=4", "spans=2").returncode == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path / "runs"), "--port", str(port)]
    process = subprocess.Popen([*command, "--load_fast=false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/{path}", timeout=10) as answer:
            return json.loads(answer.read())

    deadline = time.monotonic() + 90
    try:
        while True:
            try:
                if get("plugin/scalars/tags"):
                    break
            except OSError:
                assert process.poll() is None, "tensorboard did not start"
            assert time.monotonic() < deadline, "tensorboard showed no run in time"
            time.sleep(0.3)
        yield get
    finally:
        process.terminate()
        process.wait()


def test_tensorboard_shows_one_line_per_tag_by_frames_hyperparameters_and_curves_by_life_step(served: Any) -> None:
    tags = served("plugin/scalars/tags")
    (evaluation,) = set(tags) - {"a"}  # and no second run for the hyperparameters
    assert evaluation.startswith("a/evaluation_20_steps")
    points = served("plugin/scalars/scalars?run=a&tag=rollout%2Freward_rate")
    assert [step for _, step, _ in points] == [128, 256, 384, 512]
    by_life_step = served(f"plugin/scalars/scalars?run={evaluation.replace('/', '%2F')}&tag=life%2Freward_rate")
    assert [step for _, step, _ in by_life_step] == [10, 20]
    histograms = served("plugin/histograms/tags")["a"]
    assert any(tag.startswith("memory_histograms/layer_0/fast_weights") for tag in histograms)
    assert "memory_histograms/surprise" in histograms
    layout = served("plugin/custom_scalars/layout")
    assert {category["title"] for category in layout["category"]} >= {"learning", "memory"}


def test_the_page_of_metrics_holds_every_tag_that_is_written_and_no_other(
    lifelong: Command, tiny: list[str], tmp_path: Path
) -> None:
    """With all on that writes tags; what TensorBoard's own pages are made of is no tag of ours."""
    options = ["algorithm.plasticity_every=1", "algorithm.continual_backprop=1e-4", "algorithm.reward_scale_rate=0.01"]
    options += ["algorithm.objective=average_reward", "frames=256", *tiny]
    for env in ("switching_bandit", "associative_recall"):
        assert lifelong("train", f"env={env}", *options, f"out=runs/{env}").returncode == 0
        assert lifelong("evaluate", f"runs/{env}", "life_steps=20", "lives=4", "spans=1").returncode == 0
    probes = ["memory=gated_delta", "probes=capacity", "updates=10", "state_floats=300,600"]
    assert lifelong("probe", *probes, "out=runs/probe").returncode == 0
    written = set()
    for folder in {path.parent for path in (tmp_path / "runs").rglob("events.out.tfevents.*")}:
        tags = EventAccumulator(str(folder)).Reload().Tags()
        written |= {tag for kind in ("scalars", "histograms", "images") for tag in tags[kind]}
        written |= {tag.removesuffix("/text_summary") for tag in tags["tensors"] if tag.endswith("/text_summary")}
    documented = {word for word in re.findall(r"`([^`]+)`", METRICS.read_text()) if _is_tag(word)}
    assert {tag for tag in written if not any(_matches(word, tag) for word in documented)} == set()
    assert {word for word in documented if not any(_matches(word, tag) for tag in written)} == set()


def _is_tag(word: str) -> bool:
    return word == "config" or re.fullmatch(r"[a-z_]+/[A-Za-z0-9_/]+", word) is not None


def _matches(documented: str, tag: str) -> bool:
    return re.fullmatch(re.sub(r"[A-Z]+", ".+", documented), tag) is not None
