"""The health of the lives' memories: what training logs of it, and how a broken memory is told."""

from __future__ import annotations

import math

import pytest
import torch

from lifelong.agents import AlgorithmConfig, Lives, NonFinite, Trainer, collect_segment
from lifelong.agents.evaluation import Evaluation
from lifelong.agents.health import memory_health


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
    with pytest.raises(NonFinite, match=r"memory GatedDelta: layer_0.fast_weights of life 2 .* at its step 16"):
        trainer.update()


def test_a_memory_that_breaks_unread_is_found_at_the_end_of_the_segment(scripted_env, make_agent, monkeypatch):
    env = scripted_env(lives=4, steps=64, ends=0.0)
    trainer = Trainer(env, make_agent(env), AlgorithmConfig(segment=16), seed=0, total_frames=640)

    def collect_and_break(lives: Lives, length: int):
        segment = collect_segment(lives, length)
        break_state(lives, 1)
        return segment

    monkeypatch.setattr("lifelong.agents.trainer.collect_segment", collect_and_break)
    with pytest.raises(NonFinite, match=r"memory GatedDelta: layer_0.fast_weights of life 1 .* at its step 16"):
        trainer.update()


def test_evaluation_reports_health_in_every_span(scripted_env, make_agent):
    env = scripted_env(lives=4, steps=64)
    evaluation = Evaluation(env, make_agent(env))
    assert all("memory/surprise_before" in evaluation.run_to(stop).memory for stop in (10, 20))
