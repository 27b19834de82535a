"""A life that is saved in one process goes on in another."""

import subprocess
import sys
from pathlib import Path

import torch

from lifelong.envs import make_env
from lifelong.envs.batched_suite import BATCHED_ENVS

CONTINUE = """
import sys, torch
from lifelong.envs import make_env
state, plan, out = (torch.load(sys.argv[1], weights_only=True)[key] for key in ("states", "plan", "out"))
rewards = {}
for name, saved in state.items():
    env = make_env({"name": name, "num_lives": 3, "seed": 0, "life_steps": 70})
    env.load_state_dict(saved)
    steps = [env.step(action) for action in plan]
    rewards[name] = [torch.stack(x) for x in zip(*[(s.reward, s.observation["observation"]) for s in steps])]
torch.save(rewards, out)
"""


def test_four_hundred_steps_are_two_hundred_a_new_process_and_two_hundred_more(tmp_path: Path) -> None:
    plan = torch.randint(2, (400, 3), generator=torch.Generator().manual_seed(0))
    states, expected = {}, {}
    for kind in BATCHED_ENVS:
        env = make_env({"name": kind.name, "num_lives": 3, "seed": 8, "life_steps": 70})
        env.reset()
        for action in plan[:200]:
            env.step(action)
        states[kind.name] = env.state_dict()
        expected[kind.name] = [(step.reward, step.observation["observation"]) for step in map(env.step, plan[200:])]
    torch.save({"states": states, "plan": plan[200:], "out": str(tmp_path / "out.pt")}, tmp_path / "in.pt")
    subprocess.run([sys.executable, "-c", CONTINUE, str(tmp_path / "in.pt")], check=True, timeout=600)
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    for name, steps in expected.items():
        rewards, observations = map(torch.stack, zip(*steps, strict=True))
        assert torch.equal(rewards, found[name][0])
        assert torch.equal(observations, found[name][1])
