"""Algorithms and their advantages against values worked out by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tensordict import TensorDict

from lifelong.agents import ActorCritic, Algorithm, AlgorithmConfig, Lives, NonFinite, Trainer, collect_segment
from lifelong.agents.history import with_history
from lifelong.agents.segment import add_advantages
from lifelong.envs import make_env
from lifelong.memory import make_core


def make_segment(reward, value, next_value, terminated, truncated) -> TensorDict:
    def column(values, dtype=torch.float32):
        return torch.tensor(values, dtype=dtype).reshape(1, -1, 1)

    ended = column(terminated, torch.bool) | column(truncated, torch.bool)
    following = {
        "reward": column(reward),
        "done": ended,
        "terminated": column(terminated, torch.bool),
        "truncated": column(truncated, torch.bool),
        "state_value": column(next_value),
    }
    length = len(reward)
    steps = TensorDict({"state_value": column(value), "next": TensorDict(following, [1, length])}, [1, length])
    return TensorDict({"steps": steps}, [1])


def test_advantages_bootstrap_at_truncations_stop_at_terminations_and_run_through_soft_resets():
    """gamma = lambda = 1/2. Step 1 is truncated (final observation worth 8), step 3 terminates.

    delta = r + gamma V' (1 - terminated) - V:
      d4 = 1 + .5 * 6 - 2 = 2                     A4 = 2
      d3 = 4 + 0 - 1 = 3   (terminated)           A3 = 3
      d2 = 0 + .5 * 1 - 3 = -2.5                  A2 = -2.5 + .25 * 3 = -1.75
      d1 = 2 + .5 * 8 - 2 = 4   (truncated)       A1 = 4
      d0 = 1 + .5 * 2 - 1 = 1                     A0 = 1 + .25 * 4 = 2
    """
    segment = make_segment(
        reward=[1, 2, 0, 4, 1],
        value=[1, 2, 3, 1, 2],
        next_value=[2, 8, 1, 99, 6],
        terminated=[0, 0, 0, 1, 0],
        truncated=[0, 1, 0, 0, 0],
    )
    add_advantages(segment, gamma=0.5, gae_lambda=0.5)
    expected = torch.tensor([2.0, 4.0, -1.75, 3.0, 2.0])
    torch.testing.assert_close(segment["steps", "advantage"].flatten(), expected)
    value = torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0])
    torch.testing.assert_close(segment["steps", "value_target"].flatten(), expected + value)


def test_the_loss_is_the_clipped_surrogate_with_value_and_entropy_terms(scripted_env, make_agent):
    env = scripted_env(lives=3, steps=10)
    agent = make_agent(env)
    config = AlgorithmConfig(
        clip_epsilon=0.1, value_coefficient=0.3, entropy_coefficient=0.2, normalize_advantage=False
    )
    ppo = Algorithm(agent, config, torch.Generator())
    segment = collect_segment(Lives(env, agent, torch.Generator().manual_seed(1)), 10)
    add_advantages(segment, 0.9, 0.8)
    # Move the old log-probabilities so that ratios fall inside and outside the clip on both sides.
    shift = torch.linspace(-0.4, 0.4, 30).reshape(3, 10)
    segment["steps", "action_log_prob"] = segment["steps", "action_log_prob"] + shift
    losses = ppo.loss(segment.clone())

    with torch.no_grad():
        trunk, parameters = agent.sequence(segment["steps"], segment["memory"])
        value = agent.value(trunk)
    policy_loss = value_loss = entropy = 0.0
    log_probs = parameters.log_softmax(-1).double()
    for b in range(3):
        for t in range(10):
            action = int(segment["steps", "action"][b, t])
            ratio = math.exp(log_probs[b, t, action] - segment["steps", "action_log_prob"][b, t].double())
            advantage = float(segment["steps", "advantage"][b, t])
            policy_loss -= min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage) / 30
            error = float(value[b, t]) - float(segment["steps", "value_target"][b, t])
            value_loss += 0.3 * error**2 / 30
            entropy -= float((log_probs[b, t].exp() * log_probs[b, t]).sum()) / 30
    assert float(losses["loss_objective"].detach()) == pytest.approx(policy_loss, abs=1e-5)
    assert float(losses["loss_critic"].detach()) == pytest.approx(value_loss, rel=1e-5)
    assert float(losses["loss_entropy"].detach()) == pytest.approx(-0.2 * entropy, rel=1e-5)


def test_the_core_runs_once_per_minibatch_for_actor_and_critic_together(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=16)
    agent = make_agent(env)
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16, epochs=3, minibatches=2), seed=0, total_frames=64)
    calls = []
    agent.core.register_forward_hook(lambda *_: calls.append(1))
    trainer.update()
    assert len(calls) == 3 * 2


def test_minibatches_hold_whole_lives_as_many_as_asked_and_all_of_them(scripted_env, make_agent):
    env = scripted_env(lives=6, steps=16)
    agent = make_agent(env)
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16, epochs=1, minibatches=4), seed=0, total_frames=64)
    sizes = []
    agent.core.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    trainer.update()
    assert sizes == [2, 2, 1, 1]


def test_more_minibatches_than_lives_are_refused():
    config = AlgorithmConfig(minibatches=9)
    with pytest.raises(ValueError, match=r"algorithm.minibatches=9: allowed are 1 to env.num_lives=4"):
        config.check(num_lives=4)


@pytest.mark.parametrize(
    ("option", "value"), [("gamma", 1.5), ("segment", 0), ("learning_rate", 0.0), ("entropy_coefficient", -1.0)]
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(ValueError, match=rf"algorithm.{option}="):
        AlgorithmConfig(**{option: value}).check(num_lives=4)


@pytest.mark.parametrize("where", ["reward", "weight"])
def test_what_is_not_finite_stops_training_before_any_weight_changes(scripted_env, make_agent, where):
    env = scripted_env(lives=4, steps=16)
    agent = make_agent(env)
    if where == "reward":
        env.rewards[3, 2] = math.inf
    else:
        with torch.no_grad():
            agent.value[-1].weight[0, 0] = math.nan
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16), seed=0, total_frames=64)
    before = {name: weight.clone() for name, weight in agent.state_dict().items()}
    says = "the reward of life 2 at its step [0-9]+ is inf" if where == "reward" else "update 0: .*not finite"
    with pytest.raises(NonFinite, match=says):
        trainer.update()
    for name, weight in agent.state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0, equal_nan=True)


def test_a_last_step_that_breaks_the_weights_is_told_before_anybody_saves_them(scripted_env, make_agent, monkeypatch):
    env = scripted_env(lives=4, steps=16)
    agent = make_agent(env)
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16, epochs=1, minibatches=1), seed=0, total_frames=64)

    def step_too_far() -> None:
        with torch.no_grad():
            agent.value[-1].weight[0, 0] = math.inf

    monkeypatch.setattr(trainer.algorithm.optimizer, "step", step_too_far)
    with pytest.raises(NonFinite, match="the weights are not finite after its last step"):
        trainer.update()


def test_weights_that_explode_in_the_middle_of_an_update_are_told(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=16)
    trainer = Trainer(env, make_agent(env), AlgorithmConfig(segment=16), seed=0, total_frames=64)
    with torch.no_grad():
        trainer.agent.policy[-1].weight.mul_(1e38)
    with pytest.raises(NonFinite, match="the policy's output is not finite"):
        trainer.update()


def test_schedules_run_linearly_from_first_to_final_value(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=64)
    config = AlgorithmConfig(segment=16, learning_rate=1e-3, final_learning_rate=0.5e-3, final_entropy_coefficient=0.0)
    trainer = Trainer(env, make_agent(env), config, seed=0, total_frames=128)
    metrics = [trainer.update() for _ in range(2)]
    assert [m["train/learning_rate"] for m in metrics] == pytest.approx([1e-3, 0.75e-3])
    assert [m["train/entropy_coefficient"] for m in metrics] == pytest.approx([0.01, 0.005])
    assert trainer.done


def test_a_small_target_kl_ends_the_update_early(scripted_env, make_agent):
    def steps(target_kl) -> float:
        env = scripted_env(lives=4, steps=16)
        config = AlgorithmConfig(segment=16, epochs=10, learning_rate=1e-2, target_kl=target_kl)
        return Trainer(env, make_agent(env), config, 0, 64).update()["train/minibatch_steps"]

    assert steps(None) == 20
    assert steps(1e-4) < 20


def collected(algorithm_config: AlgorithmConfig, segments: int = 1) -> tuple[Trainer, list[TensorDict]]:
    """A trainer before its first update, and segments of its lives in which episodes and lives end."""
    torch.manual_seed(0)
    env = make_env({"name": "associative_recall", "num_lives": 4, "seed": 0, "pairs": 2, "values": 3})
    core = make_core("gated_delta", 16, heads=2, head_dim=8)
    agent = ActorCritic(env.observation_spec, env.action_spec, core, head_width=16)
    trainer = Trainer(env, agent, algorithm_config, seed=0, total_frames=1000)
    return trainer, [collect_segment(trainer.lives, algorithm_config.segment) for _ in range(segments)]


def test_vtrace_is_its_recursion_worked_out_step_by_step() -> None:
    config = AlgorithmConfig(
        name="vtrace", segment=12, gamma=0.9, rho_clip=1.1, trace_clip=0.95, normalize_advantage=False
    )
    trainer, (segment,) = collected(config)
    steps = segment["steps"]
    steps["action_log_prob"] = steps["action_log_prob"] + torch.linspace(-0.5, 0.5, 12)
    steps["next", "learned_reward"] = steps["next", "reward"]
    batch = segment.clone()
    trainer.algorithm.loss(batch)
    with torch.no_grad():
        trunk, parameters = trainer.agent.sequence(steps, segment["memory"])
        value = trainer.agent.value(trunk)[..., 0].double()
    log_pi = parameters.log_softmax(-1).gather(-1, steps["action"][..., None])[..., 0].double()
    assert bool(steps["next", "done"].any())
    for b in range(4):
        target_after = value_after = 0.0
        for t in reversed(range(12)):
            step = steps[b, t]["next"]
            done, terminated = bool(step["done"]), bool(step["terminated"])
            follows = float(step["state_value"]) if done or t == 11 else float(value[b, t + 1])
            reward, ratio = float(step["reward"]), float((log_pi[b, t] - steps["action_log_prob"][b, t]).exp())
            rho, trace = min(ratio, 1.1), min(ratio, 0.95)
            discount = 0.0 if terminated else 0.9
            delta = rho * (reward + discount * follows - float(value[b, t]))
            rest = 0.0 if done or t == 11 else 0.9 * trace * (target_after - value_after)
            target = float(value[b, t]) + delta + rest
            next_target = follows if done or t == 11 else target_after
            advantage = rho * (reward + discount * next_target - float(value[b, t]))
            assert float(batch["steps", "value_target"][b, t]) == pytest.approx(target, abs=1e-5)
            assert float(batch["steps", "advantage"][b, t]) == pytest.approx(advantage, abs=1e-5)
            target_after, value_after = target, float(value[b, t])


def test_a2c_weighs_log_probabilities_by_advantages() -> None:
    config = AlgorithmConfig(name="a2c", segment=12, epochs=1, minibatches=1, normalize_advantage=False)
    trainer, (segment,) = collected(config)
    trainer.algorithm.rewards.apply(segment)
    add_advantages(segment, 0.99, 0.95)
    losses = trainer.algorithm.loss(segment.clone())
    wanted = -(segment["steps", "action_log_prob"] * segment["steps", "advantage"][..., 0]).mean()
    assert float(losses["loss_objective"].detach()) == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("name", ["ppo", "a2c", "vtrace"])
@pytest.mark.parametrize("objective", ["discounted", "average_reward"])
def test_every_algorithm_and_objective_goes_on_to_the_bit_after_a_checkpoint(name: str, objective: str) -> None:
    config = AlgorithmConfig(
        name=name, objective=objective, segment=8, minibatches=2, epochs=2, history=2, reward_scale_rate=0.1
    )
    trainer, _ = collected(config)
    other, _ = collected(config)
    for _ in range(3):
        trainer.update()
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))  # an optimiser takes tensors over as they are
    other.lives.env.load_state_dict(trainer.lives.env.state_dict())
    assert other.update() == trainer.update()


def test_centred_rewards_have_the_mean_that_the_equation_says() -> None:
    config = AlgorithmConfig(objective="average_reward", average_reward_rate=0.5, gamma=1.0, segment=12)
    trainer, segments = collected(config, 2)
    rewards = trainer.algorithm.rewards
    average = float(segments[0]["steps", "next", "reward"].double().mean())
    for segment in segments:
        rewards.apply(segment)
        steps = segment["steps"]
        centred = steps["next", "reward"] - average
        torch.testing.assert_close(steps["next", "learned_reward"], centred)
        ahead = torch.where(steps["next", "terminated"], 0.0, steps["next", "state_value"])
        average += 0.5 * float((centred + ahead - steps["state_value"]).double().mean())
        assert rewards.average == pytest.approx(average, abs=1e-9)


def test_with_unchanged_weights_a_history_changes_nothing_but_how_far_gradients_reach() -> None:
    config = AlgorithmConfig(segment=6, history=1)
    trainer, (first, second) = collected(config, 2)
    history = trainer.algorithm.history
    assert "history" not in history.extend(first).keys()  # noqa: SIM118 - a TensorDict
    joined = history.extend(second)
    agent = trainer.agent
    wanted = agent.sequence(second["steps"], second["memory"])
    written = [parameter for name, parameter in agent.named_parameters() if name.startswith("core")]
    reach = {}
    for gradient in (False, True):
        found = with_history(agent, joined, gradient)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=1e-5)
        reach[gradient] = torch.autograd.grad(found[0].square().sum(), written, allow_unused=True)
    short = torch.autograd.grad(wanted[0].square().sum(), written, allow_unused=True)
    for a, b in zip(reach[False], short, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(reach[True], short, strict=True) if a is not None)
