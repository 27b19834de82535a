"""A learned reset state in the rollout and in the update."""

from __future__ import annotations

import pytest
import torch

from lifelong.agents import AlgorithmConfig, Trainer
from lifelong.memory.learned_reset import ResetState


@pytest.mark.parametrize("core", ["lstm", "gated_delta", "mixed_heads", "gtrxl", "lru", "frame_stack", "shm", "mesa"])
def test_the_ratio_stays_one_while_the_reset_state_is_learned(scripted_env, make_agent, core):
    env = scripted_env(lives=4, steps=72)
    agent = make_agent(env, core, reset_state="learned")
    learned = [p for module in agent.modules() if isinstance(module, ResetState) for p in module.learned.values()]
    with torch.no_grad():
        for parameter in learned:
            parameter.normal_()
    before = [parameter.clone() for parameter in learned]
    trainer = Trainer(env, agent, AlgorithmConfig(segment=24), seed=0, total_frames=1000)
    for _ in range(3):  # later segments begin within lives, from states that older parameters left
        assert trainer.update()["train/ratio_deviation"] < 1e-5
    assert all((new != old).any() for new, old in zip(learned, before, strict=True))
