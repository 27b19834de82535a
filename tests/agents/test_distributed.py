"""Two processes that share the lives do what one process does with all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lifelong.agents import ActorCritic, AlgorithmConfig, Trainer
from lifelong.agents.distributed import ALONE, Group, Ranks, join
from lifelong.agents.statistics import LifeStatistics, merge_statistics
from lifelong.envs import make_env, registry
from lifelong.experiments.build import build_env
from lifelong.experiments.checkpoint import latest_checkpoint, list_checkpoints
from lifelong.experiments.cli import main as command
from lifelong.experiments.config import RunConfig
from lifelong.experiments.errors import UserError
from lifelong.memory import make_core

LIVES = 8
BANDIT = {"name": "switching_bandit", "life_steps": 7}
# Minibatches of one life: each rank has no life in half of them.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ppo": (BANDIT, {"name": "ppo", "epochs": 2, "minibatches": 3, "target_kl": 0.05}),
    "ppo_minibatches_of_a_life": (BANDIT, {"name": "ppo", "epochs": 1, "minibatches": LIVES}),
    "a2c_average_reward": (
        BANDIT,
        {"name": "a2c", "epochs": 1, "objective": "average_reward", "reward_scale_rate": 0.1, "weight_decay": 0.01},
    ),
    "vtrace_history": (BANDIT, {"name": "vtrace", "epochs": 2, "history": 1}),
    "cures": (
        BANDIT,
        {"plasticity_every": 2, "l2_to_initial": 0.01, "continual_backprop": 0.02, "continual_backprop_maturity": 4},
    ),
    "cart_pole": ({"name": "gymnasium", "id": "CartPole-v1"}, {"name": "ppo", "epochs": 1}),
    "continuous": ({"name": "gymnasium", "id": "Pendulum-v1"}, {"name": "ppo", "epochs": 1}),
}


def make_trainer(case: str, group: Group) -> Trainer:
    env_options, algorithm = CASES[case]
    lives = LIVES // group.world
    env = make_env({**env_options, "num_lives": lives, "seed": 3, "first_life": group.rank * lives})
    torch.manual_seed(group.rank)  # rank 0's weights are to be all ranks'
    agent = ActorCritic(env.observation_spec, env.action_spec, make_core("gated_delta", 16), head_width=16)
    config = AlgorithmConfig(segment=16, **{"learning_rate": 3e-3, "final_learning_rate": 3e-3, **algorithm})
    return Trainer(env, agent, config, seed=5, total_frames=10_000, group=group)


def train(case: str, group: Group, updates: int = 4) -> dict[str, Any]:
    trainer = make_trainer(case, group)
    metrics = [trainer.update() for _ in range(updates)]
    return {"weights": trainer.agent.state_dict(), "metrics": metrics, "frames": trainer.frames}


def torchrun(*words: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, env=environment)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank: of every case, what ``train`` gives."""
    folder = tmp_path_factory.mktemp("ranks")
    process = torchrun(__file__, str(folder), cwd=folder)
    assert process.returncode == 0, process.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_process_learns_with_twice_the_lives(two_ranks, case):
    alone = train(case, ALONE)
    first, second = (rank[case] for rank in two_ranks)
    assert first["frames"] == alone["frames"] == 4 * 16 * LIVES
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], weight, atol=1e-5, rtol=1e-5)
        assert torch.equal(first["weights"][name], second["weights"][name]), name
    assert first["metrics"] == second["metrics"]
    for found, expected in zip(first["metrics"], alone["metrics"], strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-3, abs=2e-5), name
    assert alone["metrics"][0]["rollout/episodes"] > 0 or case == "continuous", "ends of episodes must be merged"


@pytest.mark.parametrize("case", [case for case in CASES if "history" not in case])
def test_the_ratio_of_sharded_lives_is_one(two_ranks, case):
    assert max(metrics["train/ratio_deviation"] for metrics in two_ranks[1][case]["metrics"]) < 1e-5


class SecondOfTwo(Group):
    rank, world = 1, 2


@pytest.mark.parametrize("env", ["recall_stream", "gymnasium", "minigrid_memory_s7"])
def test_a_life_begins_the_same_whichever_rank_has_it(env):
    config = RunConfig(env={"name": env, "num_lives": 6}, memory={})
    whole, half = build_env(config, 3).reset(), build_env(config, 3, group=SecondOfTwo()).reset()
    for name, value in whole.items():
        assert torch.equal(half[name], value[3:]), name


def test_an_environment_that_cannot_be_divided_among_ranks_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(registry._FACTORIES, "undivided", lambda num_lives, seed: None)
    with pytest.raises(UserError, match="env=undivided: cannot be divided among ranks: it has no option first_life"):
        build_env(RunConfig(env={"name": "undivided", "num_lives": 4}, memory={}), 0, group=SecondOfTwo())


def test_merged_statistics_are_those_of_all_lives():
    draw = torch.Generator().manual_seed(0)
    whole, parts = LifeStatistics(6), [LifeStatistics(3), LifeStatistics(3)]
    for _ in range(200):  # about 200 episodes, of which the last 100 count
        reward, ends = torch.randn(6, generator=draw), torch.rand(2, 6, generator=draw) < 0.1
        age = torch.randint(400, (6,), generator=draw)
        whole.add(reward, *ends, age)
        for part, own in zip(parts, (slice(3), slice(3, 6)), strict=True):
            part.add(reward[own], *ends[:, own], age[own])
    merged = merge_statistics(parts)
    assert (merged.returns, merged.lengths, merged.ended_at) == (whole.returns, whole.lengths, whole.ended_at)
    assert whole.episodes > 150
    assert merged.metrics() == pytest.approx(whole.metrics(), rel=1e-12)
    assert merged.span_return_sum == pytest.approx(whole.span_return_sum)


# The command: 128 frames an update, a checkpoint every two.
TINY = [
    *("env=CartPole-v1", f"env.num_lives={LIVES}", "memory.heads=2", "memory.head_dim=8", "frames=512"),
    *("algorithm.segment=16", "agent.width=16", "agent.head_width=16", "checkpoint.every_frames=256"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    process = torchrun("-m", "lifelong.experiments.cli", "train", *TINY, "out=run", cwd=folder)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("run folder") == 1, "rank 0 speaks for all"
    return folder / "run"


def training_state(run: Path) -> dict[str, Any]:
    (file,) = latest_checkpoint(run / "checkpoints").glob("components/*-training/state.pt")
    return torch.load(file, weights_only=True)


def test_two_ranks_that_resume_go_on_bit_for_bit(run, tmp_path):
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    _, last = list_checkpoints(cut / "checkpoints")
    shutil.rmtree(last)
    (cut / "summary.json").unlink()
    process = torchrun("-m", "lifelong.experiments.cli", "resume", "cut", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "resuming cut at 256 frames" in process.stdout
    assert (cut / "progress.csv").read_bytes() == (run / "progress.csv").read_bytes()
    found, expected = training_state(cut), training_state(run)
    assert found["frames"] == expected["frames"] == 512
    assert torch.equal(found["lives"]["generator"], expected["lives"]["generator"])
    for name, weight in expected["agent"].items():
        assert torch.equal(found["agent"][name], weight), name


def test_what_two_ranks_wrote_is_refused_by_one_and_can_be_evaluated_by_one(run, capsys):
    assert command(["resume", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds the lives of 2 ranks, not 1; resume it with torchrun --nproc-per-node 2" in line
    assert command(["evaluate", str(run), "life_steps=20", "lives=2"]) == 0


FAULTY = """
from lifelong.envs import EnvironmentFault, register_env
from lifelong.envs.switching_bandit import SwitchingBandit

@register_env("faulty")
class Faulty(SwitchingBandit):
    name = "faulty"

    def step(self, action):
        if self._lives[0] > 0 and self.state.life_step[0] == 20:
            raise EnvironmentFault("environment 2 failed")
        return super().step(action)
"""


def test_an_environment_that_fails_on_one_rank_ends_all_and_is_named(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    words = ["plugins=[faulty]", "env=faulty", *TINY[1:], "out=run"]
    process = torchrun("-m", "lifelong.experiments.cli", "train", *words, cwd=tmp_path)
    assert process.returncode != 0
    assert "lifelong: rank 1: environment 2 failed; no checkpoint had been written\n" in process.stderr


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with join(torch.device("cpu"), LIVES) as group:
        assert isinstance(group, Ranks)
        torch.save({case: train(case, group) for case in CASES}, folder / f"{group.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
