"""The audit tells tasks that ask for memory from those that do not."""

from typing import Any

import gymnasium
import pytest

from lifelong.envs import make_env
from lifelong.envs.minigrid_leaks import LeakSearch, search_leaks
from lifelong.experiments.audit import Findings, audit
from lifelong.experiments.errors import UserError

QUICK = ["frames=2048", "algorithm.epochs=1", "layouts=10"]


@pytest.fixture(autouse=True)
def few_random_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifelong.experiments.audit._RANDOM_FRAMES", 2000)


def grid(id: str, view_size: int) -> Any:
    env = make_env({"name": "minigrid", "id": id, "num_lives": 1, "seed": 0, "view_size": view_size})
    return env.environments[0].unwrapped  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("id", "view_size", "leaks"),
    [
        ("MiniGrid-MemoryS7-v0", 7, "all"),
        ("MiniGrid-MemoryS7-v0", 5, "all"),
        ("MiniGrid-MemoryS7-v0", 3, "none"),
        ("MiniGrid-MemoryS9-v0", 7, "all"),
        ("MiniGrid-MemoryS9-v0", 5, "none"),
        ("MiniGrid-MemoryS13-v0", 7, "none"),
        ("MiniGrid-MemoryS13Random-v0", 7, "some"),
        ("MiniGrid-MemoryS13Random-v0", 3, "none"),
    ],
)
def test_the_search_finds_the_poses_that_show_cue_and_goal_together(id: str, view_size: int, leaks: str) -> None:
    found = search_leaks(grid(id, view_size), layouts=20)
    assert found.layouts == 20
    share = {"all": found.leaking == 20, "none": found.leaking == 0, "some": 0 < found.leaking < 20}
    assert share[leaks]
    assert (found.example is None) == (found.telling == 0)


def test_a_pose_that_the_search_names_shows_both_in_the_stock_observation() -> None:
    found = search_leaks(grid("MiniGrid-MemoryS7-v0", 7), layouts=1)
    assert found.example is not None
    stock = gymnasium.make("MiniGrid-MemoryS7-v0").unwrapped
    stock.reset(seed=0)
    stock.agent_pos, stock.agent_dir = found.example[:2], found.example[2]
    image = stock.gen_obs()["image"]
    objects = (image[..., 0] == 5) | (
        image[..., 0] == 6
    )  # keys and balls; one may lie in the agent's own cell: none does
    assert objects.sum() >= 2


def test_minigrid_memory_s7_is_found_out_with_its_own_view(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["env=minigrid_memory_s7", *QUICK]) == 1
    said = capsys.readouterr().out
    assert "verdict: no memory task" in said
    assert "because 10 of 10 layouts have a reachable pose that shows cue and goal together" in said
    assert "sees the last transition" in said


def test_minigrid_memory_s7_passes_with_a_view_of_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["env=minigrid_memory_s7", "env.view_size=3", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "verdict: memory task" in said
    assert "0 of 10 layouts" in said


def test_a_task_that_a_fixed_law_solves_is_found_out_by_its_stored_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["env=gymnasium", *QUICK]) == 1
    assert "because the best known policy without memory scores 1.00" in capsys.readouterr().out


def test_a_task_that_an_echo_of_the_own_action_solves_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["env=long_tmaze_ci", *QUICK]) == 1
    said = capsys.readouterr().out
    assert "last transition, known     1.000   score  1.000" in said
    assert "a known policy of the last transition scores 1.00" in said


def test_an_oracle_that_random_actions_reach_is_refused() -> None:
    with pytest.raises(UserError, match=r"oracle=3: must be more than random actions get, [12]"):
        audit(["env=gymnasium", "oracle=3", *QUICK])


def test_without_an_oracle_the_audit_says_that_it_cannot_decide(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["env=gymnasium", "env.id=Acrobot-v1", "env.max_episode_steps=50", *QUICK]
    assert audit(words) == 1
    assert "verdict: undecided" in capsys.readouterr().out
    audit([*words, "oracle=-10"])
    assert "verdict: memory task" in capsys.readouterr().out  # in so short an episode nothing is learned


def findings(**values: Any) -> Findings:
    levels = {
        "random": 0.0,
        "memoryless": 0.1,
        "memoryless_error": 0.01,
        "oracle": 1.0,
        "known_memoryless": None,
        "known_last_transition": None,
        "guess": None,
        "leaks": None,
    }
    return Findings(env="e", per="step", frames=1000, **{**levels, **values})


def test_a_trained_agent_without_memory_that_does_well_is_a_reason() -> None:
    assert findings().verdict == "memory task"
    assert findings(memoryless=0.32).verdict == "memory task"  # within three standard errors of the limit
    assert findings(memoryless=0.34).verdict == "no memory task"
    assert "scores 0.34 (at least 0.31, 3 standard errors lower), more than 0.30" in findings(memoryless=0.34).text()
    assert findings(memoryless=0.52, guess=0.5).verdict == "memory task"
    assert findings(memoryless=0.54, guess=0.5).verdict == "no memory task"
    assert findings(known_memoryless=0.31).verdict == "no memory task"
    assert findings(known_last_transition=0.3).verdict == "memory task"
    carried = findings(known_last_transition=0.31)
    assert carried.verdict == "no memory task"
    assert "an agent that sees its last transition needs no more memory than that" in carried.text()
    assert findings(leaks=LeakSearch(10, 1, 100, 1, (1, 2, 3))).verdict == "no memory task"
    assert findings(oracle=None, memoryless=9.0).verdict == "undecided"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"audit needs an environment: lifelong audit env=NAME"),
        (["env=minigrid_memory_s8"], r"env=minigrid_memory_s8: unknown.*did you mean"),
        (["env=gymnasium", "memory=gru"], r"audit trains memory=none; leave it out"),
        (["env=gymnasium", "oracle=much"], r"oracle=much: must be a number"),
        (["env=gymnasium", "layouts=0"], r"layouts=0: must be an integer, 1 or more"),
        (["env=gymnasium", "layouts=1.5"], r"layouts=1.5: must be an integer, 1 or more"),
        (["env=gymnasium", "oracle=nan"], r"oracle=nan: must be a finite number"),
        (["env=gymnasium", "frame=10"], r"frame: no such key.*did you mean 'frames'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        audit(words)
    assert "\n" not in str(caught.value)
