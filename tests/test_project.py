"""The project as a whole: what can be imported from where, and that the README says what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "memory", "envs", "agents", "experiments")
ALLOWED = {
    "kernels": set(),
    "envs": set(),
    "memory": {"kernels"},
    "agents": {"memory", "kernels"},
    "experiments": {"agents", "memory", "kernels", "envs"},
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_one_way(folder):
    """As import-linter checks it in ``make check``, for those who run the tests alone."""
    for path in (ROOT / folder).rglob("*.py"):
        for other in re.findall(r"^\s*(?:from|import) lifelong\.(\w+)", path.read_text(), re.MULTILINE):
            assert other == folder or other in ALLOWED[folder], f"{path} imports lifelong.{other}"


@pytest.mark.parametrize("folder", ["kernels", "memory"])
def test_the_lower_folders_can_be_taken_without_the_rest(folder):
    """Somebody who wants the memory in their own code does not load environments or experiments."""
    code = (
        f"import sys, lifelong.{folder}; loaded = [m for m in sys.modules if m.startswith('lifelong.')]; "
        "print([m for m in loaded if m.split('.')[1] in ('envs', 'agents', 'experiments')], 'gymnasium' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] False"


def test_no_path_of_a_machine_is_in_the_tree():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if names.returncode != 0:
        pytest.skip("not a git checkout")
    home = re.compile(r"/(home|Users|root|work)/\w+")
    for name in names.stdout.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".c", ".h") and path.exists() and path != Path(__file__):
            match = home.search(path.read_text())
            assert match is None, f"{name}: {match}"
