"""``lifelong.memory`` alone, in somebody's own PyTorch: eight pairs come by, then each key is asked for its value."""

import torch
from torch import nn

from lifelong.memory import make_core

torch.manual_seed(0)
embed, core, answer = nn.Linear(24, 64), make_core("gated_delta", dim=64), nn.Linear(64, 8)
optimizer = torch.optim.Adam(nn.ModuleList([embed, core, answer]).parameters(), lr=3e-3)

for update in range(201):
    keys = nn.functional.normalize(torch.randn(32, 8, 8), dim=-1)  # 32 lives of 16 steps
    values = torch.randint(8, (32, 8))
    written = torch.cat([keys, nn.functional.one_hot(values, 8), torch.zeros(32, 8, 8)], -1)
    asked = torch.cat([torch.zeros(32, 8, 16), keys], -1)
    outputs, state = core(embed(torch.cat([written, asked], 1)), core.initial_state(32))
    scores = answer(outputs[:, 8:])  # read while the keys are asked
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), values.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 50 == 0:
        print(f"update {update:3d}: {(scores.argmax(-1) == values).float().mean():.0%} recalled")
