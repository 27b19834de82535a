"""A memory core of one's own: fast weights that learn by the normalised least-mean-squares rule.

S <- S + b (v - S k) k^T / (c + |k|^2),   output = x + W_o S q

lifelong train plugins=[my_core] memory=my_rule memory.write_rate=0.5
python -m pytest -p my_core ../tests/memory/test_contract.py -k my_rule
"""

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory import MemoryCore, register_core


@register_core("my_rule")
class MyRule(MemoryCore):
    """State: ``weights`` [B, D, D]. Options become config keys: ``write_rate`` b, ``floor`` c."""

    matrices = ("weights",)  # where the memory lies: its effective rank is logged

    def __init__(self, dim: int, write_rate: float = 0.5, floor: float = 0.1) -> None:
        super().__init__(dim)
        self.write_rate, self.floor = write_rate, floor
        self.norm = nn.LayerNorm(dim)
        self.labels = nn.Linear(dim, 3 * dim)
        self.output_projection = nn.Linear(dim, dim)

    def initial_state(self, batch_size, device=None, dtype=None):
        weights = self._zeros(batch_size, self.dim, self.dim, device=device, dtype=dtype)
        return TensorDict({"weights": weights}, [batch_size])

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        weights = state["weights"]
        if reset is not None:  # the memory is dropped before the step
            weights = weights.masked_fill(reset.view(-1, 1, 1), 0.0)
        query, key, value = self.labels(self.norm(inputs)).chunk(3, -1)
        error = value - (weights @ key.unsqueeze(-1)).squeeze(-1)
        rate = self.write_rate / (self.floor + key.square().sum(-1, keepdim=True))
        weights = weights + (rate * error).unsqueeze(-1) * key.unsqueeze(-2)
        read = (weights @ query.unsqueeze(-1)).squeeze(-1)
        return inputs + self.output_projection(read), TensorDict({"weights": weights}, [len(inputs)])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        outputs = []  # a loop is enough; ``lifelong list memory --check`` says what a parallel form would be worth
        for t in range(inputs.shape[1]):
            output, state = self.step(inputs[:, t], state, None if reset is None else reset[:, t])
            outputs.append(output)
        return torch.stack(outputs, 1), state
