"""A memory that grows with the life, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifelong.experiments import train
from lifelong.experiments.cli import main
from lifelong.experiments.evaluate import Weights

SIZES = ["env.num_lives=2", "agent.width=16", "frames=64"]
SIZES += [f"algorithm.{option}" for option in ("segment=8", "epochs=1", "minibatches=1")]


def test_training_says_at_which_step_a_life_no_longer_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["memory=softmax", "memory.capacity=20", "checkpoint.every_frames=16", f"out={tmp_path / 'run'}"]
    assert main(["train", *words, *SIZES]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "life 0 does not fit: its step 21 is one more than the capacity of 20 steps" in error
    assert f"the last good checkpoint is {tmp_path / 'run' / 'checkpoints' / 'frames_000000000032'}" in error


def test_a_state_of_other_options_is_refused_by_name(tmp_path: Path) -> None:
    # The weights fit and the state does not: the checkpoint of a window of 8 where the core has one of 9.
    folder = tmp_path / "run"
    assert main(["train", "memory=softmax_window", "memory.window=8", f"out={folder}", *SIZES]) == 0
    path, config = train.find_checkpoint(str(folder))
    config.memory["window"] = 9
    env = train.build_env(config, 0)
    trainer = train.build_trainer(config, env, train.set_up_process(config))
    with pytest.raises(train.UserError, match=r"does not fit: .*softmax_window .*layer_0\.keys \[9, 4, 32\]"):
        train.load_checkpoint(path, trainer, env)


@pytest.mark.parametrize("to", ["resume", "evaluate"])
def test_a_checkpoint_of_another_core_is_refused_by_the_cores_name(tmp_path: Path, to: str) -> None:
    folder = tmp_path / "run"
    assert main(["train", "memory=delta", f"out={folder}", *SIZES]) == 0
    path, _ = train.find_checkpoint(str(folder))
    config = train.load_config(["memory=gru", *SIZES])
    env = train.build_env(config, 0)
    trainer = train.build_trainer(config, env, train.set_up_process(config))
    into, its_env = (trainer, env) if to == "resume" else (Weights(agent=trainer.agent), None)
    with pytest.raises(train.UserError, match=r"does not fit: .* not one of gru with its options: it lacks"):
        train.load_checkpoint(path, into, its_env)
