"""The numbers of a report as JSON and as CSV: the same, nested and flat."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lifelong.experiments.metrics.aggregate import Estimate
from lifelong.experiments.report_life import CoreLife, LifeNumbers
from lifelong.experiments.report_numbers import CoreNumbers, Curve, Numbers
from lifelong.experiments.report_runs import LeftOut

_COLUMNS = ("environment", "evaluation", "core", "learning_rate", "seeds", "measure", "at", "value", "low", "high")


def as_json(sections: Sequence[tuple[Numbers, Sequence[LifeNumbers]]], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """Nested: environments, cores, measures. What is infinite or unknown is null."""
    return {
        "environments": [_section(numbers, lives) for numbers, lives in sections],
        "left_out": [{"run": each.path, "reason": each.reason} for each in left_out],
    }


def as_csv(data: Mapping[str, Any]) -> str:
    """Flat: a row for each number of ``as_json``; what is unknown is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for section in data["environments"]:
        for core in section["cores"]:
            writer.writerows(_rows(section["environment"], "", core))
        for pair in section["improvement"]:
            measure = f"probability of improvement over {pair['over']}"
            row = [section["environment"], "", pair["core"], "", "", measure, "", *_cells(pair)]
            writer.writerow(row)
        for life in section["evaluations"]:
            for core in life["cores"]:
                writer.writerows(_rows(section["environment"], life["options"], core))
    return stream.getvalue()


def _section(numbers: Numbers, lives: Sequence[LifeNumbers]) -> dict[str, Any]:
    return {
        "environment": numbers.title,
        "unit": numbers.unit,
        "references": numbers.references,
        "cores": [{**_core(core), "learning_rate": core.learning_rate} for core in numbers.cores],
        "improvement": [
            {"core": one, "over": other, **_estimate(found)} for (one, other), found in numbers.improvement.items()
        ],
        "better": [{"core": one, "than": other} for one, other in numbers.better],
        "notes": numbers.notes,
        "evaluations": [
            {"options": life.options, "unit": life.unit, "cores": [_core(core) for core in life.cores]}
            for life in lives
        ],
    }


def _core(core: CoreNumbers | CoreLife) -> dict[str, Any]:
    return {
        "core": core.name,
        "seeds": core.seeds,
        "numbers": {name: _estimate(found) for name, found in core.scalars.items()},
        "curves": {name: _curve(curve) for name, curve in core.curves.items()},
    }


def _estimate(found: Estimate) -> dict[str, float | None]:
    return {name: _number(float(value)) for name, value in found._asdict().items()}


def _curve(curve: Curve) -> dict[str, list[float | None]]:
    columns = {"at": curve.at, **curve.estimate._asdict()}
    return {name: [_number(float(value)) for value in column] for name, column in columns.items()}


def _rows(environment: str, evaluation: str, core: Mapping[str, Any]) -> Iterator[list[Any]]:
    head = [environment, evaluation, core["core"], core.get("learning_rate", ""), core["seeds"]]
    for name, found in core["numbers"].items():
        yield [*head, name, "", *_cells(found)]
    for name, curve in core["curves"].items():
        for at, *values in zip(curve["at"], curve["value"], curve["low"], curve["high"], strict=True):
            yield [*head, name, at, *("" if value is None else value for value in values)]


def _cells(found: Mapping[str, Any]) -> list[Any]:
    return ["" if found[name] is None else found[name] for name in ("value", "low", "high")]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
