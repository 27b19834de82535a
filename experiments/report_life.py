"""The numbers of evaluation lives: one unbroken life after another, from ``evaluation_*.json``.

Of an evaluation its ``options`` are read, its ``spans`` (parts of the life: value, score, cost and the memory's health
at their ends) and, where it has them, its ``lifetime_score`` (``whole`` and ``second_half``) and its ``curves``:

    recall_by_age  [{age, hits, trials}]                 hits and trials one for each life, or summed over lives
    recovery       [{steps, censored}]                   and, each as it may be: count (of changes alike), life,
                                                         change_decade (the change came at life step 10^d to 10^(d+1))
    changes        [{judged, all}]                       changes whose recovery could be judged, and all
    adaptation     [{steps_since_change, reward, count}]

Lives are drawn within seeds for the intervals, since lives of one seed share their weights; where the lives of a seed
cannot be told apart, seeds alone are drawn.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lifelong.experiments.evaluate_options import EvaluateOptions
from lifelong.experiments.metrics.aggregate import Array, Estimate, cluster_weights, percentile_interval
from lifelong.experiments.metrics.recovery import kaplan_meier
from lifelong.experiments.metrics.retention import chance_corrected, decades_remembered, half_life
from lifelong.experiments.report_contents import Contender, Section
from lifelong.experiments.report_numbers import Curve, iqm_estimate, without_interval

_REPETITIONS = 1_000
_SURVIVAL_REPETITIONS = 200
_SURVIVAL_POINTS = 100
_CHANGES_FOR_A_MEDIAN = 20

_ALWAYS_SAID = ("life_steps", "lives")
# Measures of the memory's health that make a figure, as spans name them: "memory/state_norm" and so on.
HEALTH = ("state_norm", "effective_rank", "state_max", "state_non_finite", "write_size", "surprise_before")
_LIFETIME = {"lifetime_score": "whole", "lifetime_score_second_half": "second_half"}
# Curves that are made of spans.
_OF_SPANS = {
    "cost_microseconds": "microseconds_per_step",
    "cost_state_bytes": "memory/state_bytes",
    **{f"health_{name}": f"memory/{name}" for name in HEALTH},
}

Records = list[dict[str, Any]]


@dataclass
class CoreLife:
    """Of one core, over the runs of its seeds."""

    name: str
    seeds: int
    curves: dict[str, Curve] = field(default_factory=dict)
    scalars: dict[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class LifeNumbers:
    """Of one environment, all cores evaluated with the same options."""

    options: str
    unit: str  # of the curve "life"
    references: dict[str, float]  # in that unit
    reward_references: dict[str, float]  # of the reward of a step; empty where they are not known
    chance: float | None  # of guessing right, where something is asked
    cores: list[CoreLife]


def life_numbers(section: Section) -> list[LifeNumbers]:
    """One for each set of options (the seed apart) that runs of the section were evaluated with."""
    by_options: dict[str, dict[str, list[Records]]] = defaultdict(lambda: defaultdict(list))
    for contender in section.contenders:
        for run in contender.runs:
            groups: dict[str, Records] = defaultdict(list)
            for evaluation in run.evaluations:
                alike = {key: value for key, value in evaluation["options"].items() if key != "seed"}
                groups[json.dumps(alike, sort_keys=True)].append(evaluation)
            for name, evaluations in groups.items():
                by_options[name][contender.name].append(evaluations)
    plain = dataclasses.asdict(EvaluateOptions())
    found = []
    for options, runs_of in sorted(by_options.items()):
        chosen = json.loads(options)
        kept = {name: value for name, value in chosen.items() if value != plain.get(name) or name in _ALWAYS_SAID}
        words = ", ".join(f"{name}={_word(value)}" for name, value in kept.items())
        cores = [_core_life(contender, section, runs_of) for contender in section.contenders]
        found.append(
            LifeNumbers(
                options=words,
                unit="score" if section.has_scores else section.unit,
                references={name: section.score(level) for name, level in section.references.items()},
                reward_references=section.references if section.per == "step" else {},
                chance=_chance(section),
                cores=[core for core in cores if core.curves],
            )
        )
    return found


def _chance(section: Section) -> float | None:
    """Environments that ask for one of several values have an option that says of how many."""
    values = section.env.get("values")
    return 1.0 / values if isinstance(values, int) and values > 1 else None


def _core_life(contender: Contender, section: Section, runs_of: dict[str, list[Records]]) -> CoreLife:
    runs = runs_of.get(contender.name, [])
    core = CoreLife(contender.name, len(runs))
    if not runs:
        return core
    value = "score" if section.has_scores else "value"
    spans = [[_flat_span(span) for each in run for span in each.get("spans", [])] for run in runs]
    curves = [[each.get("curves") or {} for each in run] for run in runs]
    add = core.curves.update
    add(_series("life", spans, "stop", value))
    for name, key in _OF_SPANS.items():
        add(_series(name, spans, "stop", key))
    adaptation = [[record for each in run for record in each.get("adaptation", [])] for run in curves]
    add(_series("adaptation", adaptation, "steps_since_change", "reward"))
    for name, part in _LIFETIME.items():
        known = [[float(each["lifetime_score"][part]) for each in run if each.get("lifetime_score")] for run in runs]
        if all(known):
            core.scalars[name] = iqm_estimate([[float(np.mean(each)) for each in known]])
    recalls = [[each.get("recall_by_age", []) for each in run] for run in curves]
    if recall := _recall(recalls):
        core.curves["recall"] = recall
        if (chance := _chance(section)) is not None:
            corrected = chance_corrected(recall.estimate.value, chance)
            core.scalars["recall_half_life"] = without_interval(half_life(recall.at, corrected))
            core.scalars |= _decades([each for run in recalls for records in run for each in records], chance)
    counts = [each for run in curves for curve in run for each in curve.get("changes", [])]
    if of_all := sum(each["all"] for each in counts):
        core.scalars["judged_share"] = without_interval(sum(each["judged"] for each in counts) / of_all)
    recoveries = [[each.get("recovery", []) for each in run] for run in curves]
    if any(records for run in recoveries for records in run):
        changes = _Changes.gather(recoveries)
        core.curves["recovery"], scalars = changes.survival()
        core.scalars |= scalars
        if by_decade := changes.median_by_decade():
            core.curves["recovery_by_decade"] = by_decade
    return core


def _series(name: str, runs: Sequence[Records], at: str, key: str) -> dict[str, Curve]:
    """IQM over seeds at each place that all runs have; nothing where they have none. Several records of a run at one
    place (several evaluation seeds) are averaged.
    """
    tables: list[dict[float, list[float]]] = []
    for records in runs:
        table: dict[float, list[float]] = defaultdict(list)
        for record in records:
            if record.get(key) is not None:
                table[float(record[at])].append(float(record[key]))
        tables.append(table)
    places = sorted(set.intersection(*(set(table) for table in tables)))
    if not places:
        return {}
    values = np.array([[np.mean(table[place]) for table in tables] for place in places], np.float64)
    return {name: Curve(np.array(places, np.float64), iqm_estimate([values]))}


def _recall(runs: Sequence[Sequence[Records]]) -> Curve | None:
    """Share of right answers by age: a ratio of sums over lives."""
    asked = {float(each["age"]) for run in runs for records in run for each in records if np.sum(each["trials"]) > 0}
    if not asked:
        return None
    ages = sorted(asked)
    tables = [np.concatenate([_recall_table(records, ages) for records in run]) for run in runs]
    lives = np.concatenate(tables)  # [units, ages, 2]
    hits, trials = lives.sum(axis=0).T
    if len(lives) < 2:
        return Curve(np.array(ages), without_interval(hits / trials))
    weights = cluster_weights([len(table) for table in tables if len(table)], _REPETITIONS)
    with np.errstate(invalid="ignore"):  # a draw may hold no life that was asked at this age
        draws = (weights @ lives[..., 0]) / (weights @ lives[..., 1])
    low, high = np.nanquantile(draws, [0.025, 0.975], axis=0)
    return Curve(np.array(ages), Estimate(hits / trials, low, high))


def _decades(records: Records, chance: float) -> dict[str, Estimate]:
    """Decades of age that are remembered, where every decade up to the oldest age was asked for."""
    hits, trials = Counter[int](), Counter[int]()
    for each in records:
        if each["age"] > 0 and np.sum(each["trials"]) > 0:
            decade = len(str(int(each["age"])))  # 1 to 9, 10 to 99: by comparison, and not by a logarithm's rounding
            hits[decade] += int(np.sum(each["hits"]))
            trials[decade] += int(np.sum(each["trials"]))
    if not trials or len(trials) < max(trials):
        return {}
    shares = [hits[decade] / trials[decade] for decade in sorted(trials)]
    return {"decades_remembered": without_interval(decades_remembered(chance_corrected(shares, chance)))}


def _recall_table(records: Records, ages: list[float]) -> Array:
    """Hits and trials of one evaluation, [lives, ages, 2]; a single row where they are summed over lives."""
    lives = max((np.size(record["hits"]) for record in records), default=0)
    table = np.zeros((lives, len(ages), 2))
    for record in records:
        if float(record["age"]) in ages:
            counts = np.stack([np.atleast_1d(record["hits"]), np.atleast_1d(record["trials"])], axis=-1)
            table[:, ages.index(float(record["age"]))] += counts
    return table


@dataclass(frozen=True)
class _Changes:
    """Changes of the hidden rule and what came after them, [N] each; alike ones may share a row."""

    steps: Array  # to recovery, or to leaving
    censored: NDArray[np.bool_]
    count: Array
    decade: Array  # of the life step at which the change came; NaN where unknown
    unit: NDArray[np.int64]  # the life, or the evaluation whose lives cannot be told apart
    lives: list[int]  # units of each seed

    @classmethod
    def gather(cls, runs: Sequence[Sequence[Records]]) -> _Changes:
        rows: list[tuple[float, bool, float, float, int]] = []
        lives: list[int] = []
        for evaluations in runs:
            own: dict[tuple[int, int], int] = {}
            for number, records in enumerate(evaluations):
                for each in records:
                    unit = own.setdefault((number, int(each.get("life", 0))), sum(lives) + len(own))
                    decade = each.get("change_decade", math.nan)
                    rows.append((each["steps"], each["censored"], each.get("count", 1), decade, unit))
            lives.append(len(own))
        columns = list(zip(*rows, strict=True))
        return cls(
            np.array(columns[0], np.float64),
            np.array(columns[1], np.bool_),
            np.array(columns[2], np.float64),
            np.array(columns[3], np.float64),
            np.array(columns[4], np.int64),
            [number for number in lives if number],
        )

    def draws(self) -> list[Array]:
        """Resampled counts; none where there is a single unit."""
        if sum(self.lives) < 2:
            return []
        return [self.count * weights[self.unit] for weights in cluster_weights(self.lives, _SURVIVAL_REPETITIONS)]

    def survival(self) -> tuple[Curve, dict[str, Estimate]]:
        """Kaplan-Meier over all changes: share not recovered by steps, median, and share censored."""
        last = max(float(self.steps.max()), 2.0)
        grid = np.unique(np.concatenate([[0.0], np.geomspace(1.0, last, _SURVIVAL_POINTS).round()]))

        def at_grid(count: Array) -> tuple[Array, float, float]:
            curve = kaplan_meier(self.steps, self.censored, count)
            levels = np.concatenate([[1.0], curve.survival])
            return levels[np.searchsorted(curve.times, grid, side="right")], curve.median, curve.censored_share

        value, median, share = at_grid(self.count)
        found = [at_grid(count) for count in self.draws()]
        if not found:
            scalars = {"recovery_median": without_interval(median), "censored_share": without_interval(share)}
            return Curve(grid, without_interval(value)), scalars
        values, medians, shares = (np.array(column) for column in zip(*found, strict=True))
        return Curve(grid, Estimate(value, *percentile_interval(values.T))), {
            "recovery_median": Estimate(np.asarray(median), *_interval_of_medians(medians)),
            "censored_share": Estimate(np.asarray(share), *percentile_interval(shares)),
        }

    def median_by_decade(self) -> Curve | None:
        """Median steps to recover, by the decade of the life in which the change came; inf where none is seen."""
        points = []
        for decade in np.unique(self.decade[np.isfinite(self.decade)]):
            here = self.decade == decade
            if self.count[here].sum() < _CHANGES_FOR_A_MEDIAN:
                continue
            counts = [self.count, *self.draws()]
            value, *drawn = [
                kaplan_meier(self.steps[here], self.censored[here], count[here]).median for count in counts
            ]
            points.append((10.0**decade, value, *(_interval_of_medians(drawn) if drawn else (math.nan, math.nan))))
        if not points:
            return None
        at, value, low, high = np.array(points).T
        return Curve(at, Estimate(value, low, high))


def _interval_of_medians(medians: ArrayLike) -> tuple[Array, Array]:
    """A median may be infinite, and nothing lies between a number and infinity: a draw is taken, none interpolated."""
    low, high = np.quantile(np.asarray(medians, np.float64), [0.025, 0.975], method="inverted_cdf")
    return low, high


def _flat_span(span: dict[str, Any]) -> dict[str, Any]:
    return {**span, **(span.get("memory") or {})}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
