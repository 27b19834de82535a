"""``lifelong compare``: plans, choices, kills, failures, and where the runs are computed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lifelong.experiments.comparison import cells_of, load_comparison
from lifelong.experiments.errors import UserError
from lifelong.experiments.run_folder import locked

Command = Callable[..., Any]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
COMPARE = [sys.executable, "-m", "lifelong.experiments.cli", "compare"]

FAULTY = '''
from lifelong.memory import register_core
from lifelong.memory.feed_forward import NoMemory


@register_core("faulty")
class Faulty(NoMemory):
    """Breaks in the first update."""

    def forward(self, inputs, state, reset=None):
        if inputs.shape[1] > 1:
            raise ArithmeticError("the core broke")
        return super().forward(inputs, state, reset)
'''


@pytest.fixture
def words(tiny_any_core: list[str]) -> list[str]:
    return ["env=switching_bandit", "frames=512", "match=none", "out=comparison", *tiny_any_core]


def summaries(folder: Path) -> dict[str, dict[str, object]]:
    """What every finished run came to, by its place, clock times apart."""
    found = {}
    for path in sorted(folder.glob("**/summary.json")):
        summary = json.loads(path.read_text())
        summary.pop("frames_per_second")
        found[str(path.parent.relative_to(folder))] = summary
    return found


def test_each_core_is_run_over_seeds_at_the_rate_that_did_best_and_nothing_is_run_twice(
    lifelong: Command, words: list[str], tmp_path: Path
) -> None:
    words = [*words, "memory=none", "learning_rates=1e-3,1e-2", "seeds=2"]
    result = lifelong("compare", *words)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "comparison"
    plan = json.loads((folder / "compare.json").read_text())
    found = summaries(folder)
    assert len(found) == 3  # two rates on one seed, the second seed at the better
    for cell in plan["cells"]:
        finals = {
            rate: found[f"switching_bandit/{cell['memory']}/lr{rate:g}/seed0"]["final_quarter_score"]
            for rate in (1e-3, 1e-2)
        }
        assert cell["learning_rate"] == max(finals, key=lambda rate: finals[rate])
        assert f"switching_bandit/{cell['memory']}/lr{cell['learning_rate']:g}/seed1" in found

    before = {path: path.stat().st_mtime_ns for path in folder.glob("**/progress.csv")}
    assert lifelong("compare", *words).returncode == 0
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("**/progress.csv")}

    changed = lifelong("compare", *words, "algorithm.gamma=0.5")
    assert changed.returncode == 2
    assert "algorithm.gamma=0.5" in changed.stderr


def test_a_run_that_fails_is_listed_and_the_others_go_on(lifelong: Command, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "faulty_core.py").write_text(FAULTY)
    result = lifelong("compare", *words, "plugins=[faulty_core]", "memory=faulty,none", "seeds=1")
    assert result.returncode == 1
    assert "ArithmeticError: the core broke" in result.stderr
    assert list(summaries(tmp_path / "comparison")) == ["switching_bandit/none/lr0.001/seed0"]


def test_a_comparison_killed_at_any_moment_goes_on_to_the_same_end(words: list[str], tmp_path: Path) -> None:
    command = [*COMPARE, *words, "frames=6400", "checkpoint.every_frames=640", "memory=gru", "seeds=1"]
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    subprocess.run(command, cwd=folders[0], check=True, capture_output=True, env=ENVIRONMENT)

    run = folders[1] / "comparison/switching_bandit/gru/lr0.001/seed0"
    process = subprocess.Popen(
        command, cwd=folders[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    )
    _wait_for(lambda: any((run / "checkpoints").glob("frames_*")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command, cwd=folders[1], check=True, capture_output=True, env=ENVIRONMENT)
    assert "resuming" in run.with_suffix(".log").read_text()
    assert summaries(folders[1]) == summaries(folders[0])
    assert (run / "progress.csv").read_text() == (folders[0] / run.relative_to(folders[1]) / "progress.csv").read_text()


def test_a_run_that_another_process_works_on_is_refused(
    lifelong: Command, tiny_any_core: list[str], tmp_path: Path
) -> None:
    assert lifelong("train", "experiment=switching_bandit", "frames=128", "out=run", *tiny_any_core).returncode == 0
    with locked(tmp_path / "run"):
        result = lifelong("resume", "run", "frames=256")
    assert result.returncode == 2
    assert "another process is working on this run" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["experiment=compare_recal"], "did you mean 'compare_recall'"),
        (["env=switching_bandit"], "a comparison needs memory="),
        (["env=switching_bandit", "memory=gruu"], "did you mean 'gru'"),
        (["env=switching_bandit", "memory=gru", "match=bytes"], "did you mean 'state_bytes'"),
        (["env=switching_bandit", "memory=gru", "seeds=0"], "seeds=0: must be 1 or more"),
        (["env=switching_bandit", "memory=gru", "learning_rates=0"], "above 0"),
        (["env=switching_bandit", "memory=gru", "seeds=2", "tuning_seeds=3"], "at most seeds=2"),
        (["env=switching_bandit", "memory=gru", "algorithm.gama=1"], "did you mean 'algorithm.gamma'"),
        (["env=switching_bandit", "memory"], "not of the form key=value"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")) as error:
        cells_of(load_comparison(words))
    assert "\n" not in str(error.value)


def test_cores_are_matched_by_their_width_and_one_that_cannot_be_is_said_to_miss(
    lifelong: Command, words: list[str], tmp_path: Path
) -> None:
    words = [*words, "match=state_bytes", "budget=128", "memory=gru,none", "seeds=1"]
    result = lifelong("compare", *words)
    assert result.returncode == 0, result.stderr
    cells = json.loads((tmp_path / "comparison/compare.json").read_text())["cells"]
    assert [cell["state_bytes"] for cell in cells] == [128, 0]
    assert "memory.hidden=32" in cells[0]["words"]
    assert "it has no bytes of state to match" in result.stdout


@pytest.mark.slow
def test_on_a_ray_cluster_a_node_may_die_and_nothing_is_lost(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray = pytest.importorskip("ray", reason="needs the optional package ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    try:
        command = [*COMPARE, *words, "frames=12800", "checkpoint.every_frames=640", "memory=gru", "seeds=2"]
        process = subprocess.Popen(
            [*command, "engine=ray", f"ray_address={cluster.address}"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        runs = [tmp_path / f"comparison/switching_bandit/gru/lr0.001/seed{seed}" for seed in (0, 1)]
        _wait_for(lambda: all(any((run / "checkpoints").glob("frames_*")) for run in runs), 240.0)
        cluster.remove_node(second, allow_graceful=False)
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
        assert len(summaries(tmp_path / "comparison")) == 2
        assert sum("resuming" in run.with_suffix(".log").read_text() for run in runs) >= 1
    finally:
        cluster.shutdown()
        ray.shutdown()


def _wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)
