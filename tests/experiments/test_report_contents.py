"""``lifelong report``: what is compared with what, what was planned, and what cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lifelong.experiments.report_archive import archive_runs
from lifelong.experiments.report_contents import choose_rate, make_sections
from lifelong.experiments.report_numbers import chosen_on, section_numbers
from lifelong.experiments.report_plan import read_plan
from lifelong.experiments.report_runs import read_runs

sys.path.insert(0, str(Path(__file__).parent))
from report_folders import FLAT, VERSIONS, sections_of, write_plan, write_run

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


def test_a_run_resumed_on_other_versions_stands_in_a_section_of_its_own_and_in_an_archive_too(tmp_path):
    resumed = VERSIONS + "\nresumed at 2,000 frames on:\n" + VERSIONS.replace("2.13.0", "2.14.0")
    write_run(tmp_path / "runs" / "a", seed=0)
    write_run(tmp_path / "runs" / "b", seed=1, versions=resumed)
    write_run(tmp_path / "runs" / "c", seed=2, versions=resumed.replace("2,000", "3,000"))
    archive_runs(tmp_path / "runs", read_runs(tmp_path / "runs")[0], tmp_path / "archive")
    for folder in ("runs", "archive"):
        sections = sections_of(tmp_path / folder)
        assert [(section.title, len(section.contenders[0].runs)) for section in sections] == [
            ("switching_bandit (torch 2.13.0 then 2.14.0)", 2),
            ("switching_bandit (torch 2.13.0)", 1),
        ]


def test_a_run_resumed_under_other_code_stands_with_the_others_and_it_is_said(tmp_path):
    resumed = VERSIONS + "code 11aa\n\nresumed at 2,000 frames on:\n" + VERSIONS + "code 22bb\n"
    write_run(tmp_path / "a", seed=0, versions=resumed)
    (section,) = sections_of(tmp_path)
    assert any("11aa then 22bb (1 run)" in note for note in section_numbers(section).notes)
    write_run(tmp_path / "b", seed=1, versions=VERSIONS + "code 11aa\n")
    (section,) = sections_of(tmp_path)
    assert any("11aa (1 run), 11aa then 22bb (1 run)" in note for note in section_numbers(section).notes)


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


def test_a_core_is_called_what_the_comparison_calls_it(tmp_path):
    for label in ("all", "without_rotary"):
        write_run(tmp_path / f"card/{label}/lr0.002/seed0", core="mixed_heads")
    write_plan(tmp_path, [{"env": "card", "memory": label} for label in ("all", "without_rotary")])
    assert [contender.name for contender in sections_of(tmp_path)[0].contenders] == ["all", "without_rotary"]


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
