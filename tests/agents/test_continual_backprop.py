"""Continual backprop against hand-worked numbers, and against an Adam that begins with the unit."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lifelong.agents import ActorCritic, AlgorithmConfig, Trainer
from lifelong.agents.continual_backprop import ContinualBackprop, hidden_layers
from lifelong.agents.distributed import Group
from lifelong.memory import make_core

# Two samples of three units, and how they are read: E|x| = 2, 1, 1.5, E x = 2, 0, 1.5, mean |w| = 2, 3, 0.5.
SAID = torch.tensor([[1.0, -1.0, 2.0], [3.0, 1.0, 1.0]])
READ = torch.tensor([[1.0, -2.0, 0.0], [3.0, 4.0, 1.0]])
USE = torch.tensor([4.0, 3.0, 0.75], dtype=torch.float64)


def head_alone(
    rate: float, maturity: int = 1, learning_rate: float = 0.0, group: Group | None = None, eps: float = 1e-8
):
    """Continual backprop on one hidden layer of three units, and that layer."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(2, 3), nn.SiLU(), nn.Linear(3, 2))
    with torch.no_grad():
        head[2].weight.copy_(READ)
    agent = SimpleNamespace(
        encoder=SimpleNamespace(first=nn.Linear(1, 4), rest=[], hidden_norms=[], norm=nn.LayerNorm(4)),
        token=nn.Linear(8, 4),
        policy=nn.Linear(2, 2),
        value=head,
    )
    optimizer = torch.optim.AdamW(head.parameters(), lr=learning_rate, weight_decay=0.0, eps=eps)
    generator = torch.Generator().manual_seed(1)
    cure = ContinualBackprop(agent, optimizer, rate, maturity, generator, group or Group())  # type: ignore[arg-type]
    cure.layers, cure.units, cure._said = cure.layers[1:], cure.units[1:], cure._said[1:]
    assert cure.layers[0].outgoing is head[2]
    return cure, head


def one_step(cure: ContinualBackprop, head: nn.Sequential, said: torch.Tensor = SAID, share: float = 1.0) -> None:
    with cure.watch():
        head[2](said)
        with torch.no_grad():
            head[2](100 * said)  # a run without gradients (V-trace's) is not the update's
    for parameter in head.parameters():
        parameter.grad = torch.ones_like(parameter)
    cure.step(share)


def test_utility_is_what_a_unit_says_times_how_it_is_heard():
    cure, head = head_alone(rate=1e-6)
    one_step(cure, head)
    (units,) = cure.units
    torch.testing.assert_close(units.utility, 0.01 * USE)
    torch.testing.assert_close(units.average, torch.tensor([0.02, 0.0, 0.015], dtype=torch.float64))
    one_step(cure, head, 2 * SAID)
    torch.testing.assert_close(units.utility, 0.01 * (0.99 + 2) * USE)
    assert units.age.tolist() == [2, 2, 2]


def test_the_least_useful_mature_unit_is_born_again():
    """Rate 1/2, maturity 1. After step 2 all three are mature: 1.5 are due, unit 2 goes, 0.5 stays. After step 3 two
    are mature, 1.5 are due again, and of units 0 and 1 it is 1: the newborn, of no use yet, is safe.
    """
    cure, head = head_alone(rate=0.5)
    one_step(cure, head)
    before = copy.deepcopy(head.state_dict())
    assert cure.replaced == 0
    one_step(cure, head)
    assert cure.replaced == 1
    torch.testing.assert_close(head[2].bias, before["2.bias"] + torch.tensor([0.0, 1.5]))
    assert torch.equal(head[2].weight, torch.tensor([[1.0, -2.0, 0.0], [3.0, 4.0, 0.0]]))
    assert torch.equal(head[0].weight[:2], before["0.weight"][:2])
    assert torch.equal(head[0].bias[:2], before["0.bias"][:2])
    assert bool((head[0].weight[2] != before["0.weight"][2]).all())
    assert head[0].bias[2] != before["0.bias"][2]
    assert head[0].weight[2].abs().max() <= 2**-0.5
    for moment in ("exp_avg", "exp_avg_sq"):
        for parameter, newborn in ((head[0].weight, (2,)), (head[0].bias, (2,)), (head[2].weight, (slice(None), 2))):
            values = cure.optimizer.state[parameter][moment].clone()
            assert bool((values[newborn] == 0).all())
            values[newborn] = 1
            assert bool((values != 0).all())
    (units,) = cure.units
    assert units.age.tolist() == [2, 2, 0]
    assert units.utility[2] == 0
    assert units.pending == 0.5
    one_step(cure, head)
    assert units.age.tolist() == [3, 0, 1]


def test_a_reader_hears_no_difference_where_the_unit_always_said_the_same():
    cure, head = head_alone(rate=0.5)
    said = torch.tensor([[0.7, -1.3, 0.2]]).expand(5, 3)
    one_step(cure, head, said)
    before = head[2](said)
    one_step(cure, head, said)
    assert cure.replaced == 1
    assert bool((head[2].weight[:, 2] == 0).all())
    torch.testing.assert_close(head[2](said), before)


def test_a_newborn_takes_the_steps_of_an_adam_that_begins_with_it_and_the_others_notice_nothing():
    draw = torch.Generator().manual_seed(3)
    shapes = [parameter.shape for parameter in head_alone(1.0)[1].parameters()]
    gradients = [[torch.randn(shape, generator=draw) for shape in shapes] for _ in range(40)]

    def run(rate: float):
        cure, head = head_alone(rate, maturity=29, learning_rate=1e-2, eps=1e-15)
        for number, given in enumerate(gradients):
            if number == 30:
                cure.rate = 0.0
                young = copy.deepcopy(head)
                fresh = torch.optim.AdamW(young.parameters(), lr=1e-2, weight_decay=0.0, eps=1e-15)
            with cure.watch():
                head[2](SAID)
            for parameter, gradient in zip(head.parameters(), given, strict=True):
                parameter.grad = gradient
            cure.step()
            if number >= 30:
                for parameter, gradient in zip(young.parameters(), given, strict=True):
                    parameter.grad = gradient
                fresh.step()
        return cure, head, young

    cure, head, young = run(0.34)
    untouched, other, _ = run(0.0)
    (unit,) = cure.units[0].age.eq(10).nonzero().flatten().tolist()
    assert (untouched.replaced, cure.replaced) == (0, 1)
    torch.testing.assert_close(head[0].weight[unit], young[0].weight[unit], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(head[0].bias[unit], young[0].bias[unit], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(head[2].weight[:, unit], young[2].weight[:, unit], rtol=1e-5, atol=1e-6)
    old = [number for number in range(3) if number != unit]
    assert torch.equal(head[0].weight[old], other[0].weight[old])
    assert torch.equal(head[2].weight[:, old], other[2].weight[:, old])
    assert not torch.allclose(head[2].weight[:, old], young[2].weight[:, old], rtol=1e-3)


def test_a_weight_between_two_newborns_is_as_old_as_the_younger(scripted_env, make_agent):
    agent = make_agent(scripted_env(lives=2, steps=4))
    optimizer = torch.optim.AdamW(agent.parameters())
    cure = ContinualBackprop(agent, optimizer, 0.1, 1, torch.Generator())
    cure.steps = 10
    for units in cure.units:
        units.age[:] = 9
    cure.units[0].age[2] = 3
    cure.units[1].age[5] = 1
    cure.units[1].age[6] = 6
    age = cure._young_weights()[agent.encoder.rest[0].weight]
    assert (age[5, 2], age[6, 2], age[5, 0], age[6, 0], age[0, 2], age[0, 0]) == (2, 4, 2, 7, 4, 10)
    assert agent.policy[0].weight not in cure._young_weights()


def test_ranks_judge_by_the_whole_minibatch():
    class Two(Group):
        def gather(self, value):
            share, own = value
            assert share == 0.25
            return [value, (0.75, 3 * own)]

    cure, head = head_alone(rate=1e-6, group=Two())
    one_step(cure, head, share=0.25)
    torch.testing.assert_close(cure.units[0].utility, 0.01 * (0.25 + 0.75 * 3) * USE)


def test_the_encoders_units_are_read_by_the_columns_of_the_token_that_hold_both_observations(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=16)
    agent = make_agent(env)
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16, epochs=1), seed=0, total_frames=64)
    kept: list = []
    trainer.algorithm.loss.module.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].clone()))
    trainer.update()
    batch = kept[0]
    last = next(layer for layer in hidden_layers(agent) if layer.outgoing is agent.token)
    with torch.no_grad():
        agent.token.weight[:, last.columns(torch.tensor([3]))] = 0
        before, _ = agent.sequence(batch["steps"], batch["memory"])
        agent.encoder.norm.bias[3] += 10
        after, _ = agent.sequence(batch["steps"], batch["memory"])
        agent.encoder.norm.bias[4] += 10
        heard, _ = agent.sequence(batch["steps"], batch["memory"])
    assert torch.equal(before, after)
    assert not torch.allclose(before, heard)


@pytest.mark.parametrize("name", ["ppo", "vtrace"])
def test_training_with_every_cure_goes_on_to_the_bit_after_a_checkpoint(scripted_env, name):
    config = AlgorithmConfig(
        name=name,
        segment=16,
        l2_to_initial=0.01,
        continual_backprop=0.02,
        continual_backprop_maturity=4,
        plasticity_every=1,
    )

    def trainer_of(seed: int) -> Trainer:
        env = scripted_env(lives=4, steps=64)
        torch.manual_seed(seed)
        agent = ActorCritic(
            env.observation_spec, env.action_spec, make_core("gated_delta", 16), head_width=16, layer_norm=True
        )
        return Trainer(env, agent, config, seed=0, total_frames=1000)

    trainer, other = trainer_of(0), trainer_of(5)
    first = [trainer.update() for _ in range(2)]
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    other.lives.env.t = trainer.lives.env.t
    last = trainer.update()
    assert other.update() == last
    assert 0 < first[-1]["train/units_replaced"] < last["train/units_replaced"]
    for a, b in zip(trainer.agent.parameters(), other.agent.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("continual_backprop", 1.0),
        ("continual_backprop_maturity", 0),
        ("l2_to_initial", -1.0),
        ("plasticity_every", -1),
    ],
)
def test_an_option_of_the_cures_out_of_range_is_named(option, value):
    with pytest.raises(ValueError, match=rf"algorithm.{option}={value}"):
        AlgorithmConfig(**{option: value}).check(num_lives=4)
