import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from lifelong.envs import make_env
from lifelong.envs.batched_suite import BATCHED_ENVS
from lifelong.envs.gymnasium_face import LifelongEnv, gymnasium_id

IDS = {kind.name: gymnasium_id(kind) for kind in BATCHED_ENVS}
every_id = pytest.mark.parametrize("name", IDS)


def test_the_ids_are_those_that_are_documented() -> None:
    assert IDS["recall_stream"] == "lifelong/RecallStream-v0"
    assert set(IDS.values()) <= set(gymnasium.registry)


@every_id
@pytest.mark.parametrize("life_steps", [None, 5])
def test_gymnasiums_own_checks_pass(name: str, life_steps: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(IDS[name], life_steps=life_steps).unwrapped)


@every_id
def test_a_vector_environment_is_the_environment_itself(name: str) -> None:
    vector = gymnasium.make_vec(IDS[name], num_envs=4, life_steps=6)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env = make_env({"name": name, "num_lives": 4, "seed": 3, "life_steps": 6})
    observation, info = vector.reset(seed=3)
    assert np.array_equal(observation, env.reset()["observation"].numpy())
    vector.action_space.seed(0)
    for _ in range(40):
        assert observation in vector.observation_space
        actions = vector.action_space.sample()
        observation, reward, terminated, truncated, info = vector.step(actions)
        step = env.step(torch.from_numpy(actions))
        assert np.array_equal(observation, step.observation["observation"].numpy())
        assert np.array_equal(reward, step.reward.double().numpy())
        assert np.array_equal(terminated, step.terminated.numpy())
        assert np.array_equal(truncated, step.truncated.numpy())
        assert np.array_equal(info["soft_reset"], step.soft_reset.numpy())
        for key, value in step.privileged.items():
            assert np.array_equal(info["privileged"][key], value.numpy())
        assert ("final_obs" in info) == (step.final_observation is not None)
        if step.final_observation is not None:
            assert np.array_equal(info["_final_obs"], terminated | truncated)
            for life in np.flatnonzero(info["_final_obs"]):
                assert np.array_equal(info["final_obs"][life], step.final_observation["observation"][life].numpy())


@every_id
def test_a_single_environment_is_the_first_life_of_the_batch(name: str) -> None:
    single = gymnasium.make(IDS[name], life_steps=6)
    env = make_env({"name": name, "num_lives": 1, "seed": 3, "life_steps": 6})
    expected = env.reset()["observation"]
    observation, _ = single.reset(seed=3)
    for t in range(40):
        assert np.array_equal(observation, expected[0].numpy())
        action = t % int(single.action_space.n)  # type: ignore[attr-defined]
        observation, reward, terminated, truncated, _ = single.step(action)
        step = env.step(torch.tensor([action]))
        assert reward == float(step.reward[0])
        assert (terminated, truncated) == (bool(step.terminated[0]), bool(step.truncated[0]))
        expected = step.observation["observation"]
        if step.final_observation is not None:
            assert np.array_equal(observation, step.final_observation["observation"][0].numpy())
            observation, _ = single.reset()


def test_a_reset_inside_a_life_begins_another_one() -> None:
    single = LifelongEnv("recall_stream")
    single.reset(seed=0)
    for _ in range(5):
        single.step(0)
    single.reset()
    assert int(single.env.state.life_step) == 0
    assert int(single.env.state.clock) == 7  # the streams went on


def test_without_a_seed_the_first_reset_takes_a_random_one_and_later_resets_go_on() -> None:
    starts = []
    for _ in range(2):
        vector = gymnasium.make_vec(IDS["recall_stream"], num_envs=8)
        starts.append((vector.reset()[0], vector.reset()[0]))
    assert not np.array_equal(starts[0][0], starts[1][0])
    assert not np.array_equal(starts[0][0], starts[0][1])


def test_gymnasiums_episode_statistics_work_on_it() -> None:
    vector = RecordEpisodeStatistics(gymnasium.make_vec(IDS["associative_recall"], num_envs=3, pairs=2))
    vector.reset(seed=0)
    for t in range(1, 9):
        info = vector.step(np.zeros(3, dtype=np.int64))[-1]
        assert ("episode" in info) == (t % 4 == 0)
    assert info["episode"]["l"].tolist() == [4, 4, 4]


def test_an_environment_that_is_not_of_the_suite_and_an_unknown_option_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the batched suite"):
        LifelongEnv("gymnasium", id="CartPole-v1")
    with pytest.raises(ValueError, match=r"has no option 'hazrd'; .* did you mean 'hazard'"):
        gymnasium.make_vec(IDS["switching_bandit"], num_envs=2, hazrd=0.1)
