"""What is compared with what: runs of one environment side by side, each core at its best learning rate.

A *section* holds the runs of one environment: the same name and config, the same versions, references and frames. Runs
that differ in any of these are not comparable and get sections of their own; a run that was resumed on other versions
differs from one that was not. A *contender* of a section is a core with all that its config says but for the seed and
the learning rate; its name is the core's, and what tells two contenders of one core apart.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lifelong.experiments.metrics.lifetime import normalised_score
from lifelong.experiments.report_plan import NO_PLAN, Plan
from lifelong.experiments.report_runs import LeftOut, Run

Rate = tuple[float, float]

# What does not make another contender of a run, be it told apart elsewhere or of no consequence to what it reaches.
_NO_CONTENDER = ("env", "seed", "frames", "out", "plugins", "checkpoint", "log", "threads", "device")
# What contenders may differ in without a word.
_NOT_SAID = ("memory", "env", "seed", "frames", "out", "plugins", "checkpoint", "log")
_RATES = ("algorithm.learning_rate", "algorithm.final_learning_rate")


@dataclass(frozen=True)
class Contender:
    """A core in an environment, at every learning rate that it was tried with."""

    name: str
    by_rate: dict[Rate, list[Run]]  # ascending; runs by seed
    chosen: Rate
    seeds_of_choice: tuple[int, ...]  # on which the learning rates were compared here; empty where they were not
    planned: float | None = None  # the learning rate that ``lifelong compare`` chose, where it says so

    @property
    def as_planned(self) -> bool:
        """Whether these are the runs of the learning rate that ``lifelong compare`` chose."""
        return self.planned is not None and _is_rate(self.chosen, self.planned)

    @property
    def runs(self) -> list[Run]:
        """At the learning rate chosen."""
        return self.by_rate[self.chosen]


@dataclass(frozen=True)
class Section:
    """One environment."""

    title: str  # its name, and what tells it from other sections of that name
    environment: str
    env: dict[str, Any]
    versions: tuple[str, ...]
    per: str
    references: dict[str, float]
    frames: int
    contenders: list[Contender]
    unequal: dict[str, dict[str, Any]]  # keys outside the core that contenders differ in: value by contender

    @property
    def has_scores(self) -> bool:
        """Whether the levels of the random policy and of the oracle are known."""
        return bool(self.references)

    @property
    def unit(self) -> str:
        return "reward per step" if self.per == "step" else "return of an episode"

    def score(self, value: Any) -> Any:
        """0 is the random policy, 1 the oracle; numbers or arrays."""
        return normalised_score(value, self.references["random"], self.references["oracle"])


def make_sections(runs: Iterable[Run], plan: Plan = NO_PLAN) -> tuple[list[Section], list[LeftOut]]:
    """Sort runs into sections, by title; a second run of the same seed is left out."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        key = [plan.environment_of(run), run.config["env"], run.versions, run.references, run.per, run.frames[-1]]
        groups[json.dumps(key, sort_keys=True)].append(run)
    names = [plan.environment_of(group[0]) for group in groups.values()]
    titles = _titles(names, [group[0] for group in groups.values()])
    sections, left_out = [], []
    for title, name, group in sorted(zip(titles, names, groups.values(), strict=True), key=lambda each: each[0]):
        contenders, unequal, twice = _contenders(group, plan)
        first = group[0]
        sections.append(
            Section(
                title=title,
                environment=name,
                env=first.config["env"],
                versions=first.versions,
                per=first.per,
                references=first.references,
                frames=int(first.frames[-1]),
                contenders=contenders,
                unequal=unequal,
            )
        )
        left_out += twice
    return sections, left_out


def choose_rate(by_rate: dict[Rate, list[Run]]) -> tuple[Rate, tuple[int, ...]]:
    """The learning rate whose final quarter is best on average over the seeds that all learning rates have.

    A rate that was chosen on few seeds and then run on more is judged on the few: the mean over more would be lower,
    since the choice has favoured those it was made on. Without a seed that all have, each is judged on its own.

    Returns:
        The rate, and the seeds that decided; none where there was one rate only.
    """
    if len(by_rate) == 1:
        return next(iter(by_rate)), ()
    common = set.intersection(*({run.seed for run in runs} for runs in by_rate.values()))
    seeds = common or {run.seed for runs in by_rate.values() for run in runs}

    def level(rate: Rate) -> float:
        return float(np.mean([run.final_quarter for run in by_rate[rate] if run.seed in seeds]))

    return max(by_rate, key=level), tuple(sorted(seeds))


def _is_rate(rate: Rate, first: float) -> bool:
    """As in the names of folders, so that what was rounded on the way to a config is known again."""
    return f"{rate[0]:g}" == f"{first:g}"


def rate_text(rate: Rate) -> str:
    """``0.002``, or ``0.002 to 0.0005`` where it falls."""
    first, last = rate
    return f"{first:g}" if first == last else f"{first:g} to {last:g}"


def _contenders(group: list[Run], plan: Plan) -> tuple[list[Contender], dict[str, dict[str, Any]], list[LeftOut]]:
    by_identity: dict[str, list[Run]] = defaultdict(list)
    for run in group:
        by_identity[json.dumps([plan.label_of(run), _identity(run)], sort_keys=True)].append(run)
    labels = [plan.label_of(runs[0]) for runs in by_identity.values()]
    names = [
        label if label is not None and labels.count(label) == 1 else name
        for label, name in zip(labels, _names([_identity(runs[0]) for runs in by_identity.values()]), strict=True)
    ]
    contenders, left_out = [], []
    for name, runs in zip(names, by_identity.values(), strict=True):
        by_rate: dict[Rate, dict[int, Run]] = defaultdict(dict)
        for run in runs:
            before = by_rate[run.learning_rate].setdefault(run.seed, run)
            if before is not run:
                left_out.append(LeftOut(run.path, f"the same seed and settings as {before.path}"))
        ordered = {rate: [seeds[seed] for seed in sorted(seeds)] for rate, seeds in sorted(by_rate.items())}
        planned = plan.learning_rate_of(runs)
        there = [rate for rate in ordered if planned is not None and _is_rate(rate, planned)]
        choice = (there[0], ()) if there else choose_rate(ordered)
        contenders.append(Contender(name, ordered, *choice, planned))
    contenders.sort(key=lambda contender: contender.name)
    return contenders, _unequal(contenders), left_out


def _identity(run: Run) -> dict[str, Any]:
    kept = {key: value for key, value in run.config.items() if key not in _NO_CONTENDER}
    return {key: value for key, value in _flat(kept).items() if key not in _RATES}


def _names(identities: list[dict[str, Any]]) -> list[str]:
    """The core's name, with the options in which it differs from others of that name."""
    cores = [identity["memory.name"] for identity in identities]
    names = []
    for core, identity in zip(cores, identities, strict=True):
        same = [other for name, other in zip(cores, identities, strict=True) if name == core]
        different = [key for key in sorted(identity) if len({json.dumps(other.get(key)) for other in same}) > 1]
        words = [f"{key.rpartition('.')[2]}={identity[key]}" for key in different]
        names.append(f"{core} ({', '.join(words)})" if words else core)
    return names


def _unequal(contenders: Sequence[Contender]) -> dict[str, dict[str, Any]]:
    flats = {contender.name: _flat(contender.runs[0].config) for contender in contenders}
    keys = sorted({key for flat in flats.values() for key in flat})
    found = {}
    for key in keys:
        values = {name: flat.get(key) for name, flat in flats.items()}
        skipped = key.partition(".")[0] in _NOT_SAID or key in _RATES
        if not skipped and len({json.dumps(value) for value in values.values()}) > 1:
            found[key] = values
    return found


def _titles(names: list[str], firsts: list[Run]) -> list[str]:
    """The environments' names, with what tells sections of one name apart."""
    facts = [_facts(run) for run in firsts]
    titles = []
    for name, own in zip(names, facts, strict=True):
        same = [other for other_name, other in zip(names, facts, strict=True) if other_name == name]
        different = [key for key in own if len({other.get(key) for other in same}) > 1]
        words = [f"{key} {own[key]}" for key in different]
        titles.append(f"{name} ({', '.join(words)})" if words else name)
    return titles


def _facts(run: Run) -> dict[str, str]:
    """All that runs of a section have in common, as words."""
    facts = {key.removeprefix("env."): str(value) for key, value in _flat({"env": run.config["env"]}).items()}
    facts["frames"] = f"{int(run.frames[-1]):,}"
    facts |= {line.partition(" ")[0]: line.partition(" ")[2] for line in run.versions}
    return facts | {f"reference {name}": f"{value:g}" for name, value in run.references.items()}


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
