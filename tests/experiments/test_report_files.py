"""``lifelong report``: the pages, figures and numbers that it leaves, the archive, and what it says in the terminal."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from lifelong.experiments.report_figures import section_pictures
from lifelong.experiments.report_numbers import section_numbers
from lifelong.experiments.report_pages import Page, Table, left_out_block
from lifelong.experiments.report_runs import LeftOut
from lifelong.experiments.report_style import looks

sys.path.insert(0, str(Path(__file__).parent))
from report_folders import FLAT, OPTIONS, sections_of, write_evaluation, write_run, write_seeds

# Files


@pytest.fixture
def folder(tmp_path):
    """Two cores in two environments, two seeds; one run broken, lives evaluated in one environment."""
    root = tmp_path / "results"
    for env in ("switching_bandit", "recall_stream"):
        for core, level in (("gru", 0.4), ("gated_delta", 0.8)):
            for seed in range(2):
                path = root / env / core / "lr0.002" / f"seed{seed}"
                run = write_run(path, core, seed, [level + 0.01 * seed] * 8, env={"name": env})
                if env == "recall_stream":
                    curves = {
                        "recall_by_age": [
                            {"age": 10**g, "lives": 2, "hits": [2, 1], "trials": [2, 2]} for g in range(4)
                        ],
                        "recovery": [{"change_step": 5, "life": 0, "steps": 3, "censored": False}],
                    }
                    write_evaluation(run, OPTIONS, curves, [0.5, 0.6])
    (root / "recall_stream/gru/lr0.002/seed2").mkdir()
    (root / "recall_stream/gru/lr0.002/seed2/config.yaml").write_text("seed: [")
    plan = {
        "comparison": {"match": "state_bytes", "budget": 4096, "seeds": 3},
        "cells": [{"env": "switching_bandit", "memory": "gru", "learning_rate": 0.002}],
    }
    (root / "compare.json").write_text(json.dumps(plan))
    return root


def test_a_report_is_a_page_figures_and_numbers(lifelong, folder):
    result = lifelong("report", str(folder))
    assert result.returncode == 0, result.stderr
    out = folder / "report"
    html, markdown = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert re.findall(r"(?:src|href)=\"(?!data:image/png;base64,|#)", html) == []  # nothing is fetched
    assert not re.search(r"<script|<link|@import|url\(", html)
    linked = re.findall(r"\]\((figures/\S+\.png)\)", markdown)
    assert len(linked) == html.count("data:image/png") == len(list((out / "figures").iterdir()))
    for name in linked:
        assert (out / name).read_bytes().startswith(b"\x89PNG"), name
    for kind in ("learning", "final", "profile", "improvement", "after_change", "life", "recall", "recovery", "cost"):
        assert any(name.endswith(f"_{kind}.png") for name in linked), kind
    for text in (html, markdown, result.stdout):
        assert "recall_stream/gru/lr0.002/seed2: corrupt: config.yaml cannot be read" in text
        assert "switching_bandit/gru/lr0.002/seed2: planned, and not run yet" in text
        assert "No claim: no two cores have 5 seeds or more." in text
    for text in (html, markdown):
        assert "matched by state bytes: 4,096" in text
        assert "learning rate 0.002 to 0.0005, the only one tried" in text
        assert "across 2 environments" in text
        assert "order free" not in text


def test_a_broken_plan_of_a_comparison_is_listed(lifelong, tmp_path):
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "compare.json").write_text('{"comparison": {}}')
    result = lifelong("report", "runs")
    assert result.returncode == 0
    assert "left out: compare.json: corrupt" in result.stdout


def test_json_and_csv_hold_the_same_numbers(lifelong, folder):
    assert lifelong("report", str(folder), "out=out").returncode == 0
    out = folder.parent / "out"
    data = json.loads((out / "report.json").read_text())
    with (out / "report.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {(row["environment"], row["core"], row["measure"], row["at"]): row for row in rows}
    counted = 0
    for section in data["environments"]:
        cores = [*section["cores"], *(core for life in section["evaluations"] for core in life["cores"])]
        for core in cores:
            points = [(name, "", each) for name, each in core["numbers"].items()]
            for name, curve in core["curves"].items():
                for index, at in enumerate(curve["at"]):
                    points.append((name, str(at), {key: curve[key][index] for key in ("value", "low", "high")}))
            for name, at, each in points:
                row = found[section["environment"], core["core"], name, at]
                assert [row[key] for key in each] == ["" if value is None else str(value) for value in each.values()]
                counted += 1
        counted += len(section["improvement"])
    assert counted == len(rows)
    assert any(row["low"] for row in rows)


def test_the_same_runs_give_the_same_bytes(lifelong, tmp_path):
    write_seeds(tmp_path / "runs", "gru", [0.4, 0.5])
    for out in ("one", "two"):
        assert lifelong("report", "runs", f"out={out}").returncode == 0
    names = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(names) > 5
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_an_archive_gives_the_same_report(lifelong, tmp_path, folder):
    archive = tmp_path / "kept" / "runs"
    assert lifelong("report", str(folder), f"out={tmp_path / 'first'}", f"archive={archive}").returncode == 0
    assert lifelong("report", str(archive), f"out={tmp_path / 'second'}").returncode == 0
    assert (tmp_path / "first" / "report.csv").read_bytes() == (tmp_path / "second" / "report.csv").read_bytes()
    kept = {path.name for path in archive.rglob("*") if path.is_file()}
    allowed = {
        "config.yaml",
        "versions.txt",
        "command.txt",
        "timing.csv",
        "progress.csv",
        "summary.json",
        "compare.json",
    }
    assert {name for name in kept if not name.startswith("evaluation_")} <= allowed


def test_runs_of_the_command_line_are_reported(lifelong, tmp_path, tiny):
    for seed in (0, 1):
        assert lifelong("train", *tiny, f"seed={seed}", "frames=1024", f"out=runs/{seed}").returncode == 0
        assert lifelong("evaluate", f"runs/{seed}", "life_steps=40", "lives=4", "spans=2").returncode == 0
    result = lifelong("report", "runs")
    assert result.returncode == 0, result.stderr
    (section,) = json.loads((tmp_path / "runs/report/report.json").read_text())["environments"]
    (core,) = section["cores"]
    assert core["core"] == "gated_delta"
    assert core["seeds"] == 2
    assert core["numbers"]["core_parameters"]["value"] > 100
    assert core["numbers"]["state_bytes"]["value"] > 100
    assert core["numbers"]["seconds"]["value"] > 0
    finals = [json.loads((tmp_path / f"runs/{seed}/summary.json").read_text())["final_quarter"] for seed in (0, 1)]
    assert core["numbers"]["final_quarter"]["value"] == pytest.approx(np.mean(finals))
    assert section["evaluations"][0]["cores"][0]["curves"]["life"]["at"] == [20.0, 40.0]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "report needs a folder with runs in it"),
        (["out=x"], "report needs a folder with runs in it"),
        (["rums"], "did you mean 'runs'?"),
        (["runs"], "no finished run below it (1 left out)"),
        (["runs", "outt=x"], "did you mean 'out'?"),
        (["runs", "archive=runs"], "archive=runs: is the folder that is reported on"),
    ],
)
def test_a_mistake_is_answered_in_one_line(lifelong, tmp_path, words, answer):
    write_run(tmp_path / "runs" / "a", finished=False)
    result = lifelong("report", *words)
    assert result.returncode == 2
    assert answer in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_evaluations_with_other_options_are_named_in_the_terminal(lifelong, tmp_path):
    run = write_run(tmp_path / "runs" / "a", curve=FLAT)
    write_evaluation(run, OPTIONS, None, [0.5])
    write_evaluation(run, {**OPTIONS, "life_steps": 400, "greedy": True}, None, [0.9])
    result = lifelong("report", "runs")
    assert "switching_bandit: evaluation lives, life_steps=200, lives=2: Lives" in result.stdout
    assert "switching_bandit: evaluation lives, greedy=true, life_steps=400, lives=2: Lives" in result.stdout


def test_markdown_shows_names_as_they_are():
    block = left_out_block([LeftOut("a", "<b> and _c_")])
    block.results = Table("t", ["gated_delta (heads=['plain', 'rotary*2'])"], [["a|b"]])
    text = Page("runs", [block]).markdown()
    assert r"gated_delta (heads=\['plain', 'rotary\*2'\])" in text
    assert r"| a\|b |" in text
    assert r"- a: \<b> and \_c\_" in text


# Looks


def test_a_core_has_one_look_whoever_else_is_there_in_other_figures():
    names = [f"core{index:02d}" for index in range(28)]
    found = looks(names)
    assert found == looks(reversed(names))
    assert len({(look.colour, look.line) for look in found.values()}) == 28
    assert looks(names)["core03"].colour == found["core03"].colour


def test_floors_and_oracle_are_drawn_into_the_learning_curves(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    write_seeds(tmp_path, "gru", [0.4, 0.5])
    numbers = section_numbers(sections_of(tmp_path)[0])
    section_pictures(numbers, looks(["gru"]))
    axes = drawn[0].axes[0]
    levels = {round(line.get_ydata()[0], 3) for line in axes.lines if len(set(line.get_ydata())) == 1}
    assert {0.25, 0.97, 1.0} <= levels
    names = {text.get_text() for text in axes.texts}
    assert names == {"random, memoryless", "ideal learner", "oracle"}
    assert axes.get_ylim()[0] < 0.25 < 1.0 < axes.get_ylim()[1]
