"""Every verb, run as a user runs it, and every mistake answered in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lifelong.experiments.cli import main
from lifelong.experiments.config import group_names, load_config

METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_train_leaves_everything_that_the_run_folder_promises(lifelong, tmp_path, tiny):
    result = lifelong("train", *tiny, "frames=512", "out=run")
    assert result.returncode == 0, result.stderr
    run = tmp_path / "run"
    names = {path.name.split(".")[0] if "tfevents" not in path.name else "events" for path in run.glob("[!.]*")}
    assert names == {"config", "command", "versions", "progress", "timing", "events", "checkpoints", "summary"}
    assert (run / "command.txt").read_text().startswith("lifelong train env.num_lives=8")
    assert "torch 2" in (run / "versions.txt").read_text()
    rows = (run / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["frames", "128", "256", "384", "512"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["frames"] == 512
    assert summary["references"]["random"] == 0.25
    for word in ("final quarter", "best", "random", "oracle", "tensorboard --logdir"):
        assert word in result.stdout


def test_every_tag_in_tensorboard_is_documented_and_holds_finite_numbers(lifelong, tmp_path, tiny):
    documented = METRICS.read_text()
    tags = set()
    for index, env in enumerate(("switching_bandit", "associative_recall")):
        assert lifelong("train", f"env={env}", *tiny, "frames=512", f"out=run{index}").returncode == 0
        events = EventAccumulator(str(tmp_path / f"run{index}")).Reload()
        for tag in events.Tags()["scalars"]:
            tags.add(tag)
            points = events.Scalars(tag)
            assert all(point.value == point.value for point in points), tag
            assert [point.step for point in points] == sorted(point.step for point in points)
    assert {"rollout/reward_rate", "rollout/ep_rew_mean", "train/approx_kl", "time/fps"} <= tags
    for tag in tags:
        stem = tag.split("_change_")[0] + "_change_" if "_change_" in tag else tag
        assert f"`{stem}" in documented, f"{tag} is not documented in docs/metrics.md"


@pytest.mark.parametrize("core", ["gated_delta", "linear_attention", "gru", "lstm", "none"])
def test_every_core_trains_by_its_name(lifelong, tmp_path, tiny_any_core, core):
    result = lifelong("train", f"memory={core}", *tiny_any_core, "frames=256", "out=run")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "Pendulum-v1", "MiniGrid-Empty-5x5-v0", "minigrid_memory_s9", "associative_recall"]
)
def test_environments_of_every_kind_train_and_evaluate(lifelong, tmp_path, tiny, env):
    result = lifelong("train", f"env={env}", *tiny, "frames=256", "out=run")
    assert result.returncode == 0, result.stderr
    result = lifelong("evaluate", "run", "life_steps=50", "lives=4")
    assert result.returncode == 0, result.stderr
    (file,) = (tmp_path / "run").glob("evaluation_*.json")
    spans = json.loads(file.read_text())["spans"]
    assert [span["stop"] for span in spans] == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]


def test_evaluation_reads_a_checkpoint_alone_and_repeats_itself(lifelong, tmp_path, tiny):
    assert lifelong("train", *tiny, "frames=256", "out=run").returncode == 0
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("frames_*")
    checkpoint.rename(tmp_path / "alone")
    values = []
    for _ in range(2):
        result = lifelong("evaluate", "alone", "life_steps=40", "lives=4", "spans=2")
        assert result.returncode == 0, result.stderr
        (file,) = tmp_path.glob("evaluation_*.json")
        values.append([span["value"] for span in json.loads(file.read_text())["spans"]])
    assert values[0] == values[1]


def test_the_life_of_an_evaluation_is_not_one_of_training(lifelong, tmp_path, tiny):
    """Held-out seeds: other lives than those that were trained on."""
    from lifelong.experiments.build import build_env
    from lifelong.experiments.evaluate_options import HELD_OUT

    config = load_config([])
    training = build_env(config, config.seed, 4)
    held_out = build_env(config, HELD_OUT, 4)
    training.reset()
    held_out.reset()
    assert training.state_dict().keys() == held_out.state_dict().keys()
    action = training.action_spec.zero().expand(4)
    seen = [[env.step(action).observation["observation"] for _ in range(20)] for env in (training, held_out)]
    assert any((a != b).any() for a, b in zip(*seen, strict=True))


def test_help_is_given_wherever_it_is_asked_for(capsys):
    for words, said in {
        ("--help",): "compare memory cores",
        ("compare", "experiment=popgym", "--help"): "a comparison that was killed is gone on with",
        ("bench", "ppo", "-h"): "frames per CPU-second",
        ("bench", "--help", "ppo"): "The cores take turns",
        ("bench", "--help"): "lifelong bench kernels --help",
        ("train", "out=" + "x" * 300, "--help"): "lifelong resume RUN",
        ("report", "life", "--help"): "The same runs give the same bytes",
    }.items():
        assert main(list(words)) == 0
        answer = capsys.readouterr().out
        assert said in answer, words
        assert "``" not in answer, words


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for group in ("env", "memory", "algorithm", "experiment"):
        for name in group_names(group):
            assert name in out
    assert main(["list", "memory"]) == 0
    assert "switching_bandit" not in capsys.readouterr().out


MISTAKES = {
    "verb": (["trian"], "trian: unknown verb; allowed: train, resume", "did you mean 'train'?"),
    "env": (["train", "env=switching_bandti"], "env=switching_bandti: unknown", "did you mean 'switching_bandit'?"),
    "gymnasium id": (["train", "env=CartPole-v11"], "env=CartPole-v11: unknown", "did you mean 'CartPole-v1'?"),
    "core": (["train", "memory=gated_dleta"], "memory=gated_dleta: unknown", "did you mean 'gated_delta'?"),
    "experiment": (["train", "experiment=nothing"], "experiment=nothing: unknown; allowed: ", ""),
    "key": (["train", "algorithm.gama=0.9"], "algorithm.gama: no such key", "did you mean 'algorithm.gamma'?"),
    "top key": (["train", "sed=1"], "sed: no such key", "did you mean 'seed'?"),
    "option of a core": (["train", "memory.head=2"], "memory.head: no such key", "did you mean 'memory.heads'?"),
    "type": (["train", "frames=many"], "frames: ", "many"),
    "type of an option": (["train", "memory.heads=two"], "memory.heads=two: must be a whole number", ""),
    "range": (["train", "algorithm.gamma=2"], "algorithm.gamma=2.0: allowed are 0 to 1", ""),
    "environment's range": (["train", "env.hazard=2"], "env: ", "hazard"),
    "fraction": (["train", "frames=10.5"], "frames: ", "10.5"),
    "section": (["train", "agent=foo"], "agent=foo: a section; set one of its keys: agent.encoder_grid", ""),
    "kwargs": (["train", "env=CartPole-v1", "env.kwargs=5"], "env.kwargs=5: must be a mapping", ""),
    "unreadable": (["train", "seed=[1"], "seed=[1: cannot be read as a value", ""),
    "kernel": (["train", "memory.implementation=triton"], "memory: ", "triton"),
    "environment's device": (["train", "env.device=nowhere"], "env: ", ""),
    "plugins' form": (["train", "plugins=mine"], "plugins=mine: must be a list of modules", ""),
    "resume's frames": (["evaluate", ".", "life_steps=1.5"], "life_steps=1.5: must be a whole number", ""),
    "form": (["train", "gru"], "'gru' is not of the form key=value", ""),
    "plugin": (["train", "plugins=[no_such_module]"], "plugins: cannot import 'no_such_module'", ""),
    "device": (["train", "device=tpu9"], "device=tpu9: not available here", ""),
    "group": (["list", "envs"], "list envs: unknown", "did you mean 'env'?"),
    "run": (["evaluate", "no_such_run"], "no_such_run: no such folder", ""),
    "no run": (["resume"], "resume needs a run folder", ""),
    "evaluation": (["evaluate", "x", "life_step=3"], "life_step=3: unknown", "did you mean 'life_steps'?"),
    "unwritable": (["train", "out=/proc/run"], "out=/proc/run: cannot write there", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_one_line(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, says, hint = MISTAKES[name]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"lifelong: {says}"), err
    assert hint in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists(), "a mistake must not leave a run folder"


def test_out_does_not_overwrite_a_run(lifelong, tmp_path, tiny):
    assert lifelong("train", *tiny, "frames=128", "out=run").returncode == 0
    again = lifelong("train", *tiny, "frames=128", "out=run")
    assert again.returncode == 2
    assert "holds a run already; go on with it: lifelong resume run" in again.stderr


def test_a_broken_checkpoint_is_named_by_evaluate(lifelong, tmp_path, tiny):
    assert lifelong("train", *tiny, "frames=128", "out=run").returncode == 0
    (file,) = (tmp_path / "run").glob("checkpoints/*/components/*-training/state.pt")
    file.write_bytes(file.read_bytes()[:100])
    result = lifelong("evaluate", "run")
    assert result.returncode == 2
    assert "state.pt is truncated or altered" in result.stderr
    assert "Traceback" not in result.stderr


PLUGIN = """
import gymnasium as gym
import numpy as np
from lifelong.memory import MemoryCore, register_core
from tensordict import TensorDict


@register_core("latest")
class Latest(MemoryCore):
    '''Remembers nothing; one option.'''

    def __init__(self, dim: int, gain: float = 1.0) -> None:
        super().__init__(dim)
        self.gain = gain

    def forward(self, inputs, state, reset=None):
        return inputs * self.gain, state

    step = forward

    def initial_state(self, batch_size, device=None, dtype=None):
        return TensorDict({}, [batch_size], device=device)


class Breaks(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation = np.zeros(2, np.float32)
        if self.steps == 300:
            observation[0] = np.nan
        return observation, 0.0, False, False, {}


gym.register("Breaks-v0", Breaks)
"""


def test_a_core_and_an_environment_of_ones_own_train_by_name_and_a_nan_names_its_place(
    lifelong, tmp_path, tiny_any_core, monkeypatch
):
    (tmp_path / "mine.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["plugins=[mine]", "env=Breaks-v0", "memory=latest", "memory.gain=0.5", *tiny_any_core]
    result = lifelong("train", *words, "frames=100000", "checkpoint.every_frames=128", "out=run")
    assert result.returncode == 1
    message = result.stderr.strip().splitlines()[-1]
    assert "is nan, not a finite number" in message
    assert "environment 0" in message
    assert "300" in message
    assert "the last good checkpoint is run/checkpoints/frames_" in message
    refused = lifelong("evaluate", "run", "life_steps=20", "lives=2")
    assert refused.returncode == 2
    assert "if you trust it, add plugins=[mine]" in refused.stderr
    assert lifelong("evaluate", "run", "life_steps=20", "lives=2", "plugins=[mine]").returncode == 0


def test_what_somebody_elses_constructor_takes_goes_through_kwargs(lifelong, tmp_path, tiny):
    words = ["env=CartPole-v1", "env.kwargs.sutton_barto_reward=true", *tiny]
    assert lifelong("train", *words, "frames=128", "out=run").returncode == 0
    assert "sutton_barto_reward: true" in (tmp_path / "run" / "config.yaml").read_text()


def test_whole_numbers_may_be_written_with_an_exponent_and_words_need_no_quotes(tmp_path):
    config = load_config(["frames=1e3", f"out={tmp_path}/a=b, [c]"])
    assert config.frames == 1000
    assert config.out == f"{tmp_path}/a=b, [c]"
