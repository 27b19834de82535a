"""What the adapter for MiniGrid ids promises beyond that for Gymnasium ids: options, spaces, memory tasks."""

import io
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import registry
from minigrid.core.grid import Grid
from minigrid.envs import EmptyEnv
from minigrid.minigrid_env import MiniGridEnv
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Categorical, MultiCategorical

from lifelong.envs import BatchedEnv, EnvironmentFault, Step, UnsupportedSpace, make_env
from lifelong.envs.gymnasium_env import life_seeds
from lifelong.envs.minigrid_env import BoundedPlacement
from lifelong.envs.minigrid_missions import LONGEST_MISSION, VOCABULARY_SIZE, WORDS, MissionTokens

RESUMABLE = [
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-Dynamic-Obstacles-6x6-v0",
    "MiniGrid-KeyCorridorS3R1-v0",
    "BabyAI-KeyInBox-v0",
]


def minigrid(id: str = "MiniGrid-MemoryS7-v0", num_lives: int = 2, seed: int = 0, **options: Any) -> BatchedEnv:
    return make_env({"name": "minigrid", "id": id, "num_lives": num_lives, "seed": seed, **options})


def plan(env: BatchedEnv, steps: int, seed: int = 0) -> list[Tensor]:
    """Random actions [B] per step; those of life i are the same for every B."""
    count = int(env.action_spec.n)
    generators = [torch.Generator().manual_seed(1000 * seed + life) for life in range(env.num_lives)]
    return list(torch.stack([torch.randint(count, (steps,), generator=generator) for generator in generators], 1))


def assert_same(left: list[Step], right: list[Step]) -> None:
    for one, other in zip(left, right, strict=True):
        assert all(torch.equal(value, other.observation[key]) for key, value in one.observation.items())
        assert all(torch.equal(a, b) for a, b in zip(one[1:5], other[1:5], strict=True))
        assert (one.final_observation is None) == (other.final_observation is None)
        for key, value in (one.final_observation or {}).items():
            assert other.final_observation is not None
            assert torch.equal(value, other.final_observation[key])


def test_the_batch_shows_what_the_stock_environment_shows() -> None:
    env = minigrid(num_lives=3, direction=True, max_steps=30)
    stock = [gymnasium.make("MiniGrid-MemoryS7-v0", max_steps=30) for _ in range(3)]
    seen = env.reset()
    expected = [one.reset(seed=seed)[0] for one, seed in zip(stock, life_seeds(0, 3), strict=True)]
    for action in plan(env, 100):
        assert [row.tolist() for row in seen["image"]] == [one["image"].tolist() for one in expected]
        assert seen["direction"].tolist() == [one["direction"] for one in expected]
        step = env.step(action)
        seen = step.observation
        expected = []
        for life, one in enumerate(stock):
            observation, reward, terminated, truncated, _ = one.step(int(action[life]))
            assert float(step.reward[life]) == np.float32(reward)
            assert bool(step.terminated[life]) == terminated
            assert bool(step.truncated[life]) == (truncated and not terminated)
            if terminated or truncated:
                assert step.final_observation is not None
                assert step.final_observation["image"][life].tolist() == observation["image"].tolist()
                observation = one.reset()[0]
            expected.append(observation)


def test_an_observation_is_small_integers_whose_numbers_the_spec_states() -> None:
    env = minigrid("BabyAI-GoToLocal-v0", num_lives=3, direction=True, mission="tokens", mission_length=20)
    spec = env.observation_spec
    assert isinstance(spec["image"], MultiCategorical)
    assert spec["image"].nvec.shape == (7, 7, 3)
    assert spec["image"].nvec[3, 4].tolist() == [11, 6, 3]
    assert isinstance(spec["direction"], Categorical)
    assert spec["mission"].n == VOCABULARY_SIZE
    seen = env.reset()
    for action in plan(env, 30):
        assert spec.expand(3).is_in(TensorDict(seen, [3]))
        seen = env.step(action).observation
    assert {key: (value.dtype, tuple(value.shape)) for key, value in seen.items()} == {
        "image": (torch.uint8, (3, 7, 7, 3)),
        "direction": (torch.int64, (3,)),
        "mission": (torch.int64, (3, 20)),
    }
    assert set(minigrid().observation_spec.keys()) == {"image"}


@pytest.mark.parametrize("id", RESUMABLE)
def test_a_saved_state_goes_on_bit_for_bit_in_a_new_object(id: str) -> None:
    options: dict[str, Any] = {"num_lives": 2, "max_steps": 50, "mission": "tokens"}
    env = minigrid(id, seed=1, **options)
    env.reset()
    actions = plan(env, 300)
    for action in actions[:130]:
        env.step(action)
    buffer = io.BytesIO()
    torch.save(env.state_dict(), buffer)
    expected = [env.step(action) for action in actions[130:]]
    buffer.seek(0)
    other = minigrid(id, seed=2, **options)
    other.load_state_dict(torch.load(buffer, weights_only=False))
    assert_same([other.step(action) for action in actions[130:]], expected)
    assert any(bool((step.terminated | step.truncated).any()) for step in expected)


def test_life_i_does_not_depend_on_how_many_lives_there_are() -> None:
    few, many = minigrid(num_lives=2), minigrid(num_lives=4)
    assert torch.equal(few.reset()["image"], many.reset()["image"][:2])
    for one, other in zip(plan(few, 100), plan(many, 100), strict=True):
        left, right = few.step(one), many.step(other)
        assert torch.equal(left.observation["image"], right.observation["image"][:2])
        assert torch.equal(left.reward, right.reward[:2])


def test_a_life_that_outlives_episodes_keeps_going_through_successes_and_time_limits() -> None:
    env = minigrid("MiniGrid-Empty-5x5-v0", reset_memory="life", constant_reward=True, max_steps=40, life_steps=1000)
    env.reset()
    steps = [env.step(action) for action in plan(env, 1000)]
    rewards = torch.stack([s.reward for s in steps])
    resets = torch.stack([s.soft_reset for s in steps])
    assert set(rewards.flatten().tolist()) == {0.0, 1.0}
    assert bool((resets | (rewards == 0))[:-1].all())  # every success starts the world anew
    assert int(resets.sum()) > int((rewards == 1).sum())  # and so does every time limit
    ends = torch.stack([s.truncated for s in steps])
    assert not ends[:-1].any()
    assert ends[-1].all()
    assert not torch.stack([s.terminated for s in steps]).any()


def test_without_a_limit_an_episode_is_never_truncated_and_success_pays_the_same_late_as_early() -> None:
    env = minigrid("MiniGrid-Empty-5x5-v0", num_lives=1, max_steps=-1)
    env.reset()
    for _ in range(300):  # the id's own limit is 100
        assert not env.step(torch.tensor([0])).truncated
    steps = [env.step(torch.tensor([action])) for action in (2, 2, 1, 2, 2)]  # to the goal, from a fixed start
    assert steps[-1].terminated
    assert float(steps[-1].reward) == 1.0


def test_constant_reward_pays_success_in_full_and_failure_nothing() -> None:
    stock, constant = minigrid(num_lives=16), minigrid(num_lives=16, constant_reward=True)
    stock.reset()
    constant.reset()
    for action in plan(stock, 200):
        left, right = stock.step(action), constant.step(action)
        assert torch.equal(left.terminated, right.terminated)
        assert torch.equal((left.reward > 0).float(), right.reward)


def test_an_action_subset_means_the_named_actions_in_their_order() -> None:
    every, some = minigrid(num_lives=1), minigrid(num_lives=1, actions=["forward", 0, "right"])
    assert some.action_spec.n == 3
    every.reset()
    some.reset()
    for action in plan(some, 100):
        left = every.step(torch.tensor([2, 0, 1])[action])
        right = some.step(action)
        assert_same([left], [right])


@pytest.mark.parametrize("view_size", [3, 5, 9])
def test_a_view_of_another_size_is_that_of_minigrid(view_size: int) -> None:
    env = minigrid("MiniGrid-DoorKey-6x6-v0", num_lives=1, view_size=view_size)
    stock = gymnasium.make("MiniGrid-DoorKey-6x6-v0", agent_view_size=view_size)
    seen, expected = env.reset()["image"], stock.reset(seed=life_seeds(0, 1)[0])[0]["image"]
    for action in plan(env, 60):
        assert np.array_equal(seen[0].numpy(), expected)
        seen, expected = env.step(action).observation["image"], stock.step(int(action[0]))[0]["image"]


def test_seeing_through_walls_is_an_option_for_every_id() -> None:
    hidden, open_ = minigrid(num_lives=8), minigrid(num_lives=8, see_through_walls=True)
    unseen = (hidden.reset()["image"][..., 0] == 0).sum()
    assert unseen > 0
    assert int((open_.reset()["image"][..., 0] == 0).sum()) == 0


def test_every_id_takes_a_step_limit_of_any_integer_type() -> None:
    for id in minigrid_ids():
        env = minigrid(id, num_lives=1, max_steps=np.int64(2))  # type: ignore[arg-type]
        env.reset()
        first, second = (env.step(torch.tensor([0])) for _ in range(2))
        assert bool((first.terminated | second.terminated | second.truncated).any()), id


def minigrid_ids() -> list[str]:
    return [id for id, spec in registry.items() if "minigrid" in str(spec.entry_point) and "WFC" not in id]


def test_the_memory_tasks_have_a_small_view_three_actions_and_references() -> None:
    for name, view, actions in [("s7", 7, 7), ("s9", 3, 3), ("s13", 3, 3)]:
        env = make_env({"name": f"minigrid_memory_{name}", "num_lives": 2, "seed": 0})
        assert env.reset()["image"].shape == (2, view, view, 3)
        assert env.action_spec.n == actions
        assert env.references is not None
        assert env.references.per == "episode"
        assert 0 < env.references.random < 0.5 < env.references.oracle < 1
        changed = make_env({"name": f"minigrid_memory_{name}", "num_lives": 2, "seed": 0, "constant_reward": True})
        assert changed.references is None


def test_the_random_reference_of_the_memory_task_is_what_random_actions_get() -> None:
    env = make_env({"name": "minigrid_memory_s9", "num_lives": 64, "seed": 1})
    env.reset()
    returns: list[list[float]] = [[] for _ in range(64)]
    for action in plan(env, 810):  # two episodes of each life, at the least
        step = env.step(action)
        for life in torch.nonzero(step.terminated | step.truncated).flatten().tolist():
            returns[life].append(float(step.reward[life]))
    counted = [value for life in returns for value in life[:2]]
    assert len(counted) == 128
    assert env.references is not None
    assert abs(np.mean(counted) - env.references.random) < 4 * np.std(counted) / 128**0.5


def test_mission_tokens_name_the_words_and_pad_to_the_length() -> None:
    tokens = MissionTokens(8)
    encoded = tokens("Go to the RED ball, please")
    assert [WORDS[i - 2] for i in encoded[:5]] == ["go", "to", "the", "red", "ball"]
    assert encoded.tolist()[5:] == [1, 0, 0]
    assert (encoded.dtype, VOCABULARY_SIZE) == (np.int64, len(WORDS) + 2)
    assert len(set(WORDS)) == len(WORDS)
    with pytest.raises(ValueError, match=r"has 9 words, more than mission_length=8"):
        tokens("a b c d e f g h i")


def test_the_vocabulary_knows_every_word_and_the_longest_mission(capsys: pytest.CaptureFixture[str]) -> None:
    longest = 0
    for id in minigrid_ids():
        env = minigrid(id, num_lives=3, mission="tokens")
        tokens = env.reset()["mission"]
        assert not (tokens == 1).any(), id
        longest = max(longest, int((tokens > 0).sum(-1).max()))
    assert 20 < longest <= LONGEST_MISSION
    assert capsys.readouterr().out == ""  # BabyAI's "Sampling rejected" is kept off the terminal


def test_a_mission_longer_than_its_length_is_a_fault_that_says_so() -> None:
    env = minigrid(mission="tokens", mission_length=5)
    with pytest.raises(EnvironmentFault, match=r"environment 0 .*has 11 words, more than mission_length=5"):
        env.reset()


def test_a_search_for_a_free_cell_in_a_full_room_ends() -> None:
    environment = EmptyEnv(size=5)
    environment.reset(seed=0)
    environment.place_obj = BoundedPlacement(environment).place_obj
    for x in range(1, 4):
        for y in range(1, 4):
            environment.grid.set(x, y, environment.grid.get(0, 0))
    with pytest.raises(RecursionError):
        environment.place_agent()


class Walled(MiniGridEnv):
    """Without an image of cells: an observation that a wrapper has replaced."""

    def __init__(self) -> None:
        from minigrid.core.mission import MissionSpace

        super().__init__(MissionSpace(lambda: "stay"), grid_size=5)
        self.observation_space = gymnasium.spaces.Dict({"image": gymnasium.spaces.Box(0, 1, (4,))})

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        self.agent_pos, self.agent_dir = (1, 1), 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"id": "MiniGrid-MemoryS8-v0"}, ValueError, r"cannot make id='MiniGrid-MemoryS8-v0'"),
        ({"id": "CartPole-v1"}, UnsupportedSpace, r"CartPole-v1 is no MiniGrid environment.*use name=gymnasium"),
        (
            {"actions": ["left", "foward"]},
            ValueError,
            r"unknown action 'foward'; allowed: left.*did you mean 'forward'",
        ),
        ({"actions": [0, 7]}, ValueError, r"unknown action 7; allowed: .*or 0 to 6"),
        ({"actions": ["left", 0]}, ValueError, r"each once"),
        ({"actions": []}, ValueError, r"at least one action"),
        ({"view_size": 4}, ValueError, r"view_size=4 is not allowed; allowed: odd integers of at least 3"),
        ({"view_size": 1}, ValueError, r"view_size=1 is not allowed"),
        ({"max_steps": 0}, ValueError, r"max_steps=0 is not allowed"),
        ({"max_steps": 1.5}, ValueError, r"max_steps=1.5 is not allowed"),
        ({"mission": "text"}, ValueError, r"mission='text' is unknown; allowed: drop, tokens"),
        ({"kwargs": {"colour": 1}}, ValueError, r"refuses its options \{'colour': 1\}"),
        ({"view": 3}, ValueError, r"has no option 'view'.*did you mean 'view_size'"),
    ],
)
def test_a_mistake_in_the_config_is_one_line_that_says_what_is_allowed(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        minigrid(**options)
    assert "\n" not in str(caught.value)


def test_an_image_that_is_no_grid_of_cells_is_refused() -> None:
    gymnasium.register("Walled-v0", Walled)
    try:
        with pytest.raises(UnsupportedSpace, match=r"'image' of Walled-v0 is Box.*served is Box uint8"):
            minigrid("Walled-v0")
    finally:
        del registry["Walled-v0"]
