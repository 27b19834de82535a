"""The cores of a comparison, each brought to the size that is asked for."""

from __future__ import annotations

import dataclasses

from lifelong.experiments.compare_table import CoreSize, print_sizes
from lifelong.experiments.comparison import Cell, ComparisonConfig, run_config
from lifelong.experiments.errors import UserError
from lifelong.experiments.matching import match, refuse_given_width
from lifelong.memory import MemoryCore, make_core


@dataclasses.dataclass
class Matched:
    """A cell whose core has the size that the comparison asks for."""

    cell: Cell
    size: dict[str, int]  # parameters and state_bytes of its core
    frames: int
    match: str  # what all cores are to have the same of, and how much of it; None where of nothing
    budget: int | None
    note: str  # by how much the core misses that; empty where it is near


def match_cells(config: ComparisonConfig, cells: list[Cell]) -> list[Matched]:
    """Give every core the size of the budget (None: that of the first core as configured), and print the sizes.

    Raises:
        UserError: a core refuses its options, or the first one has nothing to match to.
    """
    result, sizes = [], dict[CoreSize, list[str]]()
    budget = None if config.match == "none" else config.budget
    for cell in cells:
        run = run_config(cell)
        options, width = dict(run.memory), run.agent.width
        name, note = options.pop("name"), ""
        words: tuple[str, ...] = ()
        try:
            core = make_core(name, width, **options)
            if config.match != "none":
                budget = budget or _budget_of(core, config.match, cell.memory)
                found = match(name, options, width, **{config.match: budget})
                refuse_given_width(found, cell.words, f"match={config.match}")
                words = tuple(f"memory.{key}={value}" for key, value in found.options.items() if options[key] != value)
                core, note = make_core(name, width, **found.options), found.note
        except ValueError as error:
            raise UserError(f"memory={cell.memory}: {' '.join(str(error).split())}") from error
        cell = dataclasses.replace(cell, words=(*cell.words, *words))
        result.append(Matched(cell, _size(core), run.frames, config.match, budget, note))
        size = CoreSize(cell.memory, **_size(core), options=" ".join(words), note=note)
        sizes.setdefault(size, []).append(cell.env)
    print_sizes("" if budget is None else f"matched to {budget:,} {config.match.replace('_', ' ')}", sizes)
    return result


def _budget_of(core: MemoryCore, kind: str, name: str) -> int:
    size = _size(core)[kind]
    if size == 0:
        what = {"state_bytes": "state", "parameters": "parameters"}[kind]
        raise UserError(f"the first core, {name}, has no {what} to match to; give budget=")
    return size


def _size(core: MemoryCore) -> dict[str, int]:
    return {
        "parameters": sum(parameter.numel() for parameter in core.parameters()),
        "state_bytes": core.state_bytes(),
    }
