"""Any memory core in a stock TorchRL program: a collector, GAE and ClipPPOLoss on CartPole."""

import sys

import torch
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from lifelong.memory import MemoryModule, make_core

frames = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
torch.manual_seed(0)

memory = MemoryModule(make_core("gated_delta", dim=32, heads=2, head_dim=16), in_key="embedding", out_key="features")
embed = TensorDictModule(nn.Sequential(nn.Linear(4, 32), nn.SiLU()), ["observation"], ["embedding"])
policy = ProbabilisticTensorDictSequential(
    embed,
    memory,
    TensorDictModule(nn.Linear(32, 2), ["features"], ["logits"]),
    ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    ),
)
critic = TensorDictModule(nn.Linear(32, 1), ["features"], ["state_value"])  # reads what the policy's trunk wrote

# The two transforms that a memory needs: is_init says where a life begins, the primer carries the state.
cart_poles = SerialEnv(8, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
env = TransformedEnv(cart_poles, Compose(InitTracker(), StepCounter(), memory.make_tensordict_primer()))

loss_module = ClipPPOLoss(policy, critic, entropy_coeff=0.01)
advantages = GAE(
    gamma=0.99, lmbda=0.95, value_network=TensorDictSequential(embed, memory, critic), deactivate_vmap=True
)
optimizer = torch.optim.Adam(loss_module.parameters(), lr=3e-3)
collector = Collector(env, policy, frames_per_batch=1024, total_frames=frames, auto_register_policy_transforms=False)

for batch in collector:  # [8 lives, 128 steps]
    for _ in range(4):
        with set_recurrent_mode(True), torch.no_grad():
            advantages(batch)
        losses = loss_module(batch)
        optimizer.zero_grad()
        sum(losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
        nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
        optimizer.step()
    lengths = batch["next", "step_count"][batch["next", "done"]].float()
    print(f"mean length of an episode: {lengths.mean():.0f}")
collector.shutdown()
