"""``compare.json``: what a comparison's folder is made of, over all the calls that worked on it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lifelong.experiments.compare_sizes import Matched
from lifelong.experiments.comparison import ComparisonConfig
from lifelong.experiments.engine import Ended
from lifelong.experiments.errors import UserError
from lifelong.experiments.run_folder import write_json
from lifelong.experiments.versions import versions


class Plan:
    """The file, which keeps what earlier calls wrote of other cells and other versions.

    Raises:
        UserError: the folder holds a comparison of other settings.
    """

    def __init__(self, folder: Path, config: ComparisonConfig, matched: list[Matched]) -> None:
        self._path, self._config, self._matched = folder / "compare.json", config, matched
        self._earlier: list[dict[str, Any]] = []  # cells that are not in this call
        self._versions: list[list[str]] = []  # that the calls ran on, each once
        if self._path.exists():
            try:
                self._read(json.loads(self._path.read_text()))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(f"{self._path}: cannot be read; use another out=") from error
        if versions() not in self._versions:
            self._versions.append(versions())

    def write(self, chosen: dict[tuple[str, str], float], failed: list[Ended]) -> None:
        """With the learning rates that are ``chosen``, by environment and core."""
        cells = [
            {
                "env": matched.cell.env,
                "memory": matched.cell.memory,
                "words": list(matched.cell.words),
                "fall": matched.cell.fall,
                **matched.size,
                "match": matched.match,
                "budget": matched.budget,
                "note": matched.note,
                "learning_rate": chosen.get((matched.cell.env, matched.cell.memory)),
            }
            for matched in self._matched
        ]
        plan = {
            "comparison": dataclasses.asdict(self._config),
            "versions": self._versions,
            "cells": cells + self._earlier,
            "failed": [{"run": str(ended.job.folder), "fault": ended.fault} for ended in failed],
        }
        write_json(self._path, plan)

    def _read(self, plan: dict[str, Any]) -> None:
        before = plan["versions"]
        self._versions = before if all(isinstance(each, list) for each in before) else [before]
        mine = {(matched.cell.env, matched.cell.memory): matched for matched in self._matched}
        for cell in plan["cells"]:
            matched = mine.get((cell["env"], cell["memory"]))
            self._refuse_changed(cell, matched)
            if matched is None:
                self._earlier.append(cell)

    def _refuse_changed(self, cell: dict[str, Any], mine: Matched | None) -> None:
        """Cores, environments, rates and seeds may be added; neither the words of a cell (``mine`` as this call has
        it) may be changed nor what all cores are matched to.
        """
        size = {"match": self._matched[0].match, "budget": str(self._matched[0].budget)}
        before = {key: str(cell[key]) for key in size if key in cell}
        now = {key: size[key] for key in before}
        if mine is not None:
            before |= _settings(cell["words"])
            now |= _settings(mine.cell.words)
        if before != now:
            there, here = _differences(before, now), _differences(now, before)
            raise UserError(
                f"out={self._path.parent}: holds {cell['memory']} in {cell['env']} with other settings "
                f"(there {there}; here {here}); use another out="
            )


def _settings(words: Iterable[str]) -> dict[str, str]:
    """``key=value`` words in any order; of a key that stands there twice the last one holds."""
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _differences(one: dict[str, str], other: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(one.items() - other.items())) or "nothing else"
