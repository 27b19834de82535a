"""Options of cores on the command line: what their constructors take is taken, and all else is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lifelong.experiments.build import build_agent, build_env
from lifelong.experiments.cli import main
from lifelong.experiments.config import load_config

HEADS = "memory.heads=[plain,rotary*2]"


@pytest.mark.parametrize("name", ["gated_delta", "linear_attention", "mixed_heads"])
def test_heads_may_be_a_list_of_kinds_for_any_core_that_takes_one(name: str) -> None:
    config = load_config([f"memory={name}", HEADS, "agent.width=16"])
    assert config.memory["heads"] == ["plain", "rotary*2"]
    env = build_env(config, 0)
    build_agent(config, env, env.device)
    assert load_config(["memory=mixed_heads", "memory.heads=3"]).memory["heads"] == 3


def test_heads_may_be_a_list_of_kinds_for_probe_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "probe"
    words = ["memory=gated_delta", HEADS, "probes=drift", "updates=1", f"out={out}"]
    assert main(["probe", *words]) == 0, capsys.readouterr().err
    core = json.loads((out / "probe.json").read_text())["cores"]["gated_delta"]
    assert core["matched"]["options"]["heads"] == ["plain", "rotary*2"]
    words = ["env=switching_bandit", "memory=gated_delta,delta", HEADS, "plan_only=true", "seeds=1"]
    words.append(f"out={tmp_path / 'compare'}")
    assert main(["compare", *words]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["memory=gated_delta", "memory.heads=four"], "heads=four: must be a whole number or a list of words"),
        (["memory=gated_delta", "memory.heads=[1,2]"], "heads=[1, 2]: must be a whole number or a list of words"),
        (["memory=ttt_mlp", "memory.heads=[plain]"], "memory.heads=['plain']: must be a whole number"),
        (["memory=gated_delta", "memory.value_dim=wide"], "memory.value_dim=wide: must be a whole number or null"),
        (["memory=gated_delta", "memory.unit_keys=2"], "memory.unit_keys=2: must be true or false"),
        (["memory=ffm", "memory.horizon_max=inf"], "memory.horizon_max=inf: must be a finite number"),
        (["memory=gru", "memory.feed_forward=nan"], "memory.feed_forward: no such key here"),
        (
            ["memory=softmax", "memory.reset_state=learned"],
            "memory=softmax has no such option: a life begins with an empty",
        ),
        (["memory=none", "memory.feed_forward=nan"], "memory.feed_forward=nan: must be a finite number"),
        (["memory=gru", "memory.name=gruu"], "memory.name=gruu: unknown; allowed: "),
        (
            ["memory=gated_delta", "memory.model=mlp"],
            "model=mlp is to be had with memory=ttt_mlp, or memory=titans_mlp",
        ),
        (["memory=gated_delta", "memory.optimiser=second_order"], "is to be had with memory=mesa"),
        (["memory=ttt_mlp", "memory.hidden=0.01"], "hidden=0.01 leaves no hidden unit"),
        (["memory=gated_delta", "memory.momentum=0.9"], "momentum=0.9 changes nothing here"),
    ],
)
def test_an_option_that_a_core_does_not_take_is_answered_in_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words, f"out={tmp_path / 'run'}", "frames=1"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
