"""``lifelong report``: what is compared with what, what is claimed, and what stands in the files."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from lifelong.experiments.report_contents import choose_rate, make_sections
from lifelong.experiments.report_figures import section_pictures
from lifelong.experiments.report_life import life_numbers
from lifelong.experiments.report_numbers import across_numbers, chosen_on, section_numbers
from lifelong.experiments.report_pages import Page, Table, left_out_block, life_block, no_summary_block, overview
from lifelong.experiments.report_plan import read_plan
from lifelong.experiments.report_runs import LeftOut, read_runs
from lifelong.experiments.report_style import looks

sys.path.insert(0, str(Path(__file__).parent))
from report_folders import STEP, VERSIONS, write_evaluation, write_plan, write_run

FLAT = [0.5] * 8


def sections_of(folder):
    runs, left_out = read_runs(folder)
    assert left_out == []
    plan, corrupt = read_plan(folder)
    assert corrupt == []
    sections, twice = make_sections(runs, plan)
    assert twice == []
    return sections


def write_seeds(folder, core, levels, **options):
    """One run a seed, each at a level of its own from first to last."""
    for seed, level in enumerate(levels):
        write_run(folder / core / f"seed{seed}", core, seed, [level] * 8, **options)


# What is compared with what


def test_runs_of_other_versions_or_environments_stand_in_sections_of_their_own(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", versions=VERSIONS.replace("2.13.0", "2.12.0"))
    write_run(tmp_path / "c", env={"name": "switching_bandit", "num_lives": 32})
    write_run(tmp_path / "d", references={"random": 0.25, "oracle": 0.9})
    write_run(tmp_path / "e", env={"name": "gymnasium", "id": "CartPole-v1", "num_lives": 64}, references={})
    sections = sections_of(tmp_path)
    assert [len(section.contenders[0].runs) for section in sections] == [1] * 5
    titles = [section.title for section in sections]
    assert titles[0] == "CartPole-v1"
    assert any("torch 2.12.0" in title for title in titles)
    assert any("num_lives 32" in title for title in titles)
    assert any("reference oracle 0.9" in title for title in titles)


def test_runs_of_other_code_stand_together_and_it_is_said(tmp_path):
    write_run(tmp_path / "a", seed=0, versions=VERSIONS + "code 11aa\n")
    write_run(tmp_path / "b", seed=1, versions=VERSIONS + "code 22bb\n")
    write_run(tmp_path / "c", seed=2)
    (section,) = sections_of(tmp_path)
    notes = section_numbers(section).notes
    assert any("11aa (1 run), 22bb (1 run), not said (1 run)" in note for note in notes)


def test_runs_of_the_same_code_need_no_word(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", seed=seed, versions=VERSIONS + "code 11aa\n")
    (section,) = sections_of(tmp_path)
    assert not any("code" in note for note in section_numbers(section).notes)


def test_an_environment_has_the_name_under_which_it_was_compared(tmp_path):
    for name in ("endless_tmaze", "long_tmaze"):
        write_run(tmp_path / name / "gru" / "lr0.002" / "seed0", env={"name": "long_tmaze"})
    write_plan(tmp_path, [{"env": "endless_tmaze", "memory": "gru"}])
    assert [section.title for section in sections_of(tmp_path)] == ["endless_tmaze", "long_tmaze"]


def test_runs_of_other_lengths_are_not_compared(tmp_path):
    write_run(tmp_path / "a", curve=FLAT)
    write_run(tmp_path / "b", curve=[*FLAT, 0.5])
    assert {section.title for section in sections_of(tmp_path)} == {
        "switching_bandit (frames 8,000)",
        "switching_bandit (frames 9,000)",
    }


def test_cores_of_one_name_are_told_apart_by_what_differs(tmp_path):
    write_run(tmp_path / "a", "gru", memory={"hidden": 8, "layers": 1})
    write_run(tmp_path / "b", "gru", memory={"hidden": 16, "layers": 1})
    write_run(tmp_path / "c", "lstm", memory={"hidden": 8})
    (section,) = sections_of(tmp_path)
    assert [contender.name for contender in section.contenders] == ["gru (hidden=16)", "gru (hidden=8)", "lstm"]
    assert section.unequal == {}


def test_settings_outside_the_core_that_are_not_equal_are_said(tmp_path):
    write_run(tmp_path / "a", "gru", changes={"algorithm.gamma": 0.9})
    write_run(tmp_path / "b", "lstm")
    (section,) = sections_of(tmp_path)
    assert section.unequal == {"algorithm.gamma": {"gru": 0.9, "lstm": 0.5}}
    assert any("algorithm.gamma (gru 0.9, lstm 0.5)" in note for note in section_numbers(section).notes)


def test_a_second_run_of_the_same_seed_is_not_counted(tmp_path):
    write_run(tmp_path / "a", seed=3)
    write_run(tmp_path / "b", seed=3)
    sections, twice = make_sections(read_runs(tmp_path)[0])
    assert len(sections[0].contenders[0].runs) == 1
    assert [(each.path, each.reason) for each in twice] == [("b", "the same seed and settings as a")]


def test_the_learning_rate_is_chosen_on_the_seeds_that_all_rates_have(tmp_path):
    """Seed 0 says 0.002; its other seeds are worse than 0.005's only run, which must not count against it."""
    for seed, level in enumerate([0.8, 0.4, 0.4]):
        write_run(tmp_path / f"a{seed}", seed=seed, curve=[level] * 8, rate=0.002)
    write_run(tmp_path / "b", seed=0, curve=[0.7] * 8, rate=0.005)
    (section,) = sections_of(tmp_path)
    (contender,) = section.contenders
    assert contender.chosen == (0.002, 0.0005)
    assert contender.seeds_of_choice == (0,)
    assert len(contender.runs) == 3


def test_learning_rates_without_a_common_seed_are_judged_each_on_its_own(tmp_path):
    write_run(tmp_path / "a", seed=0, curve=[0.3] * 8, rate=0.002)
    write_run(tmp_path / "b", seed=1, curve=[0.7] * 8, rate=0.005)
    runs, _ = read_runs(tmp_path)
    chosen, seeds = choose_rate({run.learning_rate: [run] for run in runs})
    assert chosen[0] == 0.005
    assert seeds == (0, 1)


def test_the_learning_rate_is_the_one_that_the_comparison_chose(tmp_path):
    """0.005 is the better one on the seed that both have; the comparison looked at scores, or at other runs."""
    for rate, level in ((0.002, 0.4), (0.005, 0.7)):
        write_run(tmp_path / "bandit" / "gru" / f"lr{rate}" / "seed0", curve=[level] * 8, rate=rate)
    write_plan(tmp_path, [{"env": "bandit", "memory": "gru", "learning_rate": 0.002}])
    contender = sections_of(tmp_path)[0].contenders[0]
    assert contender.chosen[0] == 0.002
    assert chosen_on(contender) == "learning rate 0.002 to 0.0005, which the comparison chose"


def test_a_chosen_learning_rate_without_runs_is_said(tmp_path):
    write_run(tmp_path / "bandit" / "gru" / "lr0.005" / "seed0", rate=0.005)
    write_plan(tmp_path, [{"env": "bandit", "memory": "gru", "learning_rate": 0.002}])
    contender = sections_of(tmp_path)[0].contenders[0]
    assert contender.chosen[0] == 0.005
    assert chosen_on(contender).endswith("the only one tried; the comparison chose 0.002, of which no run is here")


# What was planned


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([{}, {}], "The cores were matched by state bytes: 512."),
        (
            [{"note": ""}, {"note": "25% above"}],
            "The cores were matched by state bytes: 512; not reached by b (25% above).",
        ),
        ([{"state_bytes": 512}, {"state_bytes": 2048}], "...: 512; not reached by b (it has 2,048)."),
        ([{"match": "none"}, {"match": "none"}], ""),
        (
            [{"budget": 512, "note": ""}, {"budget": 1024, "note": ""}],
            "The cores (a) were matched by state bytes: 512. The cores (b) were matched by state bytes: 1,024.",
        ),
    ],
)
def test_a_core_that_missed_the_size_is_named(tmp_path, cells, words):
    named = [{"env": "bandit", "memory": name, **cell} for name, cell in zip("ab", cells, strict=True)]
    write_plan(tmp_path, named, match="state_bytes", budget=512)
    assert " ".join(read_plan(tmp_path)[0].words) == words.replace("...", "The cores were matched by state bytes")


def test_what_was_planned_and_is_not_there_is_listed(tmp_path):
    """gru: seed 1 failed in a folder that lay elsewhere; lstm: no rate yet, one run of two; none: nothing at all."""
    write_run(tmp_path / "bandit/gru/lr0.002/seed0")
    write_run(tmp_path / "bandit/lstm/lr0.005/seed0", "lstm")
    write_run(tmp_path / "bandit/gru/lr0.002/seed2", seed=2, finished=False)
    cells = [{"env": "bandit", "memory": name} for name in ("gru", "lstm", "none")]
    cells[0]["learning_rate"] = 0.002
    failed = [{"run": f"runs/old/bandit/gru/lr0.002/seed{seed}", "fault": "killed"} for seed in (0, 1, 2)]
    write_plan(tmp_path, cells, failed, seeds=4)
    plan, _ = read_plan(tmp_path)
    found = {each.path: each.reason for each in plan.complete(*read_runs(tmp_path))}
    assert found == {
        "bandit/gru/lr0.002/seed1": "failed: killed",
        "bandit/gru/lr0.002/seed2": "unfinished: 4,000 of 4,000 frames; failed: killed",
        "bandit/gru/lr0.002/seed3": "planned, and not run yet",
        "bandit/lstm/lr0.002/seed0": "planned, and not run yet",
        "bandit/none": "planned, and no run of it has begun",
    }


# What cannot be used


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("summary.json", '{"per": ', "summary.json cannot be read"),
        ("summary.json", "[]", "not a mapping"),
        ("summary.json", '{"per": "step"}', "KeyError"),
        ("config.yaml", "env: [", "config.yaml cannot be read"),
        ("config.yaml", "env: {name: a}", "config.yaml cannot be read"),
        ("config.yaml", None, "config.yaml is missing"),
        ("summary.json", None, "unfinished: 8,000 of 8,000 frames"),
        ("progress.csv", "frames,rollout/reward_rate\n1000,0.5\n", "progress.csv ends at 1,000 frames"),
        ("progress.csv", None, "progress.csv ends at 0 frames"),
        ("progress.csv", "frames,rollout/reward_rate\nx,0.5\n", "ValueError"),
        ("evaluation_9_steps_seed0.json", "{", "evaluation_9_steps_seed0.json cannot be read"),
        ("evaluation_9_steps_seed0.json", '{"options": {}, "curves": {"recovery": [{}]}}', "must hold steps, censored"),
        ("evaluation_9_steps_seed0.json", '{"options": {}, "finished": false}', "unfinished"),
        (
            "evaluation_9_steps_seed0.json",
            '{"options": {}, "finished": false, "fault": "the memory is not finite"}',
            "the life ended in an error and does not go on: the memory is not finite",
        ),
        (
            "evaluation_9_steps_seed0.json",
            '{"options": {}, "checkpoint": "frames_000000000384"}',
            "of another checkpoint, frames_000000000384: the run is at 8,000 frames",
        ),
        ("evaluation_9_steps_seed0.json", '{"options": {}, "lifetime_score": {}}', "must hold whole, second_half"),
    ],
)
def test_a_broken_run_is_listed_and_the_others_are_reported(tmp_path, file, content, reason):
    write_run(tmp_path / "good", seed=0)
    broken = write_run(tmp_path / "broken", seed=1, curve=FLAT)
    (broken / file).unlink(missing_ok=True)
    if content is not None:
        (broken / file).write_text(content)
    runs, left_out = read_runs(tmp_path)
    assert "good" in [run.path for run in runs]
    assert len(left_out) == 1
    assert left_out[0].path.startswith("broken")
    assert reason in left_out[0].reason


def test_an_unfinished_run_of_a_comparison_says_what_it_said_last(tmp_path):
    write_run(tmp_path / "seed0", curve=[0.5, 0.5], finished=False)
    (tmp_path / "seed0.log").write_text("something\nlifelong: the loss is not finite\n")
    assert read_runs(tmp_path)[1][0].reason == "unfinished: 2,000 of 2,000 frames; the loss is not finite"


# Numbers


def test_the_numbers_of_a_section_by_hand(tmp_path):
    write_seeds(tmp_path, "gru", [0.4, 0.5, 0.55, 0.6, 1.0])
    (section,) = sections_of(tmp_path)
    core = section_numbers(section).cores[0]
    assert core.scalars["final_quarter"].value == pytest.approx(0.55)  # 0.4 and 1.0 are cut off
    assert core.scalars["final_quarter_score"].value == pytest.approx(0.4)  # (0.55 - 0.25) / 0.75
    assert core.scalars["final_quarter"].low < 0.55 < core.scalars["final_quarter"].high
    assert core.scalars["frames_to_0.5"].value == math.inf  # 0.625 is reached by one seed of five
    assert core.scalars["share_reaching_0.5"].value == pytest.approx(0.2)
    assert core.scalars["seconds"].value == pytest.approx(8 * STEP / 500.0)
    assert core.scalars["core_parameters"].value == 12_345
    np.testing.assert_allclose(core.curves["learning"].estimate.value, 0.55)
    np.testing.assert_allclose(core.curves["after_change"].estimate.value, 0.55 * np.array([0.6, 0.8, 0.9, 1, 1]))


def test_a_learning_curve_has_the_means_of_its_stretches(tmp_path):
    """121 updates in 60 stretches: two each, three in the last; the first has no episode yet."""
    curve = [float("nan"), float("nan"), *range(2, 121)]
    write_run(tmp_path / "a", curve=curve, per="episode")
    learning = section_numbers(sections_of(tmp_path)[0]).cores[0].curves["learning"]
    assert len(learning.at) == 60
    assert learning.at[-1] == 121 * STEP
    values = learning.estimate.value
    assert math.isnan(values[0])
    assert values[1:3].tolist() == [2.5, 4.5]
    assert values[-2:].tolist() == [116.5, 119.0]


def test_better_is_said_only_where_intervals_part(tmp_path):
    write_seeds(tmp_path, "high", [0.80, 0.82, 0.84, 0.86, 0.88])
    write_seeds(tmp_path, "near", [0.76, 0.80, 0.83, 0.85, 0.86])
    write_seeds(tmp_path, "low", [0.40, 0.41, 0.42, 0.43, 0.44])
    numbers = section_numbers(sections_of(tmp_path)[0])
    assert [core.name for core in numbers.cores] == ["high", "near", "low"]
    assert numbers.better == [("high", "low"), ("near", "low")]
    assert numbers.improvement["high", "low"].value == 1.0
    assert numbers.improvement["low", "high"] == (0.0, 0.0, 0.0)
    pair, mirrored = numbers.improvement["high", "near"], numbers.improvement["near", "high"]
    assert pair.low < pair.value < pair.high
    assert mirrored == pytest.approx((1 - pair.value, 1 - pair.high, 1 - pair.low))


def test_nothing_is_claimed_of_few_seeds(tmp_path):
    write_seeds(tmp_path, "high", [0.80, 0.82, 0.84, 0.86])
    write_seeds(tmp_path, "low", [0.40, 0.41, 0.42, 0.43, 0.44])
    numbers = section_numbers(sections_of(tmp_path)[0])
    assert numbers.better == []
    assert any("Fewer than 5 seeds" in note and "high" in note for note in numbers.notes)


def test_a_single_seed_has_no_interval(tmp_path):
    write_seeds(tmp_path, "gru", [0.5])
    core = section_numbers(sections_of(tmp_path)[0]).cores[0]
    assert core.scalars["final_quarter"].value == 0.5
    assert math.isnan(core.scalars["final_quarter"].low)
    assert np.isnan(core.curves["learning"].estimate.high).all()


def test_across_environments_scores_are_pooled(tmp_path):
    """Scores (0.2, 0.4) and (0.6, 0.8): the middle two of four have the mean 0.5."""
    other = {"name": "drift_torus", "num_lives": 64}
    write_seeds(tmp_path / "one", "gru", [0.4, 0.55])  # between 0.25 and 1
    write_seeds(tmp_path / "two", "gru", [6.0, 8.0], env=other, references={"random": 0.0, "oracle": 10.0})
    write_seeds(tmp_path / "two", "lstm", [6.0, 8.0], env=other, references={"random": 0.0, "oracle": 10.0})
    write_seeds(tmp_path / "three", "gru", [1.0, 1.0], env={"name": "unknown"}, references={})
    numbers = across_numbers(sections_of(tmp_path))
    assert [core.name for core in numbers.cores] == ["gru"]
    assert numbers.cores[0].scalars["final_quarter"].value == pytest.approx(0.5)
    assert numbers.cores[0].curves["learning"].at[-1] == 100.0
    assert "drift_torus, switching_bandit" in numbers.notes[0]
    assert "lstm" in numbers.notes[1]


def test_what_is_not_in_the_summary_across_environments_is_said(tmp_path):
    """Four environments: two in it, one of two lengths, one without references."""
    for name in ("one", "two", "three"):
        write_run(tmp_path / name, env={"name": name})
    write_run(tmp_path / "longer", env={"name": "three"}, curve=FLAT)
    write_run(tmp_path / "four", env={"name": "four"}, references={})
    sections = sections_of(tmp_path)
    numbers = across_numbers(sections)
    assert numbers.title == "across 2 environments"
    assert numbers.notes[1:] == [
        "Not in it: four (no reference levels are known, so there are no scores).",
        "Not in it: three (2 sets of runs that cannot be compared: frames 4,000, frames 8,000).",
    ]
    counts = overview(5, sections, [], []).paragraphs[0]
    assert counts == "5 runs of 1 core in 4 environments (5 sets of comparable runs); 0 left out."


def test_one_environment_in_two_versions_is_not_pooled(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", versions="lifelong 0.0.9\n")
    sections = sections_of(tmp_path)
    assert across_numbers(sections) is None
    assert "2 sets of runs that cannot be compared" in no_summary_block(sections).paragraphs[1]


def test_environments_without_a_common_core_have_no_summary_and_it_is_said(tmp_path):
    write_run(tmp_path / "a", "gru")
    write_run(tmp_path / "b", "lstm", env={"name": "other"})
    sections = sections_of(tmp_path)
    assert across_numbers(sections) is None
    (words,) = no_summary_block(sections).paragraphs
    assert "no core is in all of them" in words


# Lives


OPTIONS = {"life_steps": 200, "lives": 2, "seed": 0}


def evaluated(tmp_path, curves_by_seed):
    for seed, curves in enumerate(curves_by_seed):
        run = write_run(tmp_path / f"seed{seed}", "gru", seed, FLAT)
        write_evaluation(run, OPTIONS, curves, [0.2 + 0.2 * seed, 0.4 + 0.2 * seed])
    (numbers,) = life_numbers(sections_of(tmp_path)[0])
    (core,) = numbers.cores
    return core


def test_a_life_is_reported_from_its_spans_where_there_are_no_curves(tmp_path):
    core = evaluated(tmp_path, [None, None])
    assert core.curves["life"].at.tolist() == [100.0, 200.0]
    assert core.curves["life"].estimate.value == pytest.approx([0.3, 0.5])
    assert core.curves["cost_microseconds"].estimate.value.tolist() == [50.0, 50.0]
    assert core.curves["health_state_max"].estimate.value.tolist() == [2.0, 2.0]
    assert "recall" not in core.curves


def test_recall_is_a_ratio_of_sums_over_lives_and_seeds(tmp_path):
    first = [
        {"age": 1, "lives": 2, "hits": [4, 0], "trials": [4, 6]},
        {"age": 10, "lives": 2, "hits": [1, 1], "trials": [2, 2]},
    ]
    second = [
        {"age": 1, "lives": 2, "hits": [5, 5], "trials": [5, 5]},
        {"age": 100, "lives": 2, "hits": [0, 0], "trials": [0, 0]},
    ]
    curve = evaluated(tmp_path, [{"recall_by_age": first}, {"recall_by_age": second}]).curves["recall"]
    assert curve.at.tolist() == [1.0, 10.0]  # nothing was asked at 100
    assert curve.estimate.value == pytest.approx([14 / 20, 0.5])
    assert curve.estimate.low[0] < 0.7 < curve.estimate.high[0]


def test_recall_is_measured_against_guessing(tmp_path):
    """Right answers 1 and 0.25 of 4 values, which is guessing: half of what lies between is lost in mid-decade."""
    run = write_run(tmp_path / "seed0", curve=FLAT, env={"name": "recall_stream", "values": 4})
    records = [{"age": age, "hits": hits, "trials": 100} for age, hits in ((0, 100), (10, 100), (100, 25))]
    write_evaluation(run, OPTIONS, {"recall_by_age": records}, [0.5])
    (numbers,) = life_numbers(sections_of(tmp_path)[0])
    assert numbers.chance == 0.25
    assert numbers.cores[0].scalars["recall_half_life"].value == pytest.approx(10**1.5)


def test_decades_remembered_are_counted_where_every_decade_was_asked_for(tmp_path):
    """All of the first decade, half above chance of the second (ages 10 and 50 together), nothing of the third."""
    asked = [(0, 10, 10), (1, 8, 8), (9, 8, 8), (10, 7, 8), (50, 3, 8), (100, 4, 16)]
    records = [{"age": age, "hits": hits, "trials": trials} for age, hits, trials in asked]
    for name, kept in (("whole", records), ("gap", records[:3] + records[5:])):
        run = write_run(tmp_path / name / "seed0", curve=FLAT, env={"name": "recall_stream", "values": 4})
        write_evaluation(run, OPTIONS, {"recall_by_age": kept}, [0.5])
    found = [life_numbers(sections_of(tmp_path / name)[0])[0].cores[0].scalars for name in ("whole", "gap")]
    assert found[0]["decades_remembered"].value == pytest.approx(1.5)
    assert "decades_remembered" not in found[1]


def test_the_lifetime_score_is_that_of_the_evaluations(tmp_path):
    for seed, score in enumerate((0.4, 0.6)):
        run = write_run(tmp_path / f"seed{seed}", "gru", seed, FLAT)
        lifetime = {"whole": score, "second_half": score + 0.2}
        newest = f"frames_{len(FLAT) * STEP:012d}"
        write_evaluation(run, OPTIONS, None, [score], lifetime_score=lifetime, checkpoint=newest, fault=None)
    (numbers,) = life_numbers(sections_of(tmp_path)[0])
    assert numbers.cores[0].scalars["lifetime_score"].value == pytest.approx(0.5)
    assert numbers.cores[0].scalars["lifetime_score_second_half"].value == pytest.approx(0.7)
    table = life_block("bandit", numbers, []).results
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["lifetime score"].startswith("0.500 (")
    assert row["second half"].startswith("0.700 (")


def test_the_share_of_changes_that_were_judged_stands_beside_the_median(tmp_path):
    recovery = [{"steps": 3, "censored": False, "count": 30}]
    changes = [{"change_decade": 1, "judged": 10, "all": 80}, {"change_decade": 2, "judged": 20, "all": 20}]
    run = write_run(tmp_path / "seed0", curve=FLAT)
    write_evaluation(run, OPTIONS, {"recovery": recovery, "changes": changes}, [0.5])
    (numbers,) = life_numbers(sections_of(tmp_path)[0])
    table = life_block("bandit", numbers, []).results
    assert table.header[-3:] == ["steps to recover", "censored", "changes judged"]
    assert table.rows[0][-3:] == ["3", "0.00", "0.30"]


def test_counts_that_are_summed_over_lives_are_taken_too(tmp_path):
    records = [{"age": 1, "lives": 2, "hits": 3, "trials": 4}]
    curve = evaluated(tmp_path, [{"recall_by_age": records}, {"recall_by_age": records}]).curves["recall"]
    assert curve.estimate == (0.75, 0.75, 0.75)


def test_recovery_is_kaplan_meier_over_all_changes(tmp_path):
    def change(life, steps, censored):
        return {"change_step": 0, "life": life, "steps": steps, "censored": censored}

    first = [change(0, 1, False), change(0, 2, True), change(1, 3, False)]
    second = [change(0, 3, False), change(0, 4, True), change(1, 5, False)]
    core = evaluated(tmp_path, [{"recovery": first}, {"recovery": second}])
    curve = core.curves["recovery"]
    value = dict(zip(curve.at.tolist(), curve.estimate.value.tolist(), strict=True))
    assert [value[step] for step in (0.0, 1.0, 2.0, 3.0, 5.0)] == pytest.approx([1, 5 / 6, 5 / 6, 5 / 12, 0])
    assert core.scalars["recovery_median"].value == 3.0
    assert core.scalars["recovery_median"].low <= 3.0 <= core.scalars["recovery_median"].high
    assert core.scalars["censored_share"].value == pytest.approx(1 / 3)


def test_changes_that_are_counted_together_weigh_as_many(tmp_path):
    def changes(decade, steps, count, censored=False):
        return {"change_decade": decade, "steps": steps, "censored": censored, "count": count}

    first = [changes(1, 4, 30), changes(1, 9, 10), changes(3, 9, 5), changes(5, 2, 10), changes(5, 3, 30, True)]
    core = evaluated(tmp_path, [{"recovery": first}, {"recovery": first}])
    curve = core.curves["recovery_by_decade"]
    assert curve.at.tolist() == [10.0, 1e5]  # ten changes in the thousands are too few
    assert curve.estimate.value.tolist() == [4.0, math.inf]
    assert core.scalars["censored_share"].value == pytest.approx(30 / 85)


def test_adaptation_over_the_life_is_a_mean_over_seeds(tmp_path):
    def record(since, reward):
        return {"steps_since_change": since, "reward": reward, "count": 10}

    rewards = [[record(0, 0.2), record(1, 0.6)], [record(0, 0.4), record(1, 0.8), record(3, 0.9)]]
    curve = evaluated(tmp_path, [{"adaptation": each} for each in rewards]).curves["adaptation"]
    assert curve.at.tolist() == [0.0, 1.0]  # where both have been
    assert curve.estimate.value == pytest.approx([0.3, 0.7])


def test_lives_evaluated_with_other_options_are_kept_apart(tmp_path):
    run = write_run(tmp_path / "seed0", curve=FLAT)
    write_evaluation(run, OPTIONS, None, [0.5])
    write_evaluation(run, {**OPTIONS, "seed": 1}, None, [0.7])
    write_evaluation(run, {**OPTIONS, "life_steps": 400, "greedy": True}, None, [0.9])
    first, second = life_numbers(sections_of(tmp_path)[0])
    assert "greedy=true" in first.options
    assert second.cores[0].curves["life"].estimate.value == pytest.approx([0.6])  # one run, two evaluation seeds


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
