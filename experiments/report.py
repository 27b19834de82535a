"""``lifelong report FOLDER``: what the runs below a folder say, as a page, figures and numbers.

    report.md  report.html  report.json  report.csv  figures/*.png

The HTML is one file that opens from the disk without a network. The same runs give the same bytes.
``archive=FOLDER`` keeps there what the report was made of, without checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lifelong.experiments.errors import UserError, did_you_mean
from lifelong.experiments.report_archive import archive_runs
from lifelong.experiments.report_contents import Section, make_sections
from lifelong.experiments.report_data import as_csv, as_json
from lifelong.experiments.report_figures import make_looks, section_pictures
from lifelong.experiments.report_life import LifeNumbers, life_numbers
from lifelong.experiments.report_life_figures import life_pictures
from lifelong.experiments.report_numbers import Numbers, across_numbers, section_numbers
from lifelong.experiments.report_pages import (
    Page,
    left_out_block,
    life_block,
    no_summary_block,
    overview,
    section_block,
    switches_block,
)
from lifelong.experiments.report_plan import Plan, read_plan
from lifelong.experiments.report_runs import LeftOut, read_runs
from lifelong.experiments.run_folder import write_atomically, write_json


def report(arguments: list[str]) -> int:
    """``lifelong report FOLDER [out=FOLDER/report] [archive=FOLDER]``.

    Raises:
        UserError: no such folder, no finished run in it, or the report cannot be written.
    """
    folder, out, archive = _parse(arguments)
    runs, left_out = read_runs(folder)
    plan, corrupt = read_plan(folder)
    left_out = plan.complete(runs, left_out) + corrupt
    for each in left_out:
        print(f"left out: {each.path}: {each.reason}")
    if not runs:
        raise UserError(f"{folder}: no finished run below it ({len(left_out)} left out)")
    sections, twice = make_sections(runs, plan)
    for each in twice:
        print(f"left out: {each.path}: {each.reason}")
    page, data = _compose(folder.resolve().name, plan, sections, [*left_out, *twice])
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for figure in page.figures:
            (out / figure.path).write_bytes(figure.picture.png)
        write_json(out / "report.json", data)
        write_atomically(out / "report.csv", as_csv(data))
        write_atomically(out / "report.md", page.markdown())
        write_atomically(out / "report.html", page.html())
        if archive is not None:
            archive_runs(folder, runs, archive)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot write there: {error.strerror}") from error
    for block in page.blocks:
        if block.results is not None:
            print(f"\n{block.title}: {block.results.title}")
            _print_table(block.results.header, block.results.rows)
        for line in block.claims:
            print(f"  {line}")
    print(f"\nwritten: {out}: report.html, report.md, report.json, report.csv, {len(page.figures)} figures")
    return 0


def _compose(name: str, plan: Plan, sections: list[Section], left_out: list[LeftOut]) -> tuple[Page, dict[str, Any]]:
    numbers = [section_numbers(section) for section in sections]
    lives = [life_numbers(section) for section in sections]
    across = across_numbers(sections)
    look = make_looks(numbers)
    runs = sum(len(each) for section in sections for core in section.contenders for each in core.by_rate.values())
    blocks = [overview(runs, sections, left_out, plan.words)]
    if across is not None:
        blocks.append(section_block(across, None, section_pictures(across, look)))
    elif len({section.environment for section in sections}) > 1:
        blocks.append(no_summary_block(sections))
    for section, own, evaluations in zip(sections, numbers, lives, strict=True):
        blocks.append(section_block(own, section, section_pictures(own, look)))
        blocks += [life_block(own.title, each, life_pictures(each, look)) for each in evaluations]
        if len(evaluations) > 1:
            blocks.append(switches_block(own.title, evaluations))
    if left_out:
        blocks.append(left_out_block(left_out))
    parts: list[tuple[Numbers, list[LifeNumbers]]] = list(zip(numbers, lives, strict=True))
    data = as_json(parts if across is None else [(across, []), *parts], left_out)
    return Page(f"Memory cores compared: {name}", blocks), data


def _parse(arguments: list[str]) -> tuple[Path, Path, Path | None]:
    if not arguments or "=" in arguments[0]:
        raise UserError("report needs a folder with runs in it: lifelong report FOLDER [out=FOLDER/report]")
    folder = Path(arguments[0])
    if not folder.is_dir():
        near = did_you_mean(folder.name, [path.name for path in folder.parent.glob("*") if path.is_dir()])
        raise UserError(f"{folder}: no such folder{near}")
    places: dict[str, Path | None] = {"out": folder / "report", "archive": None}
    for word in arguments[1:]:
        key, _, value = word.partition("=")
        if key not in places or not value:
            raise UserError(f"{word}: unknown; allowed: out=FOLDER, archive=FOLDER{did_you_mean(key, [*places])}")
        places[key] = Path(value)
    out, archive = places["out"], places["archive"]
    assert out is not None
    if archive is not None and archive.resolve() == folder.resolve():
        raise UserError(f"archive={archive}: is the folder that is reported on; allowed: another")
    return folder, out, archive


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(["", row[0].ljust(len(first)), *rest]))
