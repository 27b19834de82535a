"""``lifelong record``: a film with as many pictures as steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Command = Callable[..., Any]


@pytest.mark.parametrize("env", ["switching_bandit", "minigrid_memory_s7", "CartPole-v1"])
def test_a_life_becomes_a_film_with_a_picture_for_every_step(
    lifelong: Command, tiny: list[str], tmp_path: Path, env: str
) -> None:
    assert lifelong("train", f"env={env}", *tiny, "frames=128", "out=run").returncode == 0
    result = lifelong("record", "run", "steps=4", "skip=3", "fps=5")
    assert result.returncode == 0, result.stderr
    with Image.open(tmp_path / "run" / "life.gif") as film:
        assert film.n_frames == 4
        assert film.info["duration"] == 200
        assert (film.height > 320) == (env != "switching_bandit")  # where the world can be drawn, it is


def test_a_film_of_a_checkpoint_lies_beside_the_checkpoints(lifelong: Command, tiny: list[str], tmp_path: Path) -> None:
    assert lifelong("train", *tiny, "frames=128", "out=run").returncode == 0
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    for _ in range(2):  # a file inside it would make it one that was altered
        result = lifelong("record", str(checkpoint), "steps=2")
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "life.gif").exists()


def test_a_film_may_be_an_mp4(lifelong: Command, tiny: list[str], tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs the optional package imageio-ffmpeg")
    assert lifelong("train", *tiny, "frames=128", "out=run").returncode == 0
    assert lifelong("record", "run", "steps=3", "out=film.mp4").returncode == 0
    assert (tmp_path / "film.mp4").stat().st_size > 500


@pytest.mark.parametrize(
    ("words", "said"), [(["out=film.avi"], "must end in .gif or .mp4"), (["step=3"], "did you mean 'steps'")]
)
def test_a_mistake_is_one_line(lifelong: Command, words: list[str], said: str) -> None:
    result = lifelong("record", "run", *words)
    assert result.returncode == 2
    assert said in result.stderr
