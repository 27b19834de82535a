"""``lifelong report``: the numbers of a section, across environments, and of the lives that were evaluated."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from lifelong.experiments.report_life import life_numbers
from lifelong.experiments.report_numbers import across_numbers, section_numbers
from lifelong.experiments.report_pages import life_block, no_summary_block, overview

sys.path.insert(0, str(Path(__file__).parent))
from report_folders import FLAT, OPTIONS, STEP, sections_of, write_evaluation, write_run, write_seeds

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
