"""A report as a page: the same tables, words and figures in Markdown and in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, select_autoescape

from lifelong.experiments.metrics.aggregate import Estimate
from lifelong.experiments.report_contents import Section
from lifelong.experiments.report_life import LifeNumbers
from lifelong.experiments.report_numbers import LEVELS, SEEDS_FOR_A_CLAIM, Numbers, chosen_on, not_pooled
from lifelong.experiments.report_runs import LeftOut
from lifelong.experiments.report_style import Picture

_HOW_TO_READ = (
    "Each core is shown at the learning rate that the comparison chose, or, where none says, at the one whose final "
    "quarter was best; the seeds that chose it are among those shown. Final quarter and best update stand side by "
    "side, so that a collapse shows. Numbers are interquartile means over seeds with a 95 % stratified bootstrap "
    "interval (the definitions of rliable). A score is 0 for the random policy and 1 for the environment's oracle. "
    "That one core is better than another is said only where the intervals of their final quarters part and both have "
    f"{SEEDS_FOR_A_CLAIM} seeds or more."
)


@dataclass(frozen=True)
class Table:
    """Words in rows; the first column names what the row is about."""

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Listing:
    """Lines under a title."""

    title: str
    lines: list[str]


@dataclass(frozen=True)
class PlacedFigure:
    """A figure and its file, relative to the report's folder."""

    path: str
    picture: Picture

    @property
    def base64(self) -> str:
        return base64.b64encode(self.picture.png).decode()


@dataclass
class Block:
    """A heading and what stands below it."""

    level: int
    title: str
    paragraphs: list[str] = field(default_factory=list)
    results: Table | None = None
    claims: list[str] = field(default_factory=list)
    cost: Table | None = None
    listings: list[Listing] = field(default_factory=list)
    figures: list[PlacedFigure] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """The whole report."""

    title: str
    blocks: list[Block]

    @property
    def figures(self) -> list[PlacedFigure]:
        return [figure for block in self.blocks for figure in block.figures]

    def markdown(self) -> str:
        return self._render("report.md.jinja")

    def html(self) -> str:
        return self._render("report.html.jinja")

    def _render(self, template: str) -> str:
        folder = Path(str(files("lifelong.experiments"))) / "templates"
        environment = Environment(
            loader=FileSystemLoader(folder),
            autoescape=select_autoescape(["html.jinja"]),
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["plain"] = _plain
        return environment.get_template(template).render(page=self)


def overview(runs: int, sections: Sequence[Section], left_out: Sequence[LeftOut], plan: list[str]) -> Block:
    """What the report is about."""
    block = Block(2, "Overview")
    cores = {contender.name for section in sections for contender in section.contenders}
    environments = {section.environment for section in sections}
    counts = f"{_count(runs, 'run')} of {_count(len(cores), 'core')} in {_count(len(environments), 'environment')}"
    if len(sections) > len(environments):
        counts += f" ({len(sections)} sets of comparable runs)"
    block.paragraphs = [f"{counts}; {len(left_out)} left out.", *plan, _HOW_TO_READ]
    return block


def no_summary_block(sections: Sequence[Section]) -> Block:
    """In place of the numbers across environments, where there are several environments and no such numbers."""
    block = Block(2, "across environments")
    reasons = [f"Not in it: {name} ({reason})." for name, reason in not_pooled(sections).items()]
    without = {section.environment for section in sections} - not_pooled(sections).keys()
    why = "no core is in all of them" if len(without) > 1 else "fewer than two environments could be summarised"
    block.paragraphs = [f"There is no summary across environments: {why}.", *reasons]
    return block


def section_block(numbers: Numbers, section: Section | None, pictures: list[Picture]) -> Block:
    """Of one environment, or across environments (``section`` None)."""
    block = Block(2, numbers.title)
    if section is not None:
        levels = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in section.references.items())
        block.paragraphs.append(
            f"{section.frames:,} frames a run; final quarter and best are the {numbers.unit}"
            + (f". Reference levels: {levels}." if levels else "; no reference levels are known.")
        )
        block.paragraphs.append(f"Versions: {', '.join(section.versions)}.")
        block.cost = _costs(numbers)
        rates = [f"{each.name}: {chosen_on(each)}" for each in section.contenders]
        block.listings.append(Listing("Learning rates", rates))
    block.results = _results(numbers, section)
    block.claims = _claims(numbers)
    if numbers.notes:
        block.listings.append(Listing("Notes", numbers.notes))
    block.figures = _place(numbers.title, pictures)
    return block


def life_block(title: str, numbers: LifeNumbers, pictures: list[Picture]) -> Block:
    """Of the evaluation lives of one environment."""
    block = Block(3, f"{title}: evaluation lives, {numbers.options}")
    block.paragraphs = ["Held-out seeds, slow weights frozen unless it says otherwise."]
    header = ["core", "seeds", f"{numbers.unit}, first part", "last part", "largest entry"]
    header += ["lifetime score", "second half", "age at half recall", "decades remembered"]
    header += ["steps to recover", "censored", "changes judged"]
    rows = []
    for core in numbers.cores:
        life, largest = core.curves.get("life"), core.curves.get("health_state_max")
        ends = [_at(life.estimate, 0), _at(life.estimate, -1)] if life else ["", ""]
        measures = {
            "lifetime_score": "{:.3f}",
            "lifetime_score_second_half": "{:.3f}",
            "recall_half_life": "{:,.0f}",
            "decades_remembered": "{:.2f}",
            "recovery_median": "{:,.0f}",
            "censored_share": "{:.2f}",
            "judged_share": "{:.2f}",
        }
        cells = [_with_interval(core.scalars.get(name), form) for name, form in measures.items()]
        rows.append([core.name, str(core.seeds), *ends, f"{largest.estimate.value[-1]:.3g}" if largest else "", *cells])
    kept = [index for index in range(len(header)) if index < 2 or any(row[index] for row in rows)]
    block.results = Table("Lives", [header[i] for i in kept], [[row[i] for i in kept] for row in rows])
    block.figures = _place(f"{title} {numbers.options}", pictures)
    return block


def switches_block(title: str, lives: Sequence[LifeNumbers]) -> Block:
    """The same runs evaluated in several ways, side by side: which of the two learners adapts?"""
    names = sorted({core.name for life in lives for core in life.cores})
    rows = []
    for name in names:
        cells = []
        for life in lives:
            curve = next((core.curves.get("life") for core in life.cores if core.name == name), None)
            cells.append(_at(curve.estimate, -1) if curve else "")
        rows.append([name, *cells])
    block = Block(3, f"{title}: evaluations side by side")
    block.results = Table(f"Last part of the life ({lives[0].unit})", ["core", *(life.options for life in lives)], rows)
    return block


def left_out_block(left_out: Sequence[LeftOut]) -> Block:
    """Runs that the numbers do not hold."""
    lines = [f"{each.path}: {each.reason}" for each in left_out]
    return Block(2, "Left out", listings=[Listing("Runs that the numbers do not hold", lines)])


def _results(numbers: Numbers, section: Section | None) -> Table:
    scored = section is not None and section.has_scores
    header = ["core", "learning rate", "seeds", "final quarter", "best"]
    if section is None:
        header.remove("learning rate")
    if scored:
        header += ["score, final quarter", "score, best", *(f"frames to score {level:g}" for level in LEVELS)]
    rows = []
    for core in numbers.cores:
        row = [core.name, *([core.learning_rate] if section is not None else []), str(core.seeds)]
        row += [_with_interval(core.scalars[name]) for name in ("final_quarter", "best")]
        if scored:
            row += [_with_interval(core.scalars[f"{name}_score"]) for name in ("final_quarter", "best")]
            row += [_frames(core.scalars, level) for level in LEVELS]
        rows.append(row)
    return Table(f"Results ({numbers.unit})", header, rows)


def _frames(scalars: dict[str, Estimate], level: float) -> str:
    frames, share = scalars[f"frames_to_{level:g}"].value, float(scalars[f"share_reaching_{level:g}"].value)
    if share == 0.0:
        return "not reached"
    median = f"{float(frames):,.0f}" if np.isfinite(frames) else "more"
    return median if share == 1.0 else f"{median} ({share:.0%} of seeds)"


def _costs(numbers: Numbers) -> Table:
    columns = {
        "core_parameters": ("parameters of the core", "{:,.0f}"),
        "state_bytes": ("state bytes a life", "{:,.0f}"),
        "frames_per_second": ("frames/s", "{:,.0f}"),
        "seconds": ("seconds", "{:,.1f}"),
    }
    rows = []
    for core in numbers.cores:
        found = {name: core.scalars.get(name) for name in columns}
        cells = [
            form.format(float(each.value)) if (each := found[name]) else "unknown"
            for name, (_, form) in columns.items()
        ]
        rows.append([core.name, *cells])
    return Table("Cost (medians over seeds)", ["core", *(title for title, _ in columns.values())], rows)


def _claims(numbers: Numbers) -> list[str]:
    if len(numbers.cores) < 2:
        return []
    beaten = defaultdict(list)
    for one, other in numbers.better:
        beaten[one].append(other)
    lines = [f"{one} is better than {', '.join(others)}." for one, others in beaten.items()]
    enough = sum(core.seeds >= SEEDS_FOR_A_CLAIM for core in numbers.cores)
    if enough < 2:
        return [f"No claim: no two cores have {SEEDS_FOR_A_CLAIM} seeds or more."]
    if len(numbers.better) < enough * (enough - 1) // 2:
        others = "all other" if lines else "all"
        lines.append(f"The intervals of {others} pairs with {SEEDS_FOR_A_CLAIM} seeds overlap: nothing is claimed.")
    return lines


def _with_interval(found: Estimate | None, form: str = "{:.3f}") -> str:
    if found is None:
        return ""
    value, low, high = (form.format(float(each)).replace("inf", "never") for each in found)
    return value if low == "nan" else f"{value} ({low} to {high})"


def _at(found: Estimate, index: int) -> str:
    return _with_interval(Estimate(*(each[index] for each in found)))


def _place(title: str, pictures: list[Picture]) -> list[PlacedFigure]:
    word = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in title).strip("-")
    while "--" in word:
        word = word.replace("--", "-")
    return [PlacedFigure(f"figures/{word}_{picture.name}.png", picture) for picture in pictures]


def _plain(text: str) -> str:
    """Text as Markdown that shows it as it is; an underscore inside a word needs nothing."""
    return re.sub(r"[\\`*|<\[\]]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
