"""One short learning test: an agent whose memory works learns, and one whose memory is broken does not."""

from __future__ import annotations

import torch

from lifelong.agents import ActorCritic, AlgorithmConfig, Trainer
from lifelong.envs import make_env
from lifelong.memory import make_core


def score_after_training(core: str) -> float:
    """Two pairs, two values: 0 is chance, 0.5 what can be had without knowing which went with which, 1 all."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env = make_env({"name": "associative_recall", "num_lives": 64, "seed": 0, "pairs": 2, "values": 2})
    options = {"heads": 2, "head_dim": 16} if core == "gated_delta" else {}
    agent = ActorCritic(env.observation_spec, env.action_spec, make_core(core, 32, **options), head_width=32)
    config = AlgorithmConfig(segment=32, minibatches=4, learning_rate=3e-3, gamma=0.5, gae_lambda=0.9)
    trainer = Trainer(env, agent, config, seed=0, total_frames=90_000)
    while not trainer.done:
        metrics = trainer.update()
        assert metrics["train/ratio_deviation"] < 1e-5
        if metrics.get("rollout/ep_rew_mean", -1) > 0.9:
            break
    return metrics["rollout/ep_rew_mean"]


def test_an_agent_with_a_memory_learns_to_recall():
    assert score_after_training("gated_delta") > 0.9


def test_an_agent_without_a_memory_does_not():
    assert score_after_training("none") < 0.65
