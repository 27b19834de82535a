"""What ``compare.json`` says of a folder that ``lifelong compare`` made: names, learning rates, sizes, missing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lifelong.experiments.matching import NEAR
from lifelong.experiments.report_runs import LeftOut, Run


@dataclass(frozen=True)
class PlannedCell:
    """A core in an environment; its runs lie below ``folder``."""

    env: str
    memory: str
    folder: str
    learning_rate: float | None  # None: not chosen yet


@dataclass(frozen=True)
class Plan:
    """Empty where no comparison made the folder."""

    words: list[str] = field(default_factory=list)  # how the cores were matched
    cells: list[PlannedCell] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # paths of the runs that there should be
    failed: dict[str, str] = field(default_factory=dict)  # why, by the run's path

    def cell_of(self, path: str) -> PlannedCell | None:
        """The cell that a run belongs to."""
        return next((cell for cell in self.cells if path.startswith(f"{cell.folder}/")), None)

    def environment_of(self, run: Run) -> str:
        """The name under which the run was made: several configs may be of one environment."""
        cell = self.cell_of(run.path)
        return cell.env if cell else str(run.config["env"].get("id") or run.config["env"]["name"])

    def label_of(self, run: Run) -> str | None:
        """What the comparison calls the core of a run; None where no comparison made it."""
        cell = self.cell_of(run.path)
        return cell.memory if cell else None

    def learning_rate_of(self, runs: Sequence[Run]) -> float | None:
        """That which the comparison chose for a core; None where none of its runs, or several cells, say one."""
        cells = [cell for run in runs if (cell := self.cell_of(run.path))]
        rates = {cell.learning_rate for cell in cells if cell.learning_rate is not None}
        return rates.pop() if len(rates) == 1 else None

    def complete(self, finished: Sequence[Run], left_out: Sequence[LeftOut]) -> list[LeftOut]:
        """``left_out`` with what was planned besides: runs that failed, and those that were never begun."""
        there = {run.path for run in finished}
        failed = {path: f"failed: {fault}" for path, fault in self.failed.items() if path not in there}
        said = [
            replace(each, reason=f"{each.reason}; {failed.pop(each.path)}") if each.path in failed else each
            for each in left_out
        ]
        said += [LeftOut(path, reason) for path, reason in failed.items()]
        there |= {each.path for each in said}
        missing = [path for path in self.runs if path not in there]
        for cell in self.cells:
            own = [path for path in missing if path.startswith(f"{cell.folder}/")]
            if own and not any(path.startswith(f"{cell.folder}/") for path in there):
                said.append(LeftOut(cell.folder, "planned, and no run of it has begun"))
            else:
                said += [LeftOut(path, "planned, and not run yet") for path in own]
        return said


NO_PLAN = Plan()


def read_plan(folder: Path) -> tuple[Plan, list[LeftOut]]:
    """The plan, and a line where it cannot be read."""
    path = folder / "compare.json"
    if not path.exists():
        return NO_PLAN, []
    try:
        plan = json.loads(path.read_text())
        comparison, cells = plan["comparison"], plan["cells"]
        known = [
            PlannedCell(cell["env"], cell["memory"], f"{cell['env']}/{cell['memory']}", cell["learning_rate"])
            for cell in cells
        ]
        runs = [run for cell in known for run in _planned_runs(cell, comparison)]
        failed = {_below(each["run"], known): str(each["fault"]) for each in plan.get("failed", [])}
        return Plan(_matching(comparison, cells), known, runs, failed), []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return NO_PLAN, [LeftOut(path.name, "corrupt: cannot be read")]


def _planned_runs(cell: PlannedCell, comparison: dict[str, Any]) -> Iterator[str]:
    """At the learning rate chosen on all seeds; where none is chosen yet, at all of them on the seeds that choose."""
    if cell.learning_rate is None:
        rates, seeds = comparison["learning_rates"], comparison["tuning_seeds"]
    else:
        rates, seeds = [cell.learning_rate], comparison["seeds"]
    for rate in rates:
        yield from (f"{cell.folder}/lr{rate:g}/seed{seed}" for seed in range(seeds))


def _below(run: str, cells: Sequence[PlannedCell]) -> str:
    """The path of a run below the folder, wherever the folder lay when it failed."""
    for cell in cells:
        _, folder, after = f"/{run}".rpartition(f"/{cell.folder}/")
        if folder and after.count("/") == 1:
            return f"{cell.folder}/{after}"
    return run


def _matching(comparison: dict[str, Any], cells: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each size that cores were matched to, with those that missed it."""
    sizes: dict[tuple[str, int | None], dict[str, set[str]]] = {}
    for cell in cells:
        key = cell.get("match", comparison["match"]), cell.get("budget", comparison["budget"])
        if key[0] != "none":
            sizes.setdefault(key, {}).setdefault(cell["memory"], set()).add(_miss(cell, *key))
    words = []
    for (match, budget), cores in sizes.items():
        which = f" ({', '.join(cores)})" if len(sizes) > 1 else ""
        size = "that of the first core" if budget is None else f"{budget:,}"
        misses = [f"{core} ({note})" for core, notes in cores.items() for note in sorted(notes) if note]
        but = f"; not reached by {'; '.join(misses)}" if misses else ""
        words.append(f"The cores{which} were matched by {match.replace('_', ' ')}: {size}{but}.")
    return words


def _miss(cell: dict[str, Any], match: str, budget: int | None) -> str:
    """By how much a core misses the size asked for, in words; files from before cells said it hold the sizes."""
    size = cell.get(match)
    if "note" in cell or size is None or budget is None or abs(size / budget - 1.0) <= NEAR:
        return str(cell.get("note", ""))
    return f"it has {size:,}"
