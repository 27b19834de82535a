"""The health of the lives' memories: what training logs of it, and how a broken memory is told."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from lifelong.agents import AlgorithmConfig, Lives, NonFinite, Trainer, collect_segment
from lifelong.agents.evaluation import Evaluation
from lifelong.agents.health import memory_health, memory_histograms
from lifelong.memory import core_names


@pytest.mark.parametrize("core", ["gated_delta", "lstm", "none"])
def test_an_update_logs_the_health_of_the_memory(scripted_env, make_agent, core):
    env = scripted_env(lives=4, steps=64)
    agent = make_agent(env, core)
    trainer = Trainer(env, agent, AlgorithmConfig(segment=16), seed=0, total_frames=64)
    logged = {name: value for name, value in trainer.update().items() if name.startswith("memory/")}
    assert all(math.isfinite(value) for value in logged.values())
    assert logged["memory/state_bytes"] == agent.core.state_bytes()
    of_any_state = {"state_norm", "state_max", "state_non_finite", "write_size"}
    of_fast_weights = {"effective_rank", "surprise_before", "surprise_after", "decay_horizon"}
    expected = {"none": set(), "lstm": of_any_state, "gated_delta": of_any_state | of_fast_weights}[core]
    assert set(logged) == {f"memory/{name}" for name in {"state_bytes", *expected}}


def test_health_is_of_the_very_next_step_and_changes_nothing(scripted_env, make_agent):
    env = scripted_env(lives=3, steps=64)
    agent = make_agent(env)
    lives = Lives(env, agent, torch.Generator().manual_seed(0))
    collect_segment(lives, 16)
    state, reset = lives.state.clone(), lives.reset.clone()
    found = memory_health(lives)
    assert (lives.state == state).all()
    tokens = agent.peek_token(lives.observation, reset, agent.embed_previous(lives.last))
    by_hand = agent.core.health(state, tokens, reset)
    assert found["memory/surprise_before"] == by_hand["surprise_before"]
    assert found["memory/write_size"] == by_hand["write_size"]


def test_histograms_are_of_lives_as_their_next_step_finds_them(scripted_env, make_agent):
    env = scripted_env(lives=3, steps=64, ends=0.0)
    lives = Lives(env, make_agent(env), torch.Generator().manual_seed(0))
    collect_segment(lives, 16)
    lives.reset = torch.ones(3, dtype=torch.bool)
    found = memory_histograms(lives)["memory_histograms/surprise"]
    assert float(found.mean()) == pytest.approx(memory_health(lives)["memory/surprise_before"])


def break_state(lives: Lives, life: int) -> None:
    """Let the fast weights of a life overflow, where its next token will not have been read yet."""
    weights = lives.state["layer_0", "fast_weights"].clone()
    weights[life] = math.inf
    lives.state["layer_0", "fast_weights"] = weights


def test_a_memory_that_breaks_in_a_step_is_named_with_life_and_step(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=64, ends=0.0)
    trainer = Trainer(env, make_agent(env), AlgorithmConfig(segment=16), seed=0, total_frames=640)
    trainer.update()
    break_state(trainer.lives, 2)
    with pytest.raises(NonFinite, match=r"memory gated_delta: layer_0.fast_weights of life 2 .* at its step 16"):
        trainer.update()


def test_a_memory_that_breaks_unread_is_found_at_the_end_of_the_segment(scripted_env, make_agent, monkeypatch):
    env = scripted_env(lives=4, steps=64, ends=0.0)
    trainer = Trainer(env, make_agent(env), AlgorithmConfig(segment=16), seed=0, total_frames=640)

    def collect_and_break(lives: Lives, length: int):
        segment = collect_segment(lives, length)
        break_state(lives, 1)
        return segment

    monkeypatch.setattr("lifelong.agents.trainer.collect_segment", collect_and_break)
    with pytest.raises(NonFinite, match=r"memory gated_delta: layer_0.fast_weights of life 1 .* at its step 16"):
        trainer.update()


def poison(state: TensorDict, life: int) -> None:
    """NaN in every floating-point tensor of one life."""
    for key in state.keys(True, True):
        leaf = state.get(key).clone()
        if leaf.is_floating_point():
            leaf[life] = math.nan
            state.set(key, leaf)


@pytest.mark.parametrize("core", [name for name in core_names() if name != "none"])
def test_nan_in_one_memory_is_told_by_core_life_and_step_when_the_agent_acts(scripted_env, make_agent, core):
    env = scripted_env(lives=4, steps=64, ends=0.0)
    trainer = Trainer(env, make_agent(env, core), AlgorithmConfig(segment=16), seed=0, total_frames=640)
    trainer.update()
    weights = [weight.clone() for weight in trainer.agent.parameters()]
    poison(trainer.lives.state, 2)
    with pytest.raises(NonFinite, match=rf"^memory {core}: \S+ of life 2 is not finite at its step 16$"):
        trainer.update()
    assert all(map(torch.equal, weights, trainer.agent.parameters()))


@pytest.mark.parametrize("core", [name for name in core_names() if name != "none"])
def test_nan_in_one_memory_is_told_by_core_life_and_step_when_the_agent_learns(
    scripted_env, make_agent, core, monkeypatch
):
    env = scripted_env(lives=4, steps=64, ends=0.0)
    trainer = Trainer(env, make_agent(env, core), AlgorithmConfig(segment=16), seed=0, total_frames=640)
    trainer.update()

    def collect_and_poison(lives: Lives, length: int):
        segment = collect_segment(lives, length)
        poison(segment["memory", "core"], 3)
        return segment

    monkeypatch.setattr("lifelong.agents.trainer.collect_segment", collect_and_poison)
    with pytest.raises(NonFinite, match=rf"^memory {core}: \S+ of life 3 is not finite at its step 16$"):
        trainer.update()
    assert all(bool(weight.isfinite().all()) for weight in trainer.agent.parameters())


def test_nan_in_a_memory_that_is_dropped_before_the_next_step_does_not_stop_the_agent(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=64, ends=0.0)
    lives = Lives(env, make_agent(env), torch.Generator().manual_seed(0))
    collect_segment(lives, 16)
    poison(lives.state, 2)
    lives.reset = torch.tensor([False, False, True, False])
    collect_segment(lives, 16)
    assert bool(lives.state["layer_0", "fast_weights"].isfinite().all())


def test_a_memory_that_breaks_in_the_update_alone_is_told_at_the_end_of_the_segment(
    scripted_env, make_agent, monkeypatch
):
    env = scripted_env(lives=4, steps=64, ends=0.0)
    trainer = Trainer(env, make_agent(env), AlgorithmConfig(segment=16), seed=0, total_frames=640)
    core = trainer.agent.core
    run = core.forward

    def break_life_1(inputs, state, reset=None):
        outputs, state = run(inputs, state, reset)
        outputs, state = outputs.clone(), state.clone()
        outputs[1], state["layer_0", "fast_weights"][1] = math.nan, math.nan
        return outputs, state

    monkeypatch.setattr(core, "forward", break_life_1)
    with pytest.raises(NonFinite, match=r"memory gated_delta: layer_0.fast_weights of life 1 .* at its step 16"):
        trainer.update()


def test_evaluation_reports_health_in_every_span(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=64)
    evaluation = Evaluation(env, make_agent(env))
    assert all("memory/surprise_before" in evaluation.run_to(stop).memory for stop in (10, 20))
