"""The examples do what they say: each is run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(*words: object) -> str:
    """``python WORDS`` among the examples; what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_in_plain_pytorch_a_core_learns_to_recall() -> None:
    shares = [int(share) for share in re.findall(r"(\d+)% recalled", run("plain_pytorch.py"))]
    assert shares[0] < 35
    assert shares[-1] > 80


def test_in_torchrl_a_core_trains_with_stock_parts() -> None:
    printed = run("torchrl_ppo.py", 2048)
    assert printed.count("mean length of an episode: ") == 2


def test_a_core_of_ones_own_is_one_short_file_that_passes_the_contract_suite() -> None:
    assert len((EXAMPLES / "my_core.py").read_text().splitlines()) < 60
    command = "-m pytest -p my_core ../tests/memory/test_contract.py -k my_rule"
    assert f"`python {command}`" in (ROOT / "README.md").read_text()
    printed = run(*command.split(), "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
    assert int(re.search(r"(\d+) passed", printed)[1]) >= 20  # type: ignore[index]


def test_a_core_of_ones_own_trains_from_the_command_line(tmp_path: Path) -> None:
    words = ["train", "plugins=[my_core]", "memory=my_rule", "memory.write_rate=0.3"]
    sizes = ["env.num_lives=4", "agent.width=16", "algorithm.segment=16", "algorithm.epochs=1", "frames=256"]
    printed = run("-m", "lifelong.experiments.cli", *words, *sizes, f"out={tmp_path / 'run'}")
    assert "switching_bandit with my_rule" in printed
    assert "write_rate: 0.3" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_says_first_what_it_shows(file: Path) -> None:
    assert file.read_text().startswith('"""')
