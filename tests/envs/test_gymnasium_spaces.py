"""Which spaces are served, as what, and what is said of the others."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, Unbounded

from lifelong.envs import UnsupportedSpace, make_env
from lifelong.envs.spaces import action_layout, observation_layout

EVERYTHING = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "body": spaces.Dict(
            {"speed": spaces.Box(-np.inf, np.inf, (2,), np.float64), "gear": spaces.Discrete(4, start=-1)}
        ),
        "pair": spaces.Tuple([spaces.MultiDiscrete([3, 2], start=[1, 0]), spaces.MultiBinary((2, 2))]),
        "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
        "count": spaces.Box(0, 9, (1,), np.int64),
        "nothing": spaces.Box(0, 1, (), np.float32),
    }
)


def observe(space: spaces.Space[Any], samples: list[Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    layout = observation_layout(space, "Thing-v0")
    arrays = layout.allocate(len(samples))
    for row, sample in enumerate(samples):
        layout.write(arrays, row, sample)
    return layout, layout.finish(arrays)


def test_nested_spaces_become_flat_entries_with_their_values_types_and_specs() -> None:
    EVERYTHING.seed(0)
    samples = [EVERYTHING.sample() for _ in range(20)]
    layout, seen = observe(EVERYTHING, samples)
    expected = {
        "camera": (torch.uint8, Bounded, [s["camera"] for s in samples]),
        "body/speed": (torch.float32, Unbounded, [s["body"]["speed"] for s in samples]),
        "body/gear": (torch.int64, Categorical, [s["body"]["gear"] + 1 for s in samples]),
        "pair/0": (torch.int64, MultiCategorical, [s["pair"][0] - np.array([1, 0]) for s in samples]),
        "pair/1": (torch.int8, Binary, [s["pair"][1] for s in samples]),
        "matrix": (torch.float32, Bounded, [s["matrix"] for s in samples]),
        "count": (torch.float32, Bounded, [s["count"] for s in samples]),
        "nothing": (torch.float32, Bounded, [s["nothing"] for s in samples]),
    }
    assert set(seen) == set(expected) == set(layout.spec.keys())
    for key, (dtype, spec, values) in expected.items():
        assert seen[key].dtype == dtype == layout.spec[key].dtype
        assert isinstance(layout.spec[key], spec)
        assert seen[key].shape == (20, *layout.spec[key].shape)
        np.testing.assert_array_equal(seen[key].numpy(), np.stack(values).astype(seen[key].numpy().dtype))
    assert layout.spec.expand(20).is_in(TensorDict(seen, [20]))
    assert layout.spec["body/gear"].n == 4
    assert layout.spec["pair/0"].nvec.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("shape", "turned"),
    [
        ((3, 20, 30), True),
        ((1, 84, 84), True),
        ((4, 5, 2), True),
        ((20, 30, 3), False),
        ((3, 30, 3), False),
        ((2, 84, 84), False),
    ],
)
def test_an_image_with_its_channels_first_is_turned_around(shape: tuple[int, ...], turned: bool) -> None:
    space = spaces.Box(0, np.arange(1, 1 + np.prod(shape)).reshape(shape) % 255, shape, np.uint8, seed=0)
    samples = [space.sample() for _ in range(3)]
    layout, seen = observe(space, samples)
    expected = np.stack([sample.transpose(1, 2, 0) if turned else sample for sample in samples])
    np.testing.assert_array_equal(seen["observation"].numpy(), expected)
    assert layout.spec["observation"].shape == expected.shape[1:]
    assert layout.spec.expand(3).is_in(TensorDict(seen, [3]))
    at_once = layout.allocate(3)
    layout.write_batch(at_once, np.stack(samples))
    np.testing.assert_array_equal(at_once[0], expected)


def test_a_batch_written_at_once_equals_one_written_row_by_row() -> None:
    samples = [EVERYTHING.sample() for _ in range(4)]
    layout, rows = observe(EVERYTHING, samples)
    batch = {
        "camera": np.stack([s["camera"] for s in samples]),
        "body": {k: np.stack([s["body"][k] for s in samples]) for k in ("speed", "gear")},
        "pair": tuple(np.stack([s["pair"][i] for s in samples]) for i in range(2)),
        **{k: np.stack([s[k] for s in samples]) for k in ("matrix", "count", "nothing")},
    }
    arrays = layout.allocate(4)
    layout.write_batch(arrays, batch)
    assert all(torch.equal(value, rows[key]) for key, value in layout.finish(arrays).items())
    with pytest.raises(ValueError, match=r"'camera' has shape \[3, 4, 5, 3\]"):
        layout.write_batch(layout.allocate(4), {**batch, "camera": batch["camera"][:3]})


def test_a_lone_space_is_named_observation() -> None:
    _, seen = observe(spaces.Discrete(5, start=10), [10, 14])
    assert seen["observation"].tolist() == [0, 4]


def test_names_that_fall_together_once_flattened_are_refused() -> None:
    number = spaces.Box(0, 1, ())
    with pytest.raises(UnsupportedSpace, match=r"two entries .* both named 'a/b'"):
        observation_layout(spaces.Dict({"a": spaces.Dict({"b": number}), "a.b": number}), "Thing-v0")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), r"Thing-v0: observation 'observation' is (a )?Text.*served are Box, Discrete"),
        (spaces.Dict({"a": spaces.Dict({"note": spaces.Text(5)})}), r"observation 'a/note' is (a )?Text"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Sequence(spaces.Discrete(3))]), r"observation '1' is (a )?Sequence"),
        (spaces.Graph(spaces.Box(0, 1, (3,)), spaces.Discrete(2)), r"observation 'observation' is (a )?Graph"),
        (spaces.OneOf([spaces.Discrete(2)]), r"observation 'observation' is (a )?OneOf"),
    ],
)
def test_an_unserved_observation_is_named_with_its_space(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=message) as caught:
        observation_layout(space, "Thing-v0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "space",
    [spaces.Dict({"a": spaces.Discrete(2)}), spaces.MultiBinary(3), spaces.Text(3), spaces.Box(0, 9, (2,), np.int64)],
)
def test_an_unserved_action_is_named_with_what_is_served(space: spaces.Space[Any]) -> None:
    with pytest.raises(
        UnsupportedSpace, match=r"Thing-v0: the action is .*; served are Discrete, MultiDiscrete, and Box"
    ):
        action_layout(space, "Thing-v0")


def test_minigrid_ids_under_the_name_gymnasium_are_sent_to_the_right_name() -> None:
    with pytest.raises(UnsupportedSpace, match=r"'mission' is .*served by name=minigrid"):
        make_env({"name": "gymnasium", "id": "MiniGrid-Empty-5x5-v0", "num_lives": 1, "seed": 0})


def test_discrete_actions_start_where_the_space_starts() -> None:
    layout = action_layout(spaces.Discrete(3, start=5), "Thing-v0")
    assert layout.spec.n == 3
    assert list(layout.decode(torch.tensor([0, 2, 1]))) == [5, 7, 6]
    with pytest.raises(ValueError, match=r"action 3 of life \d is out of range; allowed: 0 to 2"):
        layout.decode(torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="out of range"):
        layout.decode(torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match=r"shape \[2, 1\]; wanted: \[B\]"):
        layout.decode(torch.tensor([[0], [1]]))


def test_multi_discrete_actions_take_the_shape_type_and_start_of_the_space() -> None:
    space = spaces.MultiDiscrete([[3, 2], [4, 5]], start=[[0, 1], [0, -2]], dtype=np.int32)
    layout = action_layout(space, "Thing-v0")
    assert layout.spec.shape == (4,)
    assert layout.spec.nvec.tolist() == [3, 2, 4, 5]
    decoded = layout.decode(torch.tensor([[2, 1, 3, 4], [0, 0, 0, 0]]))
    assert [d.tolist() for d in decoded] == [[[2, 2], [3, 2]], [[0, 1], [0, -2]]]
    assert all(space.contains(d) for d in decoded)
    with pytest.raises(ValueError, match="out of range"):
        layout.decode(torch.tensor([[2, 2, 3, 4]]))


def test_box_actions_are_clipped_to_the_true_bounds_and_take_the_shape_and_type_of_the_space() -> None:
    low, high = np.array([[-1, -np.inf], [0, 0]]), np.array([[1, np.inf], [0.5, 2]])
    space = spaces.Box(low, high, dtype=np.float64)
    layout = action_layout(space, "Thing-v0")
    assert isinstance(layout.spec, Bounded)
    assert layout.spec.dtype == torch.float32
    assert layout.spec.low.tolist() == [-1, -np.inf, 0, 0]
    assert layout.spec.high.tolist() == [1, np.inf, 0.5, 2]
    action = torch.tensor([[-3.0, 7.0, 9.0, 1.0], [0.25, -1e9, -1.0, 3.0]])
    decoded = layout.decode(action)
    assert [d.tolist() for d in decoded] == [[[-1, 7], [0.5, 1]], [[0.25, -1e9], [0, 2]]]
    assert all(space.contains(d) for d in decoded)
    assert action[0, 0] == -3.0  # the caller's tensor is left alone
    with pytest.raises(ValueError, match="the action of life 1 is not a finite number"):
        layout.decode(torch.tensor([[0.0] * 4, [0.0, torch.nan, 0.0, 0.0]]))
