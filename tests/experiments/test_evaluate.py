"""``lifelong evaluate``: a life that may be cut short anywhere, and what is done to it for comparison."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lifelong.agents import NonFinite
from lifelong.agents.evaluation import Evaluation
from lifelong.experiments import evaluate as evaluation

Command = Callable[..., Any]
LIFE = ["life_steps=120", "lives=4", "spans=6"]
NAME = "evaluation_120_steps_seed0_lives=4_spans=6"


@pytest.fixture
def run(lifelong: Command, tiny: list[str], tmp_path: Path) -> Path:
    """A short run in a world that changes often."""
    words = ["env=switching_bandit", "env.hazard=0.03", *tiny, "frames=256", "out=run"]
    assert lifelong("train", *words).returncode == 0
    return tmp_path / "run"


def told(path: Path) -> dict[str, Any]:
    """What an evaluation says, clock times and the process's size apart."""
    result: dict[str, Any] = json.loads(path.read_text())
    for span in result["spans"]:
        del span["microseconds_per_step"], span["cpu_microseconds_per_step"], span["process_bytes"]
    del result["curves"]["cost"]
    return result


def cut_at_step_80(lifelong: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """``evaluate`` as if Ctrl-C came there."""
    stretch = evaluation._Record._stretch

    def cut(self: Any, stop: int) -> None:
        if stop > 80:
            raise KeyboardInterrupt
        stretch(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "SAVE_SECONDS", 0.0)
        patch.setattr(evaluation._Record, "_stretch", cut)
        assert lifelong("evaluate", "run", *LIFE).returncode == 130


def points(folder: Path) -> list[int]:
    """Life steps in TensorBoard, in all files together."""
    accumulator = EventAccumulator(str(folder), purge_orphaned_data=False)
    accumulator.Reload()
    return [event.step for event in accumulator.Scalars("life/reward_rate")]


def test_a_life_that_was_cut_short_goes_on_to_the_same_end(
    lifelong: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lifelong("evaluate", "run", *LIFE).returncode == 0
    whole = told(run / f"{NAME}.json")
    (run / f"{NAME}.json").unlink()
    shutil.rmtree(run / NAME)

    cut_at_step_80(lifelong, monkeypatch)
    part = told(run / f"{NAME}.json")
    assert not part["finished"]
    assert part["spans"] == whole["spans"][:4]
    assert points(run / NAME) == [20, 40, 60, 80]

    result = lifelong("evaluate", "run", *LIFE)
    assert "going on at life step 80" in result.stdout
    assert told(run / f"{NAME}.json") == whole
    assert points(run / NAME) == [20, 40, 60, 80, 100, 120]
    assert not (run / f".{NAME}").exists()
    assert {"changes", "adaptation", "health"} <= set(whole["curves"])


def test_a_life_of_older_weights_is_not_gone_on_with(
    lifelong: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_at_step_80(lifelong, monkeypatch)
    assert lifelong("resume", "run", "frames=384").returncode == 0
    result = lifelong("evaluate", "run", *LIFE)
    assert "is of another checkpoint's weights; the life starts anew" in result.stdout
    anew = told(run / f"{NAME}.json")
    assert lifelong("evaluate", "run", *LIFE).returncode == 0
    assert told(run / f"{NAME}.json") == anew


@pytest.mark.parametrize("pattern", ["manifest.json", "digests.json", "components/*/*"])
def test_a_life_whose_kept_state_is_broken_starts_anew(
    lifelong: Command, run: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    cut_at_step_80(lifelong, monkeypatch)
    (kept,) = (run / f".{NAME}").glob("frames_*")
    broken = next(path for path in kept.glob(pattern) if path.is_file())
    broken.write_bytes(broken.read_bytes()[:10])
    result = lifelong("evaluate", "run", *LIFE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("the life starts anew") == 1
    assert len(told(run / f"{NAME}.json")["spans"]) == 6


def test_the_lifetime_score_is_a_ratio_of_sums_over_steps(lifelong: Command, run: Path) -> None:
    result = lifelong("evaluate", "run", "life_steps=100", "lives=4", "spans=3")
    told_of = json.loads((run / "evaluation_100_steps_seed0_lives=4_spans=3.json").read_text())
    spans, references = told_of["spans"], told_of["references"]
    assert [span["stop"] for span in spans] == [33, 50, 66, 100]
    for part, chosen in (("whole", spans), ("second_half", spans[2:])):
        steps = [span["stop"] - span["start"] for span in chosen]
        rate = sum(n * span["reward_rate"] for n, span in zip(steps, chosen, strict=True)) / sum(steps)
        wanted = (rate - references["random"]) / (references["oracle"] - references["random"])
        assert told_of["lifetime_score"][part] == pytest.approx(wanted)
        assert f"{wanted:.3f}" in result.stdout.split("lifetime score")[1]


def test_why_a_life_ended_early_is_written_down(lifelong: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_to = Evaluation.run_to

    def break_at_60(self: Evaluation, stop: int) -> Any:
        if stop == 60:
            raise NonFinite("memory GatedDelta: fast_weights of life 0 is not finite at its step 59")
        return run_to(self, stop)

    monkeypatch.setattr(Evaluation, "run_to", break_at_60)
    assert lifelong("evaluate", "run", *LIFE).returncode == 1
    part = told(run / f"{NAME}.json")
    assert not part["finished"]
    assert "not finite at its step 59" in part["fault"]
    assert len(part["spans"]) == 2


@pytest.mark.parametrize(("in_the_way", "code"), [(f".{NAME}", 2), (NAME, 1), (f"{NAME}.json", 1)])
def test_a_disk_that_cannot_be_written_is_one_line(lifelong: Command, run: Path, in_the_way: str, code: int) -> None:
    if in_the_way.endswith(".json"):
        (run / in_the_way).mkdir()
    else:
        (run / in_the_way).write_text("")
    result = lifelong("evaluate", "run", *LIFE)
    assert result.returncode == code
    assert result.stderr.count("\n") == 1
    assert "writ" in result.stderr


def test_a_state_that_cannot_be_kept_is_one_line(lifelong: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc]\n. unexpected pos")

    monkeypatch.setattr(evaluation, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(evaluation, "save_checkpoint", full)
    result = lifelong("evaluate", "run", *LIFE)
    assert result.returncode == 1
    assert "the life at step 20 was not kept" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("lives", [4, 8])
def test_learning_goes_on_without_the_pasts_of_the_training_lives(
    lifelong: Command, tiny: list[str], tmp_path: Path, lives: int
) -> None:
    words = ["env=switching_bandit", *tiny, "frames=256", "algorithm.history=1", "out=run"]
    assert lifelong("train", *words).returncode == 0
    path, config = evaluation.find_checkpoint(str(tmp_path / "run"))
    options = evaluation.parse_options(["slow_weights=learning", f"lives={lives}"])
    _, life = evaluation.build_life(path, config, options)
    assert isinstance(life, evaluation.LearningLife)
    assert life.trainer.algorithm.history.state_dict() == {"segments": []}
    life.run_to(32)


@pytest.mark.parametrize(
    "word", ["fast_weights=frozen", "slow_weights=learning", "reset_memory_every=7", "dtype=bfloat16", "dtype=float64"]
)
def test_each_comparison_is_written_under_a_name_of_its_own(lifelong: Command, run: Path, word: str) -> None:
    result = lifelong("evaluate", "run", *LIFE, word)
    assert result.returncode == 0, result.stderr
    assert (run / f"{NAME}_{word}.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fast_weights=frozn"], "did you mean 'frozen'"),
        (["dtype=float8"], "allowed are float64, float32, float16, bfloat16"),
        (["reset_memory_every=0"], "must be a whole number, 1 or more"),
        (["slow_weights=learning", "dtype=bfloat16"], "slow_weights=learning: goes with"),
        (["fast_weights=frozen", "reset_memory_every=7"], "reset_memory_every=7: goes with fast_weights=live"),
    ],
)
def test_a_mistake_is_one_line(lifelong: Command, words: list[str], said: str) -> None:
    result = lifelong("evaluate", "run", *words)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
