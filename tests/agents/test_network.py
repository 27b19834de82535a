"""Encoder, token, action heads."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, Normal
from torchrl.data import Bounded, Composite, MultiCategorical, Unbounded
from torchrl.data import Categorical as CategoricalSpec

from lifelong.agents.actions import ContinuousHead, DiscreteHead, MultiDiscreteHead, make_action_head
from lifelong.agents.encoder import ObservationEncoder


def grid_spec(size: int) -> MultiCategorical:
    sizes = torch.tensor([11, 6, 3]).expand(size, size, 3)
    return MultiCategorical(nvec=sizes, shape=(size, size, 3), dtype=torch.uint8)


def test_a_grid_is_read_as_one_hot_planes_and_counts_of_what_is_in_view():
    encoder = ObservationEncoder(Composite(image=grid_spec(3)), dim=8, layers=0)
    image = grid_spec(3).rand((2, 5))
    planes = []
    for row in range(3):
        for column in range(3):
            for channel, size in enumerate((11, 6, 3)):
                planes.append(torch.nn.functional.one_hot(image[..., row, column, channel].long(), size))
    planes = torch.cat(planes, -1).float()
    counts = planes.unflatten(-1, (9, 20)).sum(-2)
    expected = encoder.norm(torch.nn.functional.silu(encoder.first(torch.cat([planes, counts], -1))))
    torch.testing.assert_close(encoder({"image": image}), expected)


@pytest.mark.parametrize("batch", [(3,), (40,), (8, 5)])  # few rows, and as many as are read by the kernel
def test_integers_beside_numbers_are_first_of_all_features_side_by_side(batch):
    torch.manual_seed(0)
    spec = Composite(image=grid_spec(3), card=CategoricalSpec(4, shape=()), place=Unbounded(shape=(2,)))
    encoder = ObservationEncoder(spec, dim=8, layers=0).double()
    observation = {key: spec[key].rand(batch) for key in ("image", "card", "place")}
    features = torch.cat(
        [encoder.dense[0](observation["place"]), *(reader(observation[reader.key]) for reader in encoder.planes)], -1
    ).double()
    found = encoder.hidden(observation)[0]
    torch.testing.assert_close(found, torch.nn.functional.silu(encoder.first(features)), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), encoder.first.weight)
    (expected,) = torch.autograd.grad(torch.nn.functional.silu(encoder.first(features)).sum(), encoder.first.weight)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"card": torch.full((40,), 4)}, r"observation 'card': entry 0 is 4, and must be in \[0, 4\)"),
        ({"card": torch.zeros(1, dtype=torch.int64)}, "batches of different shapes"),
        ({"image": torch.zeros(40, 3, 3, 4, dtype=torch.uint8)}, r"observation 'image' ends in .*must in \[3, 3, 3\]"),
        ({"place": torch.zeros(1, 2)}, "batches of different shapes"),
    ],
)
def test_an_observation_that_is_not_as_its_spec_says_is_refused(change, said):
    spec = Composite(image=grid_spec(3), card=CategoricalSpec(4, shape=()), place=Unbounded(shape=(2,)))
    encoder = ObservationEncoder(spec, dim=8)
    observation = {key: spec[key].rand((40,)) for key in ("image", "card", "place")}
    with pytest.raises(ValueError, match=said):
        encoder({**observation, **change})


def test_boxes_of_integers_whose_cells_differ_are_read_cell_by_cell():
    sizes = torch.tensor([[[2, 3], [4, 5]]])
    spec = MultiCategorical(nvec=sizes, shape=(1, 2, 2))
    out = ObservationEncoder(Composite(x=spec), dim=4).planes[0](torch.tensor([[[[1, 2], [3, 4]]]]))
    assert out.shape == (1, 14)
    assert out.nonzero()[:, 1].tolist() == [1, 4, 8, 13]


def test_vectors_are_scaled_by_their_finite_bounds_and_squashed_where_there_are_none():
    low = torch.tensor([0.0, -torch.inf])
    spec = Bounded(low=low, high=torch.tensor([10.0, torch.inf]), shape=(2,))
    reader = ObservationEncoder(Composite(x=spec), dim=4).dense[0]
    out = reader(torch.tensor([[10.0, -1.0], [5.0, 0.0]]))
    torch.testing.assert_close(out, torch.tensor([[1.0, -torch.log(torch.tensor(2.0))], [0.0, 0.0]]))


@pytest.mark.parametrize("grid", ["planes", "convolution"])
def test_every_kind_of_entry_can_stand_beside_every_other(grid):
    spec = Composite(
        image=grid_spec(7),
        pixels=Bounded(0, 255, shape=(16, 16, 3), dtype=torch.uint8),
        direction=CategoricalSpec(4, shape=()),
        words=MultiCategorical([5, 5, 5], shape=(3,)),
        keys=Unbounded(shape=()),
        grey=Bounded(0, 255, shape=(4, 5), dtype=torch.uint8),
        position=Unbounded(shape=(2,)),
    )
    encoder = ObservationEncoder(spec, dim=8, grid=grid)
    observation = {key: spec[key].rand((2, 3)) for key in spec.keys()}  # noqa: SIM118 - a Composite is no dict
    out = encoder(observation)
    assert out.shape == (2, 3, 8)
    for b in range(2):
        one = encoder({key: value[b] for key, value in observation.items()})
        torch.testing.assert_close(one, out[b])


def test_an_entry_that_cannot_be_read_is_named():
    with pytest.raises(ValueError, match=r"observation 'field': .*\[2, 3, 4, 5\].*served are"):
        ObservationEncoder(Composite(field=Unbounded(shape=(2, 3, 4, 5))), dim=4)


def test_an_action_space_that_is_not_served_is_named():
    with pytest.raises(ValueError, match=r"action space .*\[2, 2\].* is not served; served: "):
        make_action_head(Unbounded(shape=(2, 2)))


def test_discrete_sampling_follows_the_probabilities_and_returns_their_logarithms():
    head = DiscreteHead(3)
    parameters = torch.tensor([0.0, 1.0, -1.0]).expand(20_000, 3)
    action, log_prob = head.sample(parameters, torch.Generator().manual_seed(0))
    torch.testing.assert_close(log_prob, Categorical(logits=parameters).log_prob(action))
    share = torch.bincount(action, minlength=3) / 20_000
    torch.testing.assert_close(share, parameters[0].softmax(-1), atol=0.015, rtol=0)
    assert head.mode(parameters)[0] == 1


def test_multi_discrete_choices_are_independent_and_their_logarithms_add():
    head = MultiDiscreteHead([2, 3])
    parameters = torch.randn(7, 5)
    action, log_prob = head.sample(parameters, torch.Generator().manual_seed(0))
    first = Categorical(logits=parameters[:, :2]).log_prob(action[:, 0])
    second = Categorical(logits=parameters[:, 2:]).log_prob(action[:, 1])
    torch.testing.assert_close(log_prob, first + second)
    entropy = Categorical(logits=parameters[:, :2]).entropy() + Categorical(logits=parameters[:, 2:]).entropy()
    torch.testing.assert_close(head.distribution(parameters).entropy(), entropy)
    encoded = head.encode(action)
    assert encoded.shape == (7, 5)
    assert (encoded.sum(-1) == 2).all()


def test_an_action_that_can_only_have_one_value_breaks_nothing():
    head = ContinuousHead(torch.tensor([1.0]), torch.tensor([1.0]))
    action, log_prob = head.sample(torch.zeros(3, 1), torch.Generator().manual_seed(0))
    assert action.isfinite().all()
    assert log_prob.isfinite().all()


def test_continuous_actions_are_in_the_units_of_the_environment():
    head = ContinuousHead(torch.tensor([0.0, -torch.inf]), torch.tensor([10.0, torch.inf]))
    parameters = torch.tensor([[0.5, -1.0]])
    distribution = head.distribution(parameters)
    torch.testing.assert_close(distribution.mean, torch.tensor([[7.5, -1.0]]))
    action, log_prob = head.sample(parameters, torch.Generator().manual_seed(0))
    spread = torch.exp(torch.tensor(-0.5))
    expected = Normal(7.5, 5 * spread).log_prob(action[:, 0]) + Normal(-1.0, spread).log_prob(action[:, 1])
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(head.encode(torch.tensor([[20.0, 3.0]])), torch.tensor([[1.0, 3.0]]))
