"""The numbers of a report: every table and figure, ``report.json`` and ``report.csv`` are made of these.

Intervals are 95 % stratified bootstrap intervals over seeds, and there is none with one seed. "Better" is said only
where the intervals of the final quarter part and both sides have at least five seeds: with fewer, even intervals that
part happen by chance too often.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from lifelong.experiments.metrics.aggregate import (
    Array,
    Estimate,
    estimate,
    frames_to_reach,
    interquartile_mean,
    intervals_part,
    performance_profile,
    probability_of_improvement,
)
from lifelong.experiments.report_contents import Contender, Section, rate_text
from lifelong.experiments.report_runs import Run

SEEDS_FOR_A_CLAIM = 5
LEVELS = (0.5, 0.9)  # scores whose frames are told
_POINTS = 60  # of a learning curve
_THRESHOLDS = 51
_REPETITIONS = 10_000


@dataclass(frozen=True)
class Curve:
    """Estimates along an axis."""

    at: Array  # [N]
    estimate: Estimate  # of arrays [N]


@dataclass
class CoreNumbers:
    """Of one core in one environment, or across environments."""

    name: str
    learning_rate: str
    seeds: int  # in the environment with the fewest
    scalars: dict[str, Estimate] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    single_runs: list[Array] = field(default_factory=list)  # learning curves of the seeds, on the axis of "learning"
    finals: list[float] = field(default_factory=list)  # of the runs, in the unit of the section


@dataclass
class Numbers:
    """Of one environment, or across environments."""

    title: str
    unit: str  # of final quarter, best and learning curve
    axis: str  # of the learning curve
    references: dict[str, float]  # in that unit
    cores: list[CoreNumbers]  # best final quarter first
    improvement: dict[tuple[str, str], Estimate]  # P(a run of the first beats one of the second)
    better: list[tuple[str, str]]  # the first is better than the second: intervals part
    notes: list[str]


def section_numbers(section: Section) -> Numbers:
    """Of one environment."""
    points = min(_POINTS, *(len(run.frames) for contender in section.contenders for run in contender.runs))
    cores = []
    for contender in section.contenders:
        runs = contender.runs
        curves = [_binned(run, points) for run in runs]
        core = CoreNumbers(contender.name, rate_text(contender.chosen), len(runs))
        core.finals = [run.final_quarter for run in runs]
        core.single_runs = curves
        seeds = np.array([run.seed for run in runs], np.float64)
        core.curves["final_quarter_by_seed"] = Curve(seeds, without_interval(core.finals))
        core.scalars = _levels([core.finals], [[run.best for run in runs]])
        if section.has_scores:
            for name in ("final_quarter", "best"):
                core.scalars[f"{name}_score"] = Estimate(*map(section.score, core.scalars[name]))
            core.scalars |= _efficiency(section, curves, points)
        core.scalars |= _cost(runs)
        frames = section.frames * np.arange(1, points + 1) / points
        core.curves["learning"] = Curve(frames, iqm_estimate([np.stack(curves, axis=-1)]))
        if after_change := _after_change(runs):
            core.curves["after_change"] = after_change
        cores.append(core)
    numbers = _compare(section.title, section.unit, "frames", dict(section.references), cores)
    numbers.notes = _notes(section)
    return numbers


def not_pooled(sections: Sequence[Section]) -> dict[str, str]:
    """Environments that no number across environments can hold, and why."""
    by_name: dict[str, list[Section]] = {}
    for section in sections:
        by_name.setdefault(section.environment, []).append(section)
    reasons = {}
    for name, own in by_name.items():
        if len(own) > 1:
            told = ", ".join(section.title.removeprefix(name).strip(" ()") for section in own)
            reasons[name] = f"{len(own)} sets of runs that cannot be compared: {told}"
        elif not own[0].has_scores:
            reasons[name] = "no reference levels are known, so there are no scores"
    return reasons


def across_numbers(sections: Sequence[Section]) -> Numbers | None:
    """Across the environments that have scores; None where there is only one, or no core that was in all of them."""
    reasons = not_pooled(sections)
    pooled = [section for section in sections if section.environment not in reasons]
    if len(pooled) < 2:
        return None
    tables = [{contender.name: contender for contender in section.contenders} for section in pooled]
    everywhere = sorted(set.intersection(*(set(table) for table in tables)))
    if not everywhere:
        return None
    points = min(_POINTS, *(len(run.frames) for table in tables for each in table.values() for run in each.runs))
    cores = []
    for name in everywhere:
        groups = [table[name].runs for table in tables]
        core = CoreNumbers(name, "each its best", min(len(runs) for runs in groups))
        scored = list(zip(pooled, groups, strict=True))
        finals = [[section.score(run.final_quarter) for run in runs] for section, runs in scored]
        core.finals = [value for each in finals for value in each]
        core.scalars = _levels(finals, [[section.score(run.best) for run in runs] for section, runs in scored])
        curves = [np.stack([section.score(_binned(run, points)) for run in runs], axis=-1) for section, runs in scored]
        core.curves["learning"] = Curve(100.0 * np.arange(1, points + 1) / points, iqm_estimate(curves))
        cores.append((core, finals))
    title = f"across {len(pooled)} environments"
    numbers = _compare(
        title,
        "score",
        "% of the frames",
        {"random": 0.0, "oracle": 1.0},
        [core for core, _ in cores],
        {core.name: finals for core, finals in cores},
    )
    missing = sorted({name for table in tables for name in table} - set(everywhere))
    numbers.notes = [f"Over {', '.join(section.title for section in pooled)}; every run counts alike."]
    if missing:
        numbers.notes.append(f"Not in every environment, and therefore not here: {', '.join(missing)}.")
    numbers.notes += [f"Not in it: {name} ({reason})." for name, reason in reasons.items()]
    return numbers


def _compare(
    title: str,
    unit: str,
    axis: str,
    references: dict[str, float],
    cores: list[CoreNumbers],
    strata: dict[str, list[list[float]]] | None = None,
) -> Numbers:
    """Profiles, pairs and claims. ``strata``: final quarters by environment, where there are several."""
    finals = strata or {core.name: [core.finals] for core in cores}
    values = [value for core in cores for value in core.finals]
    ends = [references["random"], references["oracle"]] if references else []
    low, high = min([*values, *ends]), max([*values, *ends])
    thresholds = np.linspace(low, high, _THRESHOLDS)
    for core in cores:
        profile = performance_profile(finals[core.name], thresholds)
        core.curves["profile"] = Curve(thresholds, profile if core.seeds > 1 else without_interval(profile.value))
    cores.sort(key=lambda core: -float(core.scalars["final_quarter"].value))
    improvement, better = {}, []
    for one, other in itertools.combinations(cores, 2):
        found = probability_of_improvement(finals[one.name], finals[other.name])
        enough = min(one.seeds, other.seeds)
        if enough < 2:
            found = without_interval(found.value)
        improvement[one.name, other.name] = found
        improvement[other.name, one.name] = Estimate(1.0 - found.value, 1.0 - found.high, 1.0 - found.low)
        # The first of the two has the higher final quarter.
        apart = intervals_part(one.scalars["final_quarter"], other.scalars["final_quarter"])
        if apart and enough >= SEEDS_FOR_A_CLAIM:
            better.append((one.name, other.name))
    return Numbers(title, unit, axis, references, cores, improvement, better, [])


def _levels(finals: list[list[float]], bests: list[list[float]]) -> dict[str, Estimate]:
    return {"final_quarter": iqm_estimate(finals), "best": iqm_estimate(bests)}


def iqm_estimate(strata: Sequence[Array | list[float]]) -> Estimate:
    """IQM with its interval; without one where an environment has one run only."""
    arrays = [np.asarray(each, np.float64) for each in strata]
    if min(each.shape[-1] for each in arrays) < 2:
        return without_interval(interquartile_mean(arrays))
    return estimate(arrays, repetitions=_REPETITIONS if arrays[0].ndim == 1 else 2_000)


def without_interval(value: ArrayLike) -> Estimate:
    """A number, or a curve, that is exact or that nothing is known to vary with."""
    known = np.asarray(value, np.float64)
    nothing = np.full_like(known, np.nan)
    return Estimate(known, nothing, nothing)


def _binned(run: Run, points: int) -> Array:
    """The run's curve as means over ``points`` equal stretches of frames; NaN before anything was known."""
    total = run.frames[-1]
    place = np.minimum(np.ceil(run.frames / total * points).astype(np.int64) - 1, points - 1)
    known = np.isfinite(run.values)
    count = np.bincount(place[known], minlength=points)
    sums = np.bincount(place[known], run.values[known], minlength=points)
    filled = np.flatnonzero(count)
    return np.interp(np.arange(points), filled, sums[filled] / count[filled], left=np.nan)


def _efficiency(section: Section, curves: list[Array], points: int) -> dict[str, Estimate]:
    """Median over seeds of the frames at which a score is first reached, and the share of seeds that reach it."""
    frames = section.frames * np.arange(1, points + 1) / points
    scores = section.score(np.stack(curves))
    found = {}
    for level in LEVELS:
        reached = frames_to_reach(frames, scores, level)
        found[f"frames_to_{level:g}"] = without_interval(float(np.median(reached)))
        found[f"share_reaching_{level:g}"] = without_interval(float(np.isfinite(reached).mean()))
    return found


def _cost(runs: list[Run]) -> dict[str, Estimate]:
    """Medians over seeds; what no run says is left away."""
    found = {}
    for name in ("core_parameters", "state_bytes", "frames_per_second", "seconds"):
        values = [float(value) for run in runs if (value := getattr(run, name)) is not None]
        if values:
            found[name] = without_interval(float(np.median(values)))
    return found


def _after_change(runs: list[Run]) -> Curve | None:
    """Reward rate against steps since the rule changed, at the start of each stretch."""
    shared = [name for name in runs[0].after_change if all(name in run.after_change for run in runs)]
    if len(shared) < 2:
        return None
    edges = sorted((int(name.split("_")[0]), name) for name in shared)
    table = np.array([[run.after_change[name] for run in runs] for _, name in edges], np.float64)
    return Curve(np.array([start for start, _ in edges], np.float64), iqm_estimate([table]))


def _notes(section: Section) -> list[str]:
    notes = []
    codes = Counter(run.codes for each in section.contenders for run in each.runs)
    if len(set().union(*codes)) > 1:
        counts = sorted((" then ".join(code), count) for code, count in codes.items())
        told = ", ".join(f"{code} ({count} {'run' if count == 1 else 'runs'})" for code, count in counts)
        notes.append(f"The code of the package was not the same throughout these runs: {told}.")
    tried = {len(contender.by_rate) for contender in section.contenders}
    if tried == {1}:
        notes.append("One learning rate was tried for each core: another might order them differently.")
    few = [contender.name for contender in section.contenders if len(contender.runs) < SEEDS_FOR_A_CLAIM]
    if few and len(section.contenders) > 1:
        notes.append(f"Fewer than {SEEDS_FOR_A_CLAIM} seeds, so no claim about them: {', '.join(few)}.")
    for key, values in section.unequal.items():
        told = ", ".join(f"{name} {value}" for name, value in values.items())
        notes.append(f"Not held equal: {key} ({told}).")
    return notes


def chosen_on(contender: Contender) -> str:
    """How the learning rate came about, in words."""
    if contender.as_planned:
        return f"learning rate {rate_text(contender.chosen)}, which the comparison chose"
    if contender.planned is not None:
        missing = f"; the comparison chose {contender.planned:g}, of which no run is here"
        return chosen_on(replace(contender, planned=None)) + missing
    if not contender.seeds_of_choice:
        return f"learning rate {rate_text(contender.chosen)}, the only one tried"
    seeds = ", ".join(map(str, contender.seeds_of_choice))
    rates = ", ".join(
        f"{rate_text(rate)}: {np.mean([r.final_quarter for r in runs if r.seed in contender.seeds_of_choice]):.3f}"
        for rate, runs in contender.by_rate.items()
    )
    best = f"learning rate {rate_text(contender.chosen)}, the best of {len(contender.by_rate)}"
    return f"{best} on seed{'s' if ',' in seeds else ''} {seeds} (final quarters {rates})"
