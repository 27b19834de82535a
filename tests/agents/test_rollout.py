"""Segments: what is stored is what happened; what the agent computed when acting, the update computes again."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import Bounded, MultiCategorical
from torchrl.data import Categorical as CategoricalSpec

from lifelong.agents import AlgorithmConfig, Lives, Trainer, collect_segment
from lifelong.memory import core_names

ACTION_SPECS = {
    "discrete": CategoricalSpec(3, shape=()),
    "multi_discrete": MultiCategorical([2, 3], shape=(2,)),
    "continuous": Bounded(low=torch.tensor([-2.0, 0.0]), high=torch.tensor([2.0, 1.0]), shape=(2,)),
}


def collect(env, agent, lengths: list[int], seed: int = 0):
    lives = Lives(env, agent, torch.Generator().manual_seed(seed))
    return [collect_segment(lives, length) for length in lengths], lives


@pytest.mark.parametrize("core", core_names())
def test_the_update_computes_the_log_probabilities_and_values_that_the_rollout_acted_on(scripted_env, make_agent, core):
    env = scripted_env(lives=5, steps=64)
    agent = make_agent(env, core)
    for segment in collect(env, agent, [24, 40])[0]:
        trunk, parameters = agent.sequence(segment["steps"], segment["memory"])
        log_prob = agent.action_head.distribution(parameters).log_prob(segment["steps", "action"])
        ratio = (log_prob - segment["steps", "action_log_prob"]).exp()
        assert (ratio - 1).abs().max() < 1e-5
        torch.testing.assert_close(agent.value(trunk), segment["steps", "state_value"], atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", ACTION_SPECS)
def test_the_ratio_is_one_for_every_kind_of_action(scripted_env, make_agent, kind):
    env = scripted_env(lives=4, steps=32, action_spec=ACTION_SPECS[kind])
    trainer = Trainer(env, make_agent(env), AlgorithmConfig(segment=32), seed=0, total_frames=1000)
    assert trainer.update()["train/ratio_deviation"] < 1e-5


def test_the_ratio_is_not_one_when_the_reset_flags_are_off_by_one(scripted_env, make_agent):
    """The commonest fault of recurrent agents must be seen by the check that exists for it."""
    env = scripted_env(lives=4, steps=32)
    agent = make_agent(env)
    (segment,), _ = collect(env, agent, [32])
    segment["steps", "reset"] = segment["steps", "reset"].roll(1, dims=1)
    _, parameters = agent.sequence(segment["steps"], segment["memory"])
    log_prob = agent.action_head.distribution(parameters).log_prob(segment["steps", "action"])
    assert (log_prob - segment["steps", "action_log_prob"]).exp().sub(1).abs().max() > 1e-3


@pytest.mark.parametrize("cut", [1, 7, 16, 31])
def test_a_stretch_collected_in_two_segments_is_the_same_as_in_one(scripted_env, make_agent, cut):
    agent = make_agent(scripted_env(4, 32))
    (whole,), lives_whole = collect(scripted_env(4, 32), agent, [32])
    parts, lives_parts = collect(scripted_env(4, 32), agent, [cut, 32 - cut])
    for key in ("action", "action_log_prob", "state_value", "reset", "soft_reset"):
        joined = torch.cat([part["steps", key] for part in parts], 1)
        assert torch.equal(joined, whole["steps", key]), key
    assert torch.equal(parts[1]["steps", "next", "state_value"], whole["steps", "next", "state_value"][:, cut:])
    memory, expected = lives_parts.memory(), lives_whole.memory()
    for key in expected.keys(include_nested=True, leaves_only=True):
        assert torch.equal(memory[key], expected[key]), key


def test_a_life_drops_its_memory_after_its_end_and_not_after_a_soft_reset(scripted_env, make_agent):
    env = scripted_env(lives=6, steps=40)
    (segment,), _ = collect(env, make_agent(env), [40])
    steps = segment["steps"]
    ended = (env.terminated | env.truncated).T[:, :-1]
    assert steps["reset"][:, 0].all(), "the first step of a life starts with an empty memory"
    assert torch.equal(steps["reset"][:, 1:], ended)
    assert torch.equal(steps["soft_reset"], env.soft_reset.T)
    assert (env.soft_reset.T[:, :-1] & ~ended).any(), "the script must hold soft resets"


def test_the_next_value_is_that_of_the_final_observation_at_a_truncation_and_of_the_next_step_elsewhere(
    scripted_env, make_agent
):
    env = scripted_env(lives=3, steps=20)
    agent = make_agent(env)
    (segment,), _ = collect(env, agent, [20])
    steps, value = segment["steps"], segment["steps", "state_value"].squeeze(-1)
    next_value = steps["next", "state_value"].squeeze(-1)
    checked = 0
    for b in range(3):
        for t in range(20):
            terminated, truncated = bool(env.terminated[t, b]), bool(env.truncated[t, b])
            assert bool(steps["next", "terminated"][b, t]) == terminated
            assert bool(steps["next", "truncated"][b, t]) == (truncated and not terminated)
            if truncated and not terminated:
                # Slow and obvious: replay the life up to t, then show the final observation in place of the next one.
                start = max(s for s in range(t + 1) if steps["reset"][b, s])
                replay = _replay(agent, steps, b, start, t, env.final[t, b], env.choices[t, b])
                assert abs(replay - next_value[b, t]) < 1e-5
                checked += 1
            elif t < 19 and not terminated:
                assert next_value[b, t] == value[b, t + 1]
    assert checked >= 3, "the script must hold truncations"


def _replay(agent, steps, b: int, start: int, t: int, final, choice) -> float:
    """The value of a final observation, by stepping through the life from its first step."""
    state = agent.core.initial_state(1)
    previous = agent.embed_previous(agent.initial_previous(1))
    with torch.no_grad():
        for s in range(start, t + 1):
            observation = {key: value[b, s].unsqueeze(0) for key, value in steps["observation"].items()}
            reset = torch.tensor([s == start])
            policy = agent.step(observation, reset, state, previous)
            state = policy.state
            previous = type(previous)(
                policy.embedding,
                steps["action"][b, s].unsqueeze(0),
                steps["next", "reward"][b, s],
                steps["soft_reset"][b, s].unsqueeze(0),
            )
        observation = {"observation": final.unsqueeze(0), "choice": choice.unsqueeze(0)}
        return float(agent.peek_value(observation, torch.tensor([False]), state, previous))


def test_the_memory_is_stored_once_per_segment_and_nothing_in_it_changes_later(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=64)
    agent = make_agent(env)
    lives = Lives(env, agent, torch.Generator().manual_seed(0))
    first = collect_segment(lives, 32)
    kept = first.clone()
    collect_segment(lives, 32)
    for key in kept.keys(include_nested=True, leaves_only=True):
        assert torch.equal(first[key], kept[key]), key
    assert first["memory"].shape == (4,)
    assert first[1:3]["steps"].shape == (2, 32)
    assert first[1:3]["memory"].shape == (2,)


def test_lives_saved_and_loaded_go_on_bit_for_bit(scripted_env, make_agent):
    agent = make_agent(scripted_env(4, 64))
    (_, expected), _ = collect(scripted_env(4, 64), agent, [16, 32])
    (_,), lives = collect(scripted_env(4, 64), agent, [16])
    env = scripted_env(4, 64)
    env.t = 16
    loaded = Lives(env, agent, torch.Generator())
    loaded.load_state_dict(lives.state_dict())
    segment = collect_segment(loaded, 32)
    for key in expected.keys(include_nested=True, leaves_only=True):
        assert torch.equal(segment[key], expected[key]), key


def test_an_environment_on_another_device_changes_nothing(scripted_env, make_agent):
    """ "cpu:0" is another device to torch than "cpu", and the same memory: the path of a GPU agent on a CPU
    environment.
    """
    agent = make_agent(scripted_env(4, 32))
    (expected,), _ = collect(scripted_env(4, 32), agent, [32])
    env = scripted_env(4, 32)
    env.device = torch.device("cpu:0")
    (segment,), _ = collect(env, agent, [32])
    for key in expected.keys(include_nested=True, leaves_only=True):
        assert torch.equal(segment[key], expected[key]), key


def test_a_reward_counts_for_the_rule_that_was_in_force_when_it_was_earned(scripted_env, make_agent):
    """Privileged fields describe the observation that they come with; the reward belongs to the one before.

    The script says ``steps_since_change = t`` with the observation that follows step t, and nothing with the first.
    """
    env = scripted_env(lives=2, steps=12)
    _, lives = collect(env, make_agent(env), [12])
    # Step 0 has no age; steps 1 to 10 have the ages 0 to 9; step 11 the age 10.
    assert lives.statistics.change_count.tolist()[:2] == [20, 2]
    expected = env.rewards[1:11].double().sum()
    assert abs(float(lives.statistics.change_reward[0] - expected)) < 1e-9
