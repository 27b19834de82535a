"""``lifelong list memory --check``: the requirements measured, and what fails them seen to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lifelong.experiments import requirements_check
from lifelong.experiments.cli import main
from lifelong.experiments.requirements_check import (
    Requirements,
    build,
    live,
    parallel_form,
    recall_batch,
    share_lost,
    weights_by_age,
)

GOOD = Requirements("m", 100, 100, 10**6, 10.0, 11.0, 1e-7, 8.0, 0.0, {1: 1.0, 1000: 1e-9}, 0.9)


def test_each_requirement_that_is_not_met_is_named() -> None:
    assert GOOD.failures() == []
    bad = Requirements("m", 100, 200, 10**4, 10.0, 16.0, 1e-3, 1.1, 0.5, {}, 0.2)
    words = ["state grows", "step slows", "parallel form differs", "no parallel form", "loses writes", "recalls little"]
    assert bad.failures() == words


def test_a_parallel_form_that_is_not_a_number_fails() -> None:
    bad = Requirements("m", 100, 100, 10**6, 10.0, 11.0, float("nan"), 8.0, 0.0, {}, 0.9)
    assert bad.failures() == ["parallel form differs"]


def test_a_window_loses_all_but_its_steps_and_fast_weights_lose_nothing() -> None:
    window = weights_by_age(build("softmax_window", 1_001))
    assert bool((window[:64] > 0).all())
    assert not window[64 + 3 :].any()  # three more are seen through the convolution
    assert share_lost(window) > 0.9
    fading = weights_by_age(build("gated_delta", 1_001))
    assert fading[1000] < fading[1]
    assert share_lost(fading) == 0.0  # what fades is still there
    nothing = weights_by_age(build("none", 1_001))
    assert not nothing.any()
    assert share_lost(nothing) == 1.0


def test_what_float32_cannot_hold_is_lost_though_float64_finds_it() -> None:
    fading = weights_by_age(build("gru", 1_001))
    assert bool((fading > 0).all())
    assert share_lost(fading) > 0.9
    weights = torch.ones(1_001, dtype=torch.float64)
    weights[0], weights[1:501] = 0.5, 1e3  # the newest of all is not what the others are held against
    weights[501:751] = 1e3 * 2e-7
    weights[751:] = 1e3 * 1e-7
    assert share_lost(weights) == 0.25


def test_a_life_is_lived_to_the_step_asked_for_or_until_the_time_is_up() -> None:
    state, lived = live(build("softmax", 3_000), 2_000, seconds=100.0)
    assert lived == 2_000
    assert state["life_step"].tolist() == [2_000]
    assert live(build("gru", 0), 10**6, seconds=0.0)[1] == 1_000


def test_a_wrong_parallel_form_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements_check, "_PARALLEL_STEPS", 64)
    core = build("gru", 0)
    assert parallel_form(core)[0] < 1e-5
    right = core.step

    def wrong(inputs, state, reset=None):  # type: ignore[no-untyped-def]
        return right(inputs, state, None)  # forgets nothing at a reset

    core.step = wrong  # type: ignore[method-assign]
    assert parallel_form(core)[0] > 1e-3


def test_the_recall_task_asks_each_pair_once() -> None:
    tokens, answers = recall_batch(5, torch.Generator().manual_seed(0))
    keys, values, asked = tokens[:, :8, :16], tokens[:, :8, 16:24].argmax(-1), tokens[:, 8:, -16:]
    which = (asked.unsqueeze(2) == keys.unsqueeze(1)).all(-1).long().argmax(-1)
    assert which.sort(1).values.tolist() == [list(range(8))] * 5
    assert torch.equal(values.gather(1, which), answers)


def test_the_command_prints_a_row_per_core_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements_check, "_UPDATES", 1)
    monkeypatch.setattr(requirements_check, "_PARALLEL_STEPS", 16)
    monkeypatch.setattr(requirements_check, "_GROWING_REACH", 2_000)
    out = tmp_path / "table" / "check.json"
    assert main(["list", "memory", "--check", "memory=softmax,none", "seconds=0", f"out={out}"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[2:4]] == ["softmax", "none"]
    found = json.loads(out.read_text())
    assert "state grows" in found["softmax"]["fails"]
    assert found["softmax"]["bytes_old"] > 500 * found["softmax"]["bytes_young"]
    assert found["none"]["lost"] == 1.0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["memory=grru"], "memory=grru: unknown; allowed: .*; did you mean 'gru'?"),
        (["memry=gru"], "memry=gru: unknown; allowed: memory=a,b .*; did you mean 'memory'?"),
        (["seconds=soon"], "seconds=soon: must be a number, 0 or more"),
    ],
)
def test_mistakes_are_answered_in_one_line(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "memory", "--check", *words]) == 2
    error = capsys.readouterr().err
    start, _, end = answer.partition(".*")
    assert start in error
    assert end in error
    assert error.count("\n") == 1
