"""``lifelong list [env|memory|algorithm|experiment|comparison]``: what may stand behind these words.

``lifelong list memory --check`` measures the cores: state and time early and late in a life, and what is evicted.
"""

from __future__ import annotations

from pathlib import Path

from lifelong.experiments.config import GROUPS, config_folder, group_names
from lifelong.experiments.errors import UserError, did_you_mean
from lifelong.experiments.requirements_check import check

_LISTED = (*GROUPS, "comparison")


def list_names(arguments: list[str]) -> int:
    """Print each name with the first comment of its file; with ``--check``, measure."""
    if "--check" in arguments:
        words = [word for word in arguments if word not in ("--check", "memory")]
        return check(words)
    for word in arguments:
        if word not in _LISTED:
            raise UserError(f"list {word}: unknown; allowed: {', '.join(_LISTED)}{did_you_mean(word, _LISTED)}")
    for group in arguments or _LISTED:
        print(f"{group}=")
        for name in group_names(group):
            print(f"  {name:<22} {_first_comment(config_folder() / group / f'{name}.yaml')}")
        if group == "env":
            print("  any Gymnasium or MiniGrid id, for example env=CartPole-v1 or env=MiniGrid-DoorKey-5x5-v0")
    return 0


def _first_comment(path: Path) -> str:
    if not path.exists():
        return "(registered by a plugin)"
    for line in path.read_text().splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ")
    return ""
