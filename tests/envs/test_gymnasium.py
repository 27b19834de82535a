"""What the adapter for Gymnasium ids promises: ends of episodes, seeds, faults, exact resume."""

import io
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from lifelong.envs import EnvironmentFault, Step, make_env
from lifelong.envs.gymnasium_env import GymnasiumEnv, life_seeds
from lifelong.envs.spaces import action_layout, observation_layout

RESUMABLE = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "FrozenLake-v1"]


class Clock(gymnasium.Env):
    """Shows (episode, step, a random number); pays the step; ends as ``ends`` says: step -> (terminated, truncated)."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, ends: dict[int, tuple[bool, bool]] | None = None) -> None:
        self.ends = ends or {}
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.show(), float(self.time), *self.ends.get(self.time, (False, False)), {}

    def show(self) -> np.ndarray:
        return np.array([self.episode, self.time, self.np_random.random()], np.float32)


class Broken(Clock):
    """Fails at a step, in the way that ``failure`` says."""

    def __init__(self, failure: str, at: int) -> None:
        super().__init__({2: (True, False)} if "final" in failure or "reset" in failure else None)
        self.failure, self.at, self.total = failure, at, 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        if self.failure == "reset raises" and self.total >= self.at:
            raise RuntimeError("no world left")
        return super().reset(**arguments)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self.total == self.at:
            if self.failure == "step raises":
                raise ZeroDivisionError("division by zero")
            if self.failure in ("observation", "final observation"):
                observation[1] = np.nan
            if self.failure == "reward":
                reward = np.inf
            if self.failure == "shape":
                observation = observation[:1]
        return observation, reward, terminated, truncated, info


def wrap(environments: list[Any], **options: Any) -> GymnasiumEnv:
    observations = observation_layout(environments[0].observation_space, "Clock")
    actions = action_layout(environments[0].action_space, "Clock")
    return GymnasiumEnv(environments, observations, actions, **{"name": "Clock", "seed": 0, **options})


def clocks(ends: dict[int, tuple[bool, bool]], num_lives: int = 2, **options: Any) -> GymnasiumEnv:
    return wrap([Clock(ends) for _ in range(num_lives)], **options)


def noop(env: GymnasiumEnv) -> Tensor:
    return torch.zeros(env.num_lives, dtype=torch.int64)


def plan(env: Any, steps: int, seed: int = 0) -> list[Tensor]:
    """Random actions [B, ...] per step; those of life i are the same for every B."""
    rows = []
    for life in range(env.num_lives):
        generator = torch.Generator().manual_seed(1000 * seed + life)
        if env.action_spec.dtype == torch.int64:
            rows.append(torch.randint(int(env.action_spec.n), (steps,), generator=generator))
        else:
            rows.append(torch.rand(steps, *env.action_spec.shape, generator=generator) * 2 - 1)
    return list(torch.stack(rows, 1))


def flat(step: Step) -> list[Tensor]:
    final = step.final_observation
    tensors = [*step.observation.values(), *step[1:5], *(final.values() if final is not None else [])]
    return tensors


def assert_same(left: list[Step], right: list[Step]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert [t.dtype for t in flat(one)] == [t.dtype for t in flat(other)]
        assert all(torch.equal(a, b) for a, b in zip(flat(one), flat(other), strict=True))


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def test_an_ended_life_shows_the_first_observation_of_the_next_and_hands_out_its_last() -> None:
    env = clocks({3: (True, False)})
    assert env.reset()["observation"][:, :2].tolist() == [[0, 0], [0, 0]]
    steps = [env.step(noop(env)) for _ in range(4)]
    assert [s.terminated.tolist() for s in steps] == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert steps[0].final_observation is None
    assert steps[3].final_observation is None
    assert steps[2].final_observation is not None
    assert steps[2].final_observation["observation"][:, :2].tolist() == [[0, 3], [0, 3]]
    assert steps[2].observation["observation"][:, :2].tolist() == [[1, 0], [1, 0]]
    assert steps[2].reward.tolist() == [3.0, 3.0]
    assert steps[3].observation["observation"][:, :2].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("ends", "terminated", "truncated"),
    [((True, False), True, False), ((False, True), False, True), ((True, True), True, False)],
)
def test_termination_wins_over_truncation(ends: tuple[bool, bool], terminated: bool, truncated: bool) -> None:
    env = clocks({1: ends}, num_lives=1)
    env.reset()
    step = env.step(noop(env))
    assert (bool(step.terminated), bool(step.truncated), bool(step.soft_reset)) == (terminated, truncated, False)
    assert step.final_observation is not None


def test_lives_end_apart_from_each_other() -> None:
    env = wrap([Clock(), Clock({2: (False, True)}), Clock({3: (True, False)})])
    env.reset()
    steps = [env.step(noop(env)) for _ in range(6)]
    assert [s.truncated.tolist() for s in steps] == [[False, t % 2 == 0, False] for t in range(1, 7)]
    assert [s.terminated.tolist() for s in steps] == [[False, False, t % 3 == 0] for t in range(1, 7)]
    final = steps[1].final_observation
    assert final is not None
    assert final["observation"][1, :2].tolist() == [0, 2]
    assert steps[5].observation["observation"][:, :2].tolist() == [[0, 6], [3, 0], [2, 0]]


def test_rows_without_a_final_observation_are_no_fault_where_counting_does_not_start_at_zero() -> None:
    class Late(Clock):
        observation_space = spaces.Discrete(4, start=7)

        def show(self) -> int:  # type: ignore[override]
            return 7 + self.time

    env = wrap([Late({2: (True, False)}), Late({3: (True, False)})])
    env.reset()
    env.step(noop(env))
    step = env.step(noop(env))
    assert step.final_observation is not None
    assert int(step.final_observation["observation"][0]) == 2
    assert step.observation["observation"].tolist() == [0, 2]


def test_a_life_that_outlives_episodes_sees_the_same_world_with_soft_resets_in_place_of_ends() -> None:
    ends = {4: (True, False)}
    episodes, lives = clocks(ends), clocks(ends, reset_memory="life")
    assert torch.equal(episodes.reset()["observation"], lives.reset()["observation"])
    for _ in range(20):
        one, other = episodes.step(noop(episodes)), lives.step(noop(lives))
        assert torch.equal(one.observation["observation"], other.observation["observation"])
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.terminated | one.truncated, other.soft_reset)
        assert not (other.terminated | other.truncated).any()
        assert other.final_observation is None
    assert lives.lifelong
    assert not episodes.lifelong


def test_a_life_is_cut_after_life_steps_and_its_value_is_that_of_what_it_would_have_seen_next() -> None:
    env = clocks({4: (True, False)}, num_lives=1, reset_memory="life", life_steps=8)
    env.reset()
    steps = [env.step(noop(env)) for _ in range(17)]
    assert [t for t, s in enumerate(steps, 1) if s.truncated] == [8, 16]
    assert [t for t, s in enumerate(steps, 1) if s.soft_reset] == [4, 12]  # at 8 and 16 the life ends instead
    assert not any(bool(s.terminated) for s in steps)
    final = steps[7].final_observation
    assert final is not None
    assert final["observation"][0, :2].tolist() == [2, 0]  # the episode that it would have gone on with
    assert steps[7].observation["observation"][0, :2].tolist() == [3, 0]

    env = clocks({}, num_lives=1, reset_memory="life", life_steps=3)
    env.reset()
    steps = [env.step(noop(env)) for _ in range(3)]
    final = steps[2].final_observation
    assert final is not None
    assert final["observation"][0, :2].tolist() == [0, 3]
    assert steps[2].observation["observation"][0, :2].tolist() == [1, 0]


def test_counters_pass_the_limits_of_32_bit_integers() -> None:
    env = clocks({}, num_lives=2, reset_memory="life", life_steps=2**32 + 2)
    env.reset()
    state = env.state_dict()
    assert state["life_step"].dtype == torch.int64
    state["life_step"] = torch.tensor([2**32, 2**31 - 1])
    env.load_state_dict(state)
    cuts = [env.step(noop(env)).truncated.tolist() for _ in range(3)]
    assert cuts == [[False, False], [True, False], [False, False]]
    assert env.state_dict()["life_step"].tolist() == [1, 2**31 + 2]


def test_life_i_does_not_depend_on_how_many_lives_there_are() -> None:
    def first_two(num_lives: int) -> list[Tensor]:
        env = make_env({"name": "gymnasium", "id": "CartPole-v1", "num_lives": num_lives, "seed": 3})
        seen = [env.reset()["observation"][:2]]
        for action in plan(env, 100):
            step = env.step(action)
            seen += [step.observation["observation"][:2], step.reward[:2], step.terminated[:2]]
        return seen

    assert all(torch.equal(a, b) for a, b in zip(first_two(2), first_two(5), strict=True))


def test_the_same_seed_gives_the_same_lives_whatever_the_global_generator_does() -> None:
    def starts(seed: int) -> Tensor:
        env = make_env({"name": "gymnasium", "num_lives": 3, "seed": seed})
        np.random.seed(seed + np.random.randint(1000))
        seen = [env.reset()["observation"]]
        seen += [env.step(action).observation["observation"] for action in plan(env, 100)]
        return torch.stack(seen)

    assert torch.equal(starts(0), starts(0))
    assert not torch.equal(starts(0), starts(1))


def test_neighbouring_seeds_share_no_life() -> None:
    seeds = [seed for root in range(200) for seed in life_seeds(root, 16)]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**31
    assert life_seeds(5, 4) == life_seeds(5, 16)[:4]


def test_a_second_reset_draws_new_lives() -> None:
    env = make_env({"name": "gymnasium", "num_lives": 2, "seed": 0})
    first, second = env.reset()["observation"], env.reset()["observation"]
    assert not torch.equal(first, second)


@pytest.mark.parametrize("id", RESUMABLE)
def test_a_saved_state_goes_on_bit_for_bit_in_a_new_object(id: str) -> None:
    config = {"name": "gymnasium", "id": id, "num_lives": 3, "max_episode_steps": 60}
    env = make_env({**config, "seed": 1})
    env.reset()
    actions = plan(env, 200)
    for action in actions[:100]:
        env.step(action)
    state = through_a_file(env.state_dict())
    expected = [env.step(action) for action in actions[100:]]

    other = make_env({**config, "seed": 2})  # the state brings its own generators
    other.load_state_dict(state)
    assert_same([other.step(action) for action in actions[100:]], expected)
    assert any(bool((s.terminated | s.truncated).any()) for s in expected)


def test_a_state_of_another_environment_is_refused() -> None:
    env = make_env({"name": "gymnasium", "num_lives": 2, "seed": 0})
    env.reset()
    with pytest.raises(ValueError, match="holds 2 lives, not 3"):
        make_env({"name": "gymnasium", "num_lives": 3, "seed": 0}).load_state_dict(env.state_dict())
    with pytest.raises(ValueError, match="belongs to the environment 'CartPole-v1'"):
        make_env({"name": "gymnasium", "id": "Acrobot-v1", "num_lives": 2, "seed": 0}).load_state_dict(env.state_dict())


def test_an_environment_that_cannot_be_pickled_says_so() -> None:
    environment = Clock()
    environment.callback = lambda: None  # type: ignore[attr-defined]
    env = wrap([environment])
    env.reset()
    with pytest.raises(RuntimeError, match=r"Clock: its state cannot be saved.*cannot be pickled"):
        env.state_dict()


def test_what_was_handed_out_is_not_overwritten_by_later_steps() -> None:
    env = clocks({3: (True, False)})
    handed = [env.reset()["observation"]]
    copies = [handed[0].clone()]
    for _ in range(7):
        step = env.step(noop(env))
        handed += flat(step)
        copies += [tensor.clone() for tensor in flat(step)]
    assert all(torch.equal(a, b) for a, b in zip(handed, copies, strict=True))


@pytest.mark.parametrize(
    ("failure", "at", "message"),
    [
        (
            "step raises",
            5,
            r"environment 1 \(Clock\) failed in step 5 of its life \(step 5 .*ZeroDivisionError: division",
        ),
        (
            "reset raises",
            4,
            r"environment 1 \(Clock\) failed in step 2 of its life \(step 4 .*RuntimeError: no world left",
        ),
        ("observation", 7, r"environment 1 \(Clock\) failed in step 7 of its life \(step 7 .*'observation' is nan"),
        (
            "final observation",
            4,
            r"environment 1 \(Clock\) failed in step 2 of its life \(step 4 .*'observation' is nan",
        ),
        ("reward", 3, r"environment 1 \(Clock\) failed in step 3 of its life \(step 3 .*the reward is inf"),
        ("shape", 2, r"environment 1 \(Clock\) failed in step 2 .*has shape \[1\], where its space says \[3\]"),
    ],
)
def test_a_fault_names_the_environment_and_the_step(failure: str, at: int, message: str) -> None:
    good: Callable[[], Clock] = Clock
    env = wrap([good(), Broken(failure, at), good()])
    env.reset()
    for _ in range(at - 1):
        env.step(noop(env))
    with pytest.raises(EnvironmentFault, match=message) as caught:
        env.step(noop(env))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_observation_outside_its_categories_is_a_fault(sign: int) -> None:
    class Outside(Clock):
        observation_space = spaces.Discrete(3, start=0 if sign > 0 else -2)

        def show(self) -> int:  # type: ignore[override]
            return sign * self.time

    env = wrap([Outside(), Outside()])
    env.reset()
    env.step(noop(env))
    env.step(noop(env))
    with pytest.raises(EnvironmentFault, match=r"environment 0 .*'observation' holds a value outside its space"):
        env.step(noop(env))


def test_step_before_reset_says_what_to_do() -> None:
    env = clocks({})
    with pytest.raises(RuntimeError, match=r"call reset\(\) or load_state_dict\(\) before step\(\)"):
        env.step(noop(env))


def test_a_step_limit_truncates_and_minus_one_takes_the_ids_own_away() -> None:
    def first_end(**options: Any) -> int | None:
        env = make_env({"name": "gymnasium", "id": "MountainCar-v0", "num_lives": 1, "seed": 0, **options})
        env.reset()
        for t in range(1, 251):
            step = env.step(torch.ones(1, dtype=torch.int64))
            if step.truncated:
                assert step.final_observation is not None
                return t
        return None

    assert first_end() == 200
    assert first_end(max_episode_steps=7) == 7
    assert first_end(max_episode_steps=1e1) == 10  # YAML reads 1e1 as a float
    assert first_end(max_episode_steps=np.int64(12)) == 12
    assert first_end(max_episode_steps=-1) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "Cartpole-v1"}, r"cannot make id='Cartpole-v1'.*CartPole"),
        ({"id": "CartPole-v7"}, r"cannot make id='CartPole-v7'"),
        ({"kwargs": {"gravity": 3}}, r"CartPole-v1 refuses its options \{'gravity': 3\}"),
        ({"max_episode_steps": 2.5}, r"max_episode_steps=2.5 is not allowed; allowed: a positive integer, -1"),
        ({"max_episode_steps": True}, r"max_episode_steps=True is not allowed"),
        ({"num_lives": 0}, r"num_lives=0 is not allowed; allowed: an integer of at least 1"),
        ({"seed": -1}, r"seed=-1 is not allowed"),
        ({"reset_memory": "never"}, r"reset_memory='never' is unknown; allowed: episode, life"),
        ({"life_steps": 10}, r"life_steps needs reset_memory=life"),
        ({"reset_memory": "life", "life_steps": 0}, r"life_steps=0 is not allowed"),
        ({"idd": "CartPole-v1"}, r"has no option 'idd'.*did you mean 'id'"),
    ],
)
def test_a_mistake_in_the_config_is_one_line_that_says_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_env({"name": "gymnasium", "num_lives": 2, "seed": 0, **options})
    assert "\n" not in str(caught.value)


def test_the_random_reference_of_cartpole_is_what_random_actions_get() -> None:
    env = make_env({"name": "gymnasium", "num_lives": 64, "seed": 0})
    env.reset()
    lengths, running = [], torch.zeros(64)
    for action in plan(env, 500):
        step = env.step(action)
        running += step.reward
        over = step.terminated | step.truncated
        lengths += running[over].tolist()
        running[over] = 0
    assert env.references is not None
    error = np.std(lengths) / len(lengths) ** 0.5
    assert abs(np.mean(lengths) - env.references.random) < 4 * error + 0.4


def test_references_are_withheld_where_the_options_change_the_task() -> None:
    base = {"name": "gymnasium", "num_lives": 1, "seed": 0}
    assert make_env(base).references is not None
    assert make_env({**base, "max_episode_steps": 100}).references is None
    assert make_env({**base, "kwargs": {"sutton_barto_reward": True}}).references is None
