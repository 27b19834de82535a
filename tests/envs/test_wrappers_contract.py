"""What every stack of wrappers promises: exact resume, seeds that decide everything, hidden things kept apart."""

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from minigrid.envs import EmptyEnv
from tensordict import TensorDict
from torch import Tensor

from lifelong.envs import BatchedEnv, Step, make_env
from lifelong.envs.wrappers import WRAPPERS, wrap_environments

MARKOV = {"name": "markov", "regimes": 3, "hazard": 0.05}
HAZARD = {"name": "hazard", "low": 0.0, "high": 1.0, "hazard": 0.05}
SQUARE = {"name": "square", "low": 0.0, "high": 1.0, "period": 40}
WALK = {"name": "reflected_walk", "low": 0.0, "high": 4.0, "deviation": 0.3}
MOVES = ["left", "right", "forward"]

STACKS: dict[str, dict[str, Any]] = {
    "grid": {
        "name": "minigrid",
        "id": "MiniGrid-Empty-6x6-v0",
        "actions": MOVES,
        "reset_memory": "life",
        "life_steps": 250,
        "wrappers": [
            {"name": "continuing"},
            {"name": "goal_relocate", "schedule": HAZARD},
            {"name": "wind", "schedule": WALK},
            {"name": "action_remap", "schedule": MARKOV},
            {"name": "observation_permute", "schedule": SQUARE},
        ],
    },
    "trials": {
        "name": "minigrid",
        "id": "MiniGrid-Dynamic-Obstacles-5x5-v0",
        "actions": MOVES,
        "wrappers": [{"name": "action_remap", "schedule": HAZARD}, {"name": "lifetime", "episodes": 3}],
    },
    "cart": {
        "name": "gymnasium",
        "id": "CartPole-v1",
        "reset_memory": "life",
        "wrappers": [
            {"name": "drift_physics", "parameter": "length", "schedule": {**WALK, "low": 0.25, "high": 1.0}},
            {"name": "continuing", "failure_reward": -1.0},
            {"name": "drift_physics", "parameter": "masspole", "schedule": {**SQUARE, "low": 0.05, "high": 0.5}},
            {"name": "action_remap", "schedule": HAZARD},
        ],
    },
    "acrobot": {
        "name": "gymnasium",
        "id": "Acrobot-v1",
        "max_episode_steps": 70,
        "reset_memory": "life",
        "wrappers": [
            {"name": "drift_physics", "parameter": "link_mass_1", "schedule": {**HAZARD, "low": 0.5}},
            {"name": "observation_permute", "schedule": MARKOV},
        ],
    },
    "lake": {
        "name": "gymnasium",
        "id": "FrozenLake-v1",
        "wrappers": [
            {"name": "wind", "schedule": WALK, "probability": 0.5},
            {"name": "observation_permute", "schedule": HAZARD},
            {"name": "lifetime", "episodes": 2},
        ],
    },
}


def make(stack: str, num_lives: int = 2, seed: int = 0) -> BatchedEnv:
    return make_env({**STACKS[stack], "num_lives": num_lives, "seed": seed})


def plan(env: BatchedEnv, steps: int, seed: int = 0) -> list[Tensor]:
    """Random actions [B] per step; those of life i are the same for every B."""
    count = int(env.action_spec.n)
    generators = [torch.Generator().manual_seed(1000 * seed + life) for life in range(env.num_lives)]
    return list(torch.stack([torch.randint(count, (steps,), generator=generator) for generator in generators], 1))


def flat(step: Step) -> dict[str, Tensor]:
    ends = dict(zip(("reward", "terminated", "truncated", "soft_reset"), step[1:5], strict=True))
    final = {f"final {key}": value for key, value in (step.final_observation or {}).items()}
    hidden = {f"hidden {key}": value for key, value in step.privileged.items()}
    return {**step.observation, **ends, **final, **hidden}


def assert_same(left: list[Step], right: list[Step]) -> None:
    for one, other in zip(left, right, strict=True):
        first, second = flat(one), flat(other)
        assert first.keys() == second.keys()
        assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize("stack", STACKS)
def test_a_saved_state_goes_on_bit_for_bit_in_a_new_object(stack: str) -> None:
    env = make(stack, seed=1)
    env.reset()
    actions = plan(env, 200)
    for action in actions[:100]:
        env.step(action)
    buffer = io.BytesIO()
    torch.save(env.state_dict(), buffer)
    expected = [env.step(action) for action in actions[100:]]
    buffer.seek(0)
    other = make(stack, seed=2)
    other.load_state_dict(torch.load(buffer, weights_only=False))
    assert_same([other.step(action) for action in actions[100:]], expected)
    assert any(bool((s.truncated | s.soft_reset).any()) for s in expected)


CONTINUE = """
import sys, torch
from lifelong.envs import make_env
saved = torch.load(sys.argv[1], weights_only=False)
found = {}
for stack, config in saved["configs"].items():
    env = make_env(config)
    env.load_state_dict(saved["states"][stack])
    steps = [env.step(action) for action in saved["plans"][stack]]
    found[stack] = [(s.reward, s.observation, dict(s.privileged), s.truncated) for s in steps]
torch.save(found, sys.argv[2])
"""


def test_two_thousand_steps_are_a_thousand_a_new_process_and_a_thousand_more(tmp_path: Path) -> None:
    states, plans, expected = {}, {}, {}
    configs = {stack: {**config, "num_lives": 1, "seed": 0} for stack, config in STACKS.items()}
    for stack in STACKS:
        env = make(stack, num_lives=1, seed=4)
        env.reset()
        actions = plan(env, 2000)
        for action in actions[:1000]:
            env.step(action)
        states[stack], plans[stack] = env.state_dict(), actions[1000:]
        expected[stack] = [env.step(action) for action in actions[1000:]]
    torch.save({"configs": configs, "states": states, "plans": plans}, tmp_path / "in.pt")
    command = [sys.executable, "-c", CONTINUE, str(tmp_path / "in.pt"), str(tmp_path / "out.pt")]
    subprocess.run(command, check=True, timeout=600)
    found = torch.load(tmp_path / "out.pt", weights_only=False)
    for stack, steps in expected.items():
        for step, (reward, observation, privileged, truncated) in zip(steps, found[stack], strict=True):
            assert torch.equal(step.reward, reward)
            assert torch.equal(step.truncated, truncated)
            assert all(torch.equal(value, observation[key]) for key, value in step.observation.items())
            assert all(torch.equal(value, privileged[key]) for key, value in step.privileged.items())


@pytest.mark.parametrize("stack", STACKS)
def test_the_seed_decides_everything_whatever_the_global_generator_and_the_other_lives_do(stack: str) -> None:
    # Minigrid pull requests 509 and 519: a wrapper dropped the seed, another drew from numpy's global generator.
    def run(num_lives: int, seed: int) -> list[Tensor]:
        np.random.seed(num_lives)
        env = make(stack, num_lives, seed)
        seen = [value[:2] for value in env.reset().values()]
        for action in plan(env, 120):
            np.random.random()
            seen += [value[:2] for key, value in flat(env.step(action)).items() if not key.startswith("final")]
        return seen

    few, many = run(2, seed=3), run(3, seed=3)
    assert all(torch.equal(one, other) for one, other in zip(few, many, strict=True))
    assert any(not torch.equal(one, other) for one, other in zip(few, run(2, seed=5), strict=True))


@pytest.mark.parametrize("stack", ["grid", "cart", "acrobot"])
def test_what_is_hidden_changes_at_the_same_steps_under_every_policy(stack: str) -> None:
    def changes(policy: int) -> dict[str, Tensor]:
        env = make(stack)
        env.reset()
        told = [env.step(action).privileged for action in plan(env, 300, seed=policy)]
        return {key: torch.stack([one[key] for one in told]) for key in told[0]}

    one, other = changes(1), changes(2)
    for key in one.keys() - {
        "goal"
    }:  # when the goal moves is the schedule's; the cells that are free depend on the agent
        assert torch.equal(one[key], other[key]), key
        assert len(one[key].unique(dim=0)) > 1, key


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_shown_is_in_its_space_and_what_is_hidden_is_not_shown(stack: str) -> None:
    # Minigrid issues 419 and 468: a wrapper declared one shape and returned another.
    env = make(stack)
    plain = make_env({**STACKS[stack], "wrappers": [], "num_lives": 2, "seed": 0, "life_steps": None})
    assert set(env.observation_spec.keys()) == set(plain.observation_spec.keys())
    seen = env.reset()
    for action in plan(env, 100):
        assert env.observation_spec.expand(2).is_in(TensorDict(seen, [2]))
        step = env.step(action)
        seen = step.observation
        assert "steps_since_change" in step.privileged
        assert not seen.keys() & step.privileged.keys()
        assert all(len(value) == 2 for value in step.privileged.values())
    assert env.references is None  # those of the plain environment do not hold


def test_wrapped_environments_pickle_and_stand_in_gymnasiums_own_vectors() -> None:
    # Minigrid issues 303 and 367: vectors failed on the mission's space, and environments did not pickle.
    def build() -> gymnasium.Env:
        wrappers = [{"name": "continuing"}, {"name": "action_remap", "schedule": MARKOV}]
        return wrap_environments("minigrid", [EmptyEnv(size=6)], wrappers)[0]

    vector = SyncVectorEnv([build, build])
    vector.reset(seed=0)
    copy = build()
    copy.reset(seed=0)
    copy = pickle.loads(pickle.dumps(copy))
    for t in range(50):
        seen = vector.step(np.array([t % 3, 2]))[0]
        assert np.array_equal(seen["image"][0], copy.step(t % 3)[0]["image"])


@pytest.mark.parametrize("stack", ["cart", "lake", "grid"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # about infinite bounds, and about checking a wrapped environment
def test_gymnasiums_checker_has_nothing_against_the_wrappers(stack: str) -> None:
    config = STACKS[stack]
    plain = gymnasium.make(config["id"], max_episode_steps=-1 if stack == "cart" else None)
    (wrapped,) = wrap_environments("test", [plain], config["wrappers"])
    check_env(wrapped, skip_render_check=True)


def gym(id: str = "CartPole-v1", *wrappers: Any, **options: Any) -> dict[str, Any]:
    name = "minigrid" if id.startswith("MiniGrid") else "gymnasium"
    return {"name": name, "id": id, "wrappers": list(wrappers), **options}


EMPTY = "MiniGrid-Empty-5x5-v0"
LIFE = {"reset_memory": "life"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            gym("CartPole-v1", {"name": "continuos"}),
            r"gymnasium: unknown wrapper 'continuos'.*did you mean 'continuing'",
        ),
        (gym(EMPTY, {"name": "wind", "probabilty": 1}), r"minigrid: the wrapper wind has no option.*'probability'"),
        (gym(EMPTY, {"name": "wind"}), r"the wrapper wind needs the option 'schedule'"),
        (gym(EMPTY, {"name": "wind", "schedule": WALK, "probability": 2}), r"wind: probability=2 is no probability"),
        (gym(EMPTY, {"name": "wind", "schedule": {"name": "walk"}}), r"wrapper wind: unknown schedule 'walk'"),
        (gym(EMPTY, {"name": "wind", "schedule": "walk"}), r"wind: schedule='walk' is not allowed; allowed: a mapping"),
        (gym("Pendulum-v1", {"name": "wind", "schedule": WALK}), r"wind: fits MiniGrid and Discrete action spaces"),
        (
            gym("Pendulum-v1", {"name": "action_remap", "schedule": MARKOV}),
            r"action_remap: fits Discrete action spaces",
        ),
        (gym("CartPole-v1", {"name": "action_remap", "schedule": WALK}), r"'reflected_walk' does not stay at a value"),
        (
            gym("CartPole-v1", {"name": "action_remap", "schedule": MARKOV}),
            r"needs 3 permutations, and 2 things have only 2",
        ),
        (
            gym("CartPole-v1", {"name": "action_remap", "schedule": HAZARD, "actions": [0, 2]}),
            r"actions=\[0, 2\] are not allowed; allowed: 0 to 1",
        ),
        (
            gym("CartPole-v1", {"name": "goal_relocate", "schedule": HAZARD}),
            r"fits MiniGrid environments, not CartPoleEnv",
        ),
        (
            gym("MiniGrid-MemoryS7-v0", {"name": "goal_relocate", "schedule": HAZARD}),
            r"fits worlds with exactly one Goal; MemoryEnv has 0",
        ),
        (
            gym("MountainCar-v0", {"name": "drift_physics", "schedule": HAZARD, "parameter": "gravity"}),
            r"drift_physics: fits CartPole and Acrobot, not MountainCarEnv",
        ),
        (
            gym("CartPole-v1", {"name": "drift_physics", "schedule": HAZARD, "parameter": "mass_pole"}),
            r"unknown parameter 'mass_pole'; CartPoleEnv has .*did you mean 'masspole'",
        ),
        (
            gym("CartPole-v1", {"name": "continuing", "success_reward": 1.0}, **LIFE),
            r"success_reward is for MiniGrid, and CartPoleEnv is none",
        ),
        (gym(EMPTY, {"name": "continuing"}), r"continuing needs reset_memory=life"),
        (
            gym(EMPTY, {"name": "continuing"}, max_steps=9, **LIFE),
            r"max_steps=9 is not allowed with the wrapper continuing",
        ),
        (gym(EMPTY, {"name": "lifetime", "episodes": 2}, **LIFE), r"lifetime needs reset_memory=episode"),
        (gym(EMPTY, {"name": "lifetime", "episodes": 0}), r"episodes=0 is not allowed"),
        (gym(EMPTY, {"name": "continuing"}, {"name": "lifetime", "episodes": 2}, **LIFE), r"exclude each other"),
        (
            gym(EMPTY, {"name": "lifetime", "episodes": 2}, {"name": "lifetime", "episodes": 3}),
            r"lifetime stands twice",
        ),
        (gym(EMPTY, "continuing"), r"the wrapper 'continuing' is not allowed; allowed: a mapping"),
        ({"name": "gymnasium", "wrappers": {"name": "wind"}}, r"is not allowed; allowed: a list"),
    ],
)
def test_a_mistake_in_the_wrappers_is_one_line_that_says_what_is_allowed(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_env({**config, "num_lives": 1, "seed": 0})
    assert "\n" not in str(caught.value)


def test_the_stacks_of_these_tests_hold_every_wrapper() -> None:
    assert {wrapper["name"] for config in STACKS.values() for wrapper in config["wrappers"]} == set(WRAPPERS)
