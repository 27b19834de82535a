"""``lifelong compare``: plans, choices, kills, failures, and where the runs are computed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lifelong.experiments import compare_plan
from lifelong.experiments.compare import _Comparison
from lifelong.experiments.compare_plan import Plan
from lifelong.experiments.compare_sizes import Matched, match_cells
from lifelong.experiments.comparison import ComparisonConfig, cells_of, load_comparison, run_config
from lifelong.experiments.engine import Ended, Job
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


OWN_CORE = """
from lifelong.memory import register_core
from lifelong.memory.feed_forward import NoMemory

register_core("own")(type("Own", (NoMemory,), {}))
"""


def test_the_runs_at_the_chosen_rate_are_evaluated_once(lifelong: Command, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "own_core.py").write_text(OWN_CORE)
    words = [*words, "plugins=[own_core]", "memory=own", "learning_rates=1e-3,1e-2", "seeds=2"]
    words += ["evaluate=life_steps=30,lives=2,spans=2", "out=whole"]
    result = lifelong("compare", *words)
    assert result.returncode == 0, result.stderr
    cells = tmp_path / "whole/switching_bandit/own"
    (cell,) = json.loads((tmp_path / "whole/compare.json").read_text())["cells"]
    lives = {path: path.stat().st_mtime_ns for path in cells.glob("*/*/evaluation_30_steps_seed0_lives=2_spans=2.json")}
    assert {path.parent for path in lives} == {cells / f"lr{cell['learning_rate']:g}" / f"seed{s}" for s in (0, 1)}
    assert all(json.loads(path.read_text())["finished"] for path in lives)

    first, second = lives
    second.write_text(second.read_text().replace('"finished": true', '"finished": false'))  # as a kill leaves it
    assert lifelong("compare", *words).returncode == 0
    assert json.loads(second.read_text())["finished"]
    assert lives[first] == first.stat().st_mtime_ns


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
        (["env=switching_bandit", "memory=gru", "algorithm.learning_rate=1e-4"], "use learning_rates="),
        (["env=switching_bandit", "memory=gru", "algorithm.final_learning_rate=1e-4"], "use learning_rates="),
        (["env=switching_bandit", "memory=gru", "seed=7"], "use seeds="),
        (["env=switching_bandit", "memory=gru", "learning_rates=1e-3,0.001"], "each rate once"),
        (["env=switching_bandit", "cores=gru"], "cores=gru: not in a comparison; use memory=NAME"),
        (["env=switching_bandit", "memory=gru", "engine=ray", "gpus=-1"], "gpus=-1.0: must be 0 or more"),
        (["env=switching_bandit", "memory=gru", "ray_address=auto"], "only with engine=ray"),
        (["env=switching_bandit", "memory=gru", "evaluate=life_step=9"], "did you mean 'life_steps'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")) as error:
        cells_of(load_comparison(words))
    assert "\n" not in str(error.value)


def test_the_rates_of_a_comparisons_own_file_are_those_of_its_runs() -> None:
    cells = cells_of(load_comparison(["experiment=headline", "memory=none"]))
    assert {cell.fall for cell in cells} == {0.25}
    assert cells[0].job(Path(), 0.0008, 3, 1, 0.0).words[-3:] == (
        "algorithm.learning_rate=0.0008",
        "algorithm.final_learning_rate=0.0002",
        "seed=3",
    )


def matched_cells(*words: str) -> tuple[ComparisonConfig, list[Matched]]:
    config = load_comparison(words)
    return config, match_cells(config, cells_of(config))


def test_one_core_may_stand_in_a_comparison_several_times_under_labels() -> None:
    cells = {cell.memory: run_config(cell).memory for cell in cells_of(load_comparison(["experiment=mixed_heads"]))}
    assert {memory["name"] for memory in cells.values()} == {"mixed_heads"}
    assert cells["without_rotary"]["heads"] == ["plain*3", "backward", "counting"]
    only = load_comparison(["experiment=mixed_heads", "memory=all,gru"])
    assert {run_config(cell).memory["name"] for cell in cells_of(only)} == {"mixed_heads", "gru"}
    with pytest.raises(UserError, match=r"memory=without_rotaries: unknown; allowed: all, .*mean 'without_rotary'\?$"):
        load_comparison(["experiment=mixed_heads", "memory=without_rotaries"])


@pytest.mark.parametrize("label", ["", "..", "a/b", "-x"])
def test_a_label_that_would_leave_its_folder_is_refused(label: str) -> None:
    config = load_comparison(["experiment=mixed_heads"])
    config.cores[label] = ["memory=gru"]
    with pytest.raises(UserError, match="is to name a folder"):
        cells_of(config)


def test_what_cores_are_matched_to_and_by_how_much_they_miss_it_is_kept(tmp_path: Path) -> None:
    words = ["env=switching_bandit", "memory=gated_delta,gru", "agent.width=16"]
    Plan(tmp_path, *matched_cells(*words, "budget=128")).write({}, [])
    cells = json.loads((tmp_path / "compare.json").read_text())["cells"]
    assert [(cell["match"], cell["budget"]) for cell in cells] == [("state_bytes", 128)] * 2
    assert "above the 128 bytes of state asked for" in cells[0]["note"]
    assert cells[1]["note"] == ""


def test_a_folder_takes_more_cores_of_the_same_budget_and_no_other(tmp_path: Path) -> None:
    words = ["env=switching_bandit", "agent.width=16"]
    Plan(tmp_path, *matched_cells(*words, "memory=gru", "budget=512")).write({}, [])
    for changed in (["memory=gru", "budget=4096"], ["memory=lstm", "budget=4096"]):
        with pytest.raises(UserError, match=r"there budget=512.*; here budget=4096"):
            Plan(tmp_path, *matched_cells(*words, *changed))
    with pytest.raises(UserError, match="there match=state_bytes; here match=parameters"):
        Plan(tmp_path, *matched_cells(*words, "memory=lstm", "match=parameters", "budget=512"))
    Plan(tmp_path, *matched_cells(*words, "memory=lstm", "budget=512")).write({}, [])
    cells = json.loads((tmp_path / "compare.json").read_text())["cells"]
    assert [cell["memory"] for cell in cells] == ["lstm", "gru"]


def test_the_same_settings_in_another_order_are_the_same(tmp_path: Path) -> None:
    words = ["env=switching_bandit", "memory=gru", "match=none"]
    Plan(tmp_path, *matched_cells(*words, "algorithm.gamma=0.5", "frames=512")).write({}, [])
    Plan(tmp_path, *matched_cells(*words, "frames=512", "algorithm.gamma=0.5"))
    with pytest.raises(UserError, match=r"there algorithm.gamma=0.5; here nothing else\)"):
        Plan(tmp_path, *matched_cells(*words, "frames=512"))


def test_the_versions_of_every_call_stay_in_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in ("a", "b", "b"):
        monkeypatch.setattr(compare_plan, "versions", lambda code=code: ["python 3", f"code {code}"])
        Plan(tmp_path, *matched_cells("env=switching_bandit", "memory=gru", "match=none")).write({}, [])
    kept = json.loads((tmp_path / "compare.json").read_text())["versions"]
    assert kept == [["python 3", "code a"], ["python 3", "code b"]]


def test_a_first_core_without_state_is_no_budget() -> None:
    with pytest.raises(UserError, match="the first core, none, has no state to match to; give budget="):
        matched_cells("env=switching_bandit", "memory=none,gru", "budget=null")


def test_a_plan_says_what_would_be_run(lifelong: Command) -> None:
    said = lifelong("compare", "env=switching_bandit", "memory=lru", "seeds=1", "frames=512", "plan_only=true").stdout
    assert "1 core in 1 environment, 1 run, 512 frames; nothing was run" in said
    assert "environments" not in said


def test_every_size_that_a_core_has_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_comparison(["env=switching_bandit,recall_stream", "memory=gru", "match=none"])
    config.environments["recall_stream"].append("agent.width=16")
    match_cells(config, cells_of(config))
    rows = [line.split()[-2] for line in capsys.readouterr().out.splitlines() if " gru " in line]
    assert rows == ["switching_bandit", "recall_stream"]


class Instantly:
    """An engine whose runs end at once; ``summary`` says what each leaves."""

    slots = 2

    def __init__(self, summary: Callable[[Job], str]) -> None:
        self.summary, self.over = summary, list[Ended]()

    def start(self, job: Job) -> None:
        job.folder.mkdir(parents=True)
        (job.folder / "summary.json").write_text(self.summary(job))
        self.over.append(Ended(job, None))

    def ended(self) -> list[Ended]:
        over, self.over = self.over, []
        return over

    def stop(self) -> None:
        raise NotImplementedError


def summary(final: float | None, best: float | None = None) -> str:
    values = {"final_quarter": final, "best": final if best is None else best, "frames_per_second": 100.0}
    return json.dumps({**values, "final_quarter_score": None, "best_score": None})


@pytest.fixture
def run_instantly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``run_instantly(summary, word, ...)``: the exit code of a comparison in the temporary folder."""
    monkeypatch.setattr("lifelong.experiments.compare._POLL_SECONDS", 0.0)

    def run(summary: Callable[[Job], str], *words: str) -> int:
        config, matched = matched_cells("env=switching_bandit", "memory=none,gru", "match=none", *words)
        return _Comparison(config, matched, tmp_path).go(Instantly(summary))

    return run


def test_a_summary_that_cannot_be_read_is_a_failed_run_and_the_others_count(
    run_instantly: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def torn(job: Job) -> str:
        return '{"final' if "gru" in job.words[-4] and job.words[-1] == "seed=1" else summary(0.5)

    assert run_instantly(torn, "seeds=3") == 1
    said = capsys.readouterr()
    broken = tmp_path / "switching_bandit/gru/lr0.001/seed1"
    assert f"failed: {broken}: summary.json cannot be read; delete it" in said.err
    assert [line.split()[7] for line in said.out.splitlines() if "0.001" in line] == ["3", "2"]  # seeds
    assert str(broken) in (tmp_path / "compare.json").read_text()


@pytest.mark.parametrize("rates", ["1e-3", "1e-3,1e-2"])
def test_runs_in_which_no_episode_ended_are_listed_as_failed(
    rates: str, run_instantly: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_instantly(lambda job: summary(None if "memory=gru" in job.words else 0.5), f"learning_rates={rates}")
    said = capsys.readouterr()
    assert code == 1
    failed = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert "gru/lr0.001/seed0: no episode ended in its final quarter" in failed[0]
    assert all("/gru/" in line for line in failed)


def test_best_is_a_mean_over_seeds_too_and_one_seed_has_no_interval(
    run_instantly: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    bests = {f"seed={seed}": best for seed, best in enumerate((0.6, 0.7, 0.7, 1.0))}
    run_instantly(lambda job: summary(0.5, bests[job.words[-1]]), "seeds=4", "memory=gru")
    said = capsys.readouterr().out
    assert "0.500 to 0.500" in said
    assert "0.700" in said
    run_instantly(lambda job: summary(0.5), "seeds=1", "memory=none")
    said = capsys.readouterr().out
    assert " to " not in said


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


def test_what_listens_and_is_not_ray_is_said_so_before_anything_is_made(
    lifelong: Command, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs the optional package ray")
    monkeypatch.setattr("lifelong.experiments.engine_ray._CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        result = lifelong("compare", *words, "memory=none", "engine=ray", f"ray_address={address}")
    assert result.returncode == 2
    assert f"ray_address={address}: no answer within 0.2 seconds" in result.stderr
    assert not (tmp_path / "comparison").exists()


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


@pytest.mark.slow
def test_on_ray_a_run_that_kills_its_worker_each_time_comes_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="needs the optional package ray")
    from lifelong.experiments import engine_ray

    def deadly(job: Job) -> int:
        with job.log.open("a") as log:
            log.write("begun\n")
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setattr(engine_ray, "_task", deadly)
    monkeypatch.setattr(engine_ray, "_RETRIES", 1)
    engine, job = engine_ray.RayEngine(1, 1, 0.0, None), Job(tmp_path / "run", ())
    over: list[Ended] = []
    try:
        engine.start(job)
        _wait_for(lambda: bool(over.extend(engine.ended()) or over))
    finally:
        engine.stop()
        ray.shutdown()
    assert [ended.job for ended in over] == [job]
    assert "its worker was lost 2 times" in str(over[0].fault)
    assert job.log.read_text() == "begun\n" * 2


def _wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)
