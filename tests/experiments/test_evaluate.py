"""``lifelong evaluate``: a life that may be cut short anywhere, and what is done to it for comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lifelong.experiments import evaluate as evaluation

Command = Callable[..., Any]
LIFE = ["life_steps=120", "lives=4", "spans=6"]


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
        del span["microseconds_per_step"], span["process_bytes"]
    del result["curves"]["cost"]
    return result


def test_a_life_that_was_cut_short_goes_on_to_the_same_end(
    lifelong: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "evaluation_120_steps_seed0_lives=4_spans=6"
    assert lifelong("evaluate", "run", *LIFE).returncode == 0
    whole = told(run / f"{name}.json")
    (run / f"{name}.json").unlink()

    stretch = evaluation._Record._stretch
    monkeypatch.setattr(evaluation, "_SAVE_SECONDS", 0.0)

    def cut(self: Any, stop: int) -> None:
        if stop > 80:
            raise KeyboardInterrupt
        stretch(self, stop)

    monkeypatch.setattr(evaluation._Record, "_stretch", cut)
    assert lifelong("evaluate", "run", *LIFE).returncode == 130
    part = told(run / f"{name}.json")
    assert not part["finished"]
    assert part["spans"] == whole["spans"][:4]

    monkeypatch.setattr(evaluation._Record, "_stretch", stretch)
    result = lifelong("evaluate", "run", *LIFE)
    assert "going on at life step 80" in result.stdout
    assert told(run / f"{name}.json") == whole
    assert not (run / f".{name}").exists()
    assert {"recovery", "adaptation", "health"} <= set(whole["curves"])


@pytest.mark.parametrize(
    "word", ["fast_weights=frozen", "slow_weights=learning", "reset_memory_every=7", "dtype=bfloat16", "dtype=float64"]
)
def test_each_comparison_is_written_under_a_name_of_its_own(lifelong: Command, run: Path, word: str) -> None:
    result = lifelong("evaluate", "run", *LIFE, word)
    assert result.returncode == 0, result.stderr
    assert (run / f"evaluation_120_steps_seed0_lives=4_spans=6_{word}.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fast_weights=frozn"], "did you mean 'frozen'"),
        (["dtype=float8"], "allowed are float64, float32, float16, bfloat16"),
        (["reset_memory_every=0"], "must be a whole number, 1 or more"),
        (["slow_weights=learning", "dtype=bfloat16"], "slow_weights=learning: goes with"),
    ],
)
def test_a_mistake_is_one_line(lifelong: Command, words: list[str], said: str) -> None:
    result = lifelong("evaluate", "run", *words)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
