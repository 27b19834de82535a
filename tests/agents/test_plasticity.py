"""Measures of plasticity against hand-worked numbers; layer norm; the pull to the start."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from lifelong.agents import ActorCritic, AlgorithmConfig, Trainer
from lifelong.agents.initial_weights import PullToInitial
from lifelong.agents.plasticity import WeightsBefore, dormant_share, root_mean_square, update_ratio
from lifelong.memory import make_core

PARTS = ("encoder", "token", "core", "policy", "value")


def test_measures_of_hand_worked_layers():
    h = torch.tensor([[1.0, -1.0, 0.04, 0.0], [-3.0, 1.0, 0.04, 0.0]])  # E|h| = 2, 1, 0.04, 0; mean 0.76; 0.019 of it
    assert dormant_share(h) == 0.25
    assert dormant_share(h, threshold=0.06) == 0.5
    assert dormant_share(1e-6 * h) == 0.25  # against its own layer
    assert dormant_share(h.unsqueeze(1)) == 0.25
    assert dormant_share(torch.zeros(2, 4)) == 1.0
    assert root_mean_square(torch.tensor([3.0, 4.0])) == pytest.approx(math.sqrt(12.5))
    assert update_ratio(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) == pytest.approx(0.2)
    assert update_ratio(torch.zeros(2), torch.ones(2)) == math.inf
    assert update_ratio(torch.zeros(2), torch.zeros(2)) == 0.0


def test_the_measures_are_of_the_weights_after_the_update_and_come_when_asked(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=64)
    agent = make_agent(env)
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16, plasticity_every=2), seed=0, total_frames=1000)
    assert not any(tag.startswith("plasticity/") for tag in trainer.update())
    before = {name: weight.detach().clone() for name, weight in agent.named_parameters()}
    metrics = trainer.update()
    for part in PARTS:
        old, new = (
            np.concatenate([w.detach().ravel() for n, w in weights if n.startswith(part + ".") and w.dim() > 1])
            for weights in (before.items(), agent.named_parameters())
        )
        moved = np.linalg.norm(new - old) / np.linalg.norm(old)
        assert metrics[f"plasticity/weight_rms_{part}"] == pytest.approx(np.sqrt(np.square(new).mean()))
        assert metrics[f"plasticity/update_ratio_{part}"] == pytest.approx(moved)
    assert {tag for tag in metrics if "dormant" in tag} == {f"plasticity/dormant_{p}" for p in ("encoder", *PARTS[3:])}
    assert 1 <= metrics["plasticity/effective_rank"] <= 16


def test_units_put_to_sleep_are_counted(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=16)
    agent = make_agent(env)
    with torch.no_grad():  # 16 units a layer, two layers in the encoder
        for linear, units in ((agent.encoder.first, 4), (agent.policy[0], 2), (agent.value[0], 8)):
            linear.weight[:units] = 0
            linear.bias[:units] = 0
    config = AlgorithmConfig(segment=16, plasticity_every=1, learning_rate=1e-8, final_learning_rate=1e-8)
    metrics = Trainer(env, agent, config, seed=0, total_frames=1000).update()
    found = [metrics[f"plasticity/dormant_{part}"] for part in ("encoder", "policy", "value")]
    assert found == [4 / 32, 2 / 16, 8 / 16]


def test_linear_heads_have_no_units(scripted_env):
    env = scripted_env(lives=4, steps=16)
    agent = ActorCritic(env.observation_spec, env.action_spec, make_core("gru", 16), head_width=0)
    config = AlgorithmConfig(segment=16, plasticity_every=1, continual_backprop=0.1, continual_backprop_maturity=2)
    metrics = Trainer(env, agent, config, seed=0, total_frames=1000).update()
    assert {tag for tag in metrics if "dormant" in tag} == {"plasticity/dormant_encoder"}
    assert metrics["train/units_replaced"] > 0


def test_measuring_changes_no_weight(scripted_env, make_agent):
    found = []
    for every in (0, 1):
        env = scripted_env(lives=4, steps=32)
        agent = make_agent(env)
        trainer = Trainer(env, agent, AlgorithmConfig(segment=16, plasticity_every=every), seed=0, total_frames=1000)
        trainer.update()
        trainer.update()
        found.append(nn.utils.parameters_to_vector(agent.parameters()))
    assert torch.equal(*found)


def test_the_ratio_is_one_with_layer_norm_whose_layers_are_normalised(scripted_env):
    env = scripted_env(lives=4, steps=32)
    core = make_core("gated_delta", 16)
    agent = ActorCritic(env.observation_spec, env.action_spec, core, 2, head_width=16, layer_norm=True)
    norms = [*agent.encoder.hidden_norms, agent.policy[1], agent.value[1]]
    assert len(norms) == 5
    moments = []
    for norm in norms:
        norm.register_forward_hook(lambda _, __, output: moments.append((output.mean(-1), output.var(-1))))
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16, epochs=1), seed=0, total_frames=1000)
    assert trainer.update()["train/ratio_deviation"] < 1e-5
    assert trainer.update()["train/ratio_deviation"] < 1e-5
    mean, variance = moments[0]
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-5, rtol=0)
    torch.testing.assert_close(variance, torch.full_like(variance, 16 / 15), atol=1e-2, rtol=0)


def test_the_pull_is_the_gradient_of_the_squared_distance():
    weight, unused = nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.ones(2))
    pull = PullToInitial([weight, unused], 0.25)
    with torch.no_grad():
        weight.copy_(torch.tensor([3.0, -2.0]))
    (weight * torch.tensor([10.0, 20.0])).sum().backward()
    pull.add_gradients()
    assert torch.equal(weight.grad, torch.tensor([10 + 2 * 0.25 * 2.0, 20.0]))
    assert unused.grad is None


def test_a_strong_pull_keeps_the_weights_nearer_to_the_start_and_goes_on_to_the_bit(scripted_env, make_agent):
    def trained(strength, updates, state=None):
        env = scripted_env(lives=4, steps=64)
        agent = make_agent(env, seed=0 if state is None else 5)  # the start comes from the checkpoint
        config = AlgorithmConfig(segment=16, l2_to_initial=strength)
        trainer = Trainer(env, agent, config, seed=0, total_frames=1000)
        before = nn.utils.parameters_to_vector(agent.parameters()).clone()
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))
            env.t = 32
        for _ in range(updates):
            trainer.update()
        after = nn.utils.parameters_to_vector(agent.parameters())
        return trainer, after, float((after - before).detach().norm())

    assert trained(1.0, 3)[2] < 0.5 * trained(0.0, 3)[2]
    half, _, _ = trained(1.0, 2)
    resumed = trained(1.0, 1, half.state_dict())[1]
    assert torch.equal(resumed, trained(1.0, 3)[1])


def test_matrices_alone_count_as_weights(make_agent, scripted_env):
    agent = make_agent(scripted_env(lives=2, steps=4))
    before = WeightsBefore(agent)
    with torch.no_grad():
        agent.policy[0].bias += 1
        agent.value[0].weight *= 1.5
        agent.value[2].weight *= 1.5
    ratios = before.update_ratios(agent)
    assert ratios["plasticity/update_ratio_policy"] == 0.0
    assert ratios["plasticity/update_ratio_value"] == pytest.approx(0.5)
