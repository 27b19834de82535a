"""What each wrapper does to its environment."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from minigrid.core.constants import COLOR_TO_IDX
from minigrid.core.world_object import Ball, Goal
from minigrid.envs import DynamicObstaclesEnv, EmptyEnv
from minigrid.minigrid_env import MiniGridEnv

from lifelong.envs import EnvironmentFault, make_env
from lifelong.envs.life_wrapper import soft_reset
from lifelong.envs.minigrid_observation import PartialView
from lifelong.envs.wrapper_continuing import Continuing
from lifelong.envs.wrapper_drift_physics import DriftPhysics
from lifelong.envs.wrapper_goal_relocate import GoalRelocate
from lifelong.envs.wrapper_lifetime import Lifetime
from lifelong.envs.wrapper_permutations import ActionRemap, ObservationPermute
from lifelong.envs.wrapper_wind import Wind

CONSTANT = {"name": "constant", "level": 0.0}
HAZARD = {"name": "hazard", "low": 0.0, "high": 1.0, "hazard": 0.05}


def markov(regimes: int, hazard: float = 0.1) -> dict[str, Any]:
    return {"name": "markov", "regimes": regimes, "hazard": hazard}


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=-1)


def to_goal(environment: MiniGridEnv) -> int:
    """The next action on a way to the goal of an empty room."""
    grid = environment.grid
    place = next(i for i, cell in enumerate(grid.grid) if isinstance(cell, Goal))
    dx, dy = place % grid.width - int(environment.agent_pos[0]), place // grid.width - int(environment.agent_pos[1])
    wanted = {0} if dx > 0 else {2} if dx < 0 else {1} if dy > 0 else {3}
    return 2 if environment.agent_dir in wanted else 1


def test_a_continuing_life_of_1e5_steps_has_no_end_and_success_pays_the_same_at_its_beginning_and_its_end() -> None:
    # Minigrid issues 225 and 149: time-outs could not be switched off, and the reward told of hidden time.
    base = EmptyEnv(size=5, max_steps=10)
    PartialView(base).install()
    env = Continuing(base)
    env.reset(seed=0)
    successes = restarts = ends = 0
    rewards = set()
    for _ in range(100_000):
        _, reward, terminated, truncated, info = env.step(to_goal(base))
        ends += terminated or truncated
        if info.get("soft_reset"):
            restarts += 1
            successes += reward > 0
            rewards.add(reward)
    assert ends == 0
    assert rewards == {1.0}
    assert restarts == successes == 100_000 // 5  # from corner to corner in five steps


def test_continuing_pays_failures_what_is_asked_and_never_ends() -> None:
    base = DynamicObstaclesEnv(size=5, n_obstacles=2)
    env = Continuing(base, success_reward=3.0, failure_reward=-0.5)
    env.reset(seed=0)
    rewards = [env.step(to_goal(base))[1] for _ in range(400)]
    assert set(rewards) == {0, -0.5, 3.0}


def test_a_fallen_pole_is_stood_up_again_inside_the_life() -> None:
    env = Continuing(cartpole(), failure_reward=0.0)
    stock = cartpole()
    seen, expected = env.reset(seed=1)[0], stock.reset(seed=1)[0]
    falls = 0
    for _ in range(300):
        assert np.array_equal(seen, expected)
        seen, reward, terminated, truncated, info = env.step(1)
        expected, _, fallen, _, _ = stock.step(1)
        assert not terminated
        assert not truncated
        assert info.get("soft_reset", False) == fallen
        assert reward == (0.0 if fallen else 1.0)
        if fallen:
            falls += 1
            expected = stock.reset()[0]
    assert falls > 10


def test_continuing_refuses_an_environment_that_has_a_time_limit() -> None:
    with pytest.raises(ValueError, match=r"has a TimeLimit; make it with max_episode_steps=-1"):
        Continuing(gymnasium.make("CartPole-v1"))


def test_in_a_batch_a_continuing_life_has_soft_resets_and_is_cut_by_life_steps_alone() -> None:
    config = {"name": "gymnasium", "id": "CartPole-v1", "num_lives": 2, "seed": 0, "reset_memory": "life"}
    env = make_env({**config, "life_steps": 100, "wrappers": [{"name": "continuing"}]})
    plain = make_env({**config, "life_steps": 100, "max_episode_steps": -1})
    assert torch.equal(env.reset()["observation"], plain.reset()["observation"])
    for t in range(1, 301):
        left, right = env.step(torch.tensor([t % 2, 1])), plain.step(torch.tensor([t % 2, 1]))
        for one, other in zip(left[1:5], right[1:5], strict=True):
            assert torch.equal(one, other)
        assert torch.equal(left.observation["observation"], right.observation["observation"])
        assert bool(left.truncated.all()) == (t % 100 == 0)
        assert (left.final_observation is None) == (t % 100 != 0)


def test_a_lifetime_is_k_episodes_of_one_hidden_world_and_ends_with_a_truncation() -> None:
    env = Lifetime(ActionRemap(cartpole(), {"name": "constant"}), episodes=3)
    env.reset(seed=0)
    permutations, rows = [], []
    for _ in range(40):  # lives
        episodes = [0]
        while True:
            _, _, terminated, truncated, info = env.step(1)
            assert not terminated
            episodes.append(info["privileged"]["episode_in_life"])
            assert info.get("soft_reset", False) == (episodes[-1] != episodes[-2] and not truncated)
            rows.append(info["privileged"]["action_permutation"].tolist())
            if truncated:
                break
        assert max(episodes) == 3
        assert all(row == rows[-1] for row in rows)
        permutations.append(tuple(rows[-1]))
        rows.clear()
        env.reset()
    assert set(permutations) == {(0, 1), (1, 0)}  # a new life draws a new world


def test_a_soft_reset_keeps_what_is_hidden_and_a_reset_draws_it_anew() -> None:
    env = ActionRemap(EmptyEnv(size=5), CONSTANT)
    first = env.reset(seed=0)[1]["privileged"]["action_permutation"]
    assert np.array_equal(soft_reset(env)[1]["privileged"]["action_permutation"], first)
    lives = [env.reset()[1]["privileged"]["action_permutation"] for _ in range(5)]
    assert not any(np.array_equal(life, first) for life in lives)
    assert np.array_equal(env.reset(seed=0)[1]["privileged"]["action_permutation"], first)


def test_a_remapped_action_does_what_the_hidden_permutation_says() -> None:
    env, stock = ActionRemap(EmptyEnv(size=6), markov(6), actions=[0, 1, 2]), EmptyEnv(size=6)
    seen, info = env.reset(seed=3)
    expected, _ = stock.reset(seed=3)
    used = set()
    for t in range(90):
        assert np.array_equal(seen["image"], expected["image"])
        permutation = info["privileged"]["action_permutation"]
        used.add(tuple(permutation))
        action = t % 4  # 3 (pickup) is not among those permuted
        seen, _, over, _, info = env.step(action)
        expected = stock.step(int(permutation[action]) if action < 3 else 3)[0]
        if over:
            (seen, info), (expected, _) = env.soft_reset(), stock.reset()
    assert len(used) > 2


def test_recurring_regimes_bring_their_permutations_back_and_hazards_draw_others() -> None:
    def permutations(schedule: dict[str, Any], steps: int = 400) -> list[tuple[int, ...]]:
        env = ActionRemap(EmptyEnv(size=5, max_steps=10**6), schedule)
        _, info = env.reset(seed=0)
        seen, change = [], []
        for _ in range(steps):
            seen.append(tuple(info["privileged"]["action_permutation"]))
            info = env.step(6)[4]  # remapped too; ends of the episode do not matter here
            change.append(info["privileged"]["steps_since_change"] == 0)
        assert all((one != other) == new for one, other, new in zip(seen, seen[1:], change, strict=False))
        return seen

    assert len(set(permutations(markov(3)))) == 3
    assert len(set(permutations({"name": "square", "low": 0, "high": 1, "period": 10}))) == 2
    assert len(set(permutations(HAZARD))) > 10


def test_a_permuted_observation_shows_the_same_entries_in_another_order() -> None:
    env, stock = ObservationPermute(cartpole(), markov(3)), cartpole()
    (seen, info), expected = env.reset(seed=0), stock.reset(seed=0)[0]
    for t in range(200):
        assert np.array_equal(seen, expected[info["privileged"]["observation_permutation"]])
        seen, _, over, _, info = env.step(t % 2)
        expected = stock.step(t % 2)[0]
        if over:
            (seen, info), expected = env.soft_reset(), stock.reset()[0]

    lake, stock = (gymnasium.make("FrozenLake-v1", max_episode_steps=-1) for _ in range(2))
    env = ObservationPermute(lake, HAZARD)
    (seen, info), expected = env.reset(seed=0), stock.reset(seed=0)[0]
    assert seen == info["privileged"]["observation_permutation"][expected]


class TwoBalls(EmptyEnv):
    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        self.grid.set(1, 2, Ball("blue"))
        self.grid.set(2, 1, Ball("yellow"))


def test_in_minigrid_the_colours_of_objects_are_permuted_and_nothing_else() -> None:
    env, stock = ObservationPermute(TwoBalls(size=5), CONSTANT), TwoBalls(size=5)
    (seen, info), expected = env.reset(seed=0), stock.reset(seed=0)[0]
    permutation = info["privileged"]["observation_permutation"]
    balls = expected["image"][..., 0] == 6
    assert set(expected["image"][..., 1][balls]) == {COLOR_TO_IDX["blue"], COLOR_TO_IDX["yellow"]}
    assert np.array_equal(seen["image"][..., 1][balls], permutation[expected["image"][..., 1][balls]])
    assert np.array_equal(seen["image"][~balls], expected["image"][~balls])
    assert np.array_equal(seen["image"][..., [0, 2]], expected["image"][..., [0, 2]])


def test_wind_carries_the_agent_a_cell_on_unless_something_stands_there() -> None:
    env = Wind(EmptyEnv(size=8), {"name": "constant", "level": 1.2}, probability=1.0)  # 1: south
    _, info = env.reset(seed=0)
    assert info["privileged"]["wind_direction"] == 1
    rows = []
    for _ in range(8):
        env.step(0)  # the agent turns on the spot
        rows.append(int(env.unwrapped.agent_pos[1]))
    assert rows == [2, 3, 4, 5, 6, 6, 6, 6]


def test_wind_blows_as_often_as_asked_and_elsewhere_acts_in_the_agents_place() -> None:
    class Echo(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(3)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, **arguments: Any) -> tuple[int, dict[str, Any]]:
            return 0, {}

        def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
            return action, 0.0, False, False, {}

    env = Wind(Echo(), {"name": "constant", "level": 5.0}, probability=0.3)  # 5 modulo 3: action 2
    env.reset(seed=0)
    acted = np.array([env.step(1)[0] for _ in range(2000)])
    assert set(acted) == {1, 2}
    assert abs((acted == 2).mean() - 0.3) < 4 * (0.3 * 0.7 / 2000) ** 0.5


def test_the_goal_stays_where_it_is_through_soft_resets_until_the_schedule_moves_it() -> None:
    base = EmptyEnv(size=6)
    env = Continuing(GoalRelocate(base, HAZARD))
    _, info = env.reset(seed=0)
    cells = [tuple(info["privileged"]["goal"])]
    since, restarts = [0], 0
    for _ in range(400):
        assert sum(isinstance(cell, Goal) for cell in base.grid.grid) == 1
        _, _, _, _, info = env.step(to_goal(base))
        restarts += info.get("soft_reset", False)
        cells.append(tuple(info["privileged"]["goal"]))
        since.append(info["privileged"]["steps_since_change"])
    moves = {t for t in range(1, 401) if cells[t] != cells[t - 1]}
    changes = {t for t in range(1, 401) if since[t] == 0}
    assert restarts > 20
    assert len(moves) > 10
    assert len(set(cells)) > 8
    # The goal moves a step after a change, or at once at a soft reset, and where a new episode puts the agent on it.
    assert all(t - 1 in changes or t in changes or cells[t - 1] == (1, 1) for t in moves)
    assert all(t in moves or t + 1 in moves or t == 400 for t in changes)


def test_goals_of_recurring_regimes_come_back_to_their_cells() -> None:
    env = GoalRelocate(EmptyEnv(size=7, max_steps=10**6), markov(3))
    env.reset(seed=1)
    cells = {tuple(env.step(0)[4]["privileged"]["goal"]) for _ in range(400)}
    assert len(cells) == 3


def test_drifting_physics_recomputes_what_is_derived_and_acts_as_if_built_that_way() -> None:
    env = DriftPhysics(cartpole(), {"name": "sine", "mean": 0.3, "amplitude": 0.2, "period": 50}, parameter="masspole")
    stock = cartpole().unwrapped
    seen, info = env.reset(seed=0)
    stock.reset(seed=0)
    masses = []
    for _ in range(100):
        stock.masspole = info["privileged"]["masspole"]
        stock.total_mass, stock.polemass_length = stock.masspole + 1.0, stock.masspole * 0.5
        masses.append(stock.masspole)
        action = int(seen[2] + seen[3] > 0)
        seen, _, over, _, info = env.step(action)
        assert np.array_equal(seen, stock.step(action)[0])
        assert "steps_since_change" not in info["privileged"]  # it changes all the time
        if over:
            (seen, info), _ = env.soft_reset(), stock.reset()
    assert max(masses) - min(masses) > 0.35

    acrobot = DriftPhysics(gymnasium.make("Acrobot-v1"), {"name": "constant", "level": 1.5}, parameter="link_length_2")
    acrobot.reset(seed=0)
    assert (acrobot.unwrapped.LINK_LENGTH_2, acrobot.unwrapped.LINK_COM_POS_2) == (1.5, 0.75)
    assert type(acrobot.unwrapped).LINK_LENGTH_2 == 1.0  # other environments of the class are left alone


def test_a_parameter_that_drifts_below_zero_is_a_fault_that_says_so() -> None:
    schedule = {"name": "piecewise_linear", "times": [0, 10], "values": [1.0, -1.0]}
    wrapper = {"name": "drift_physics", "parameter": "length", "schedule": schedule}
    env = make_env({"name": "gymnasium", "num_lives": 1, "seed": 0, "wrappers": [wrapper]})
    env.reset()
    for _ in range(4):
        env.step(torch.tensor([0]))
    with pytest.raises(EnvironmentFault, match=r"step 5 .*the schedule sets length to 0; it must be positive"):
        env.step(torch.tensor([0]))
