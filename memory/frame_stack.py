"""The last n inputs side by side: the memory that agents had before they had one."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import MemoryCore
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.registry import register_core
from lifelong.memory.rotary import positions


@register_core("frame_stack")
class FrameStackCore(MemoryCore):
    """A window of n inputs through one residual feed-forward block (frame stacking: Mnih et al. 2015). With u_t =
    LayerNorm(x_t):

        y_t = x_t + W_2 silu(W_1 [u_{t-n+1}, ..., u_t] + b_1) + b_2

    Frames of an earlier life are replaced by those of the reset state, as if a life had begun with them. With
    ``frames=1`` it would be ``none``.

    State: ``frames`` [B, n - 1, D], normalised, oldest first.

    Args:
        dim: width of inputs and outputs.
        frames: how many inputs are seen at once, 2 or more.
        feed_forward: hidden width of the block, as a multiple of ``dim``.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(self, dim: int, frames: int = 4, feed_forward: float = 2.0, reset_state: str = "zero") -> None:
        super().__init__(dim)
        hidden = int(feed_forward * dim)
        check_at_least(2, frames=frames)
        if hidden < 1:
            raise ValueError(f"feed_forward={feed_forward} leaves no hidden unit at dim={dim}")
        self.frames = frames
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(frames * dim, hidden)
        self.narrow = nn.Linear(hidden, dim)
        self.reset_state = ResetState(reset_state, {"frames": (frames - 1, dim)})

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        return TensorDict(self.reset_state.initial(batch_size, self.widen.weight, device, dtype), [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        seen = torch.cat([state.get("frames"), self.norm(inputs)], 1)
        windows = seen.unfold(1, self.frames, 1).transpose(2, 3)  # [B, T, n, D], oldest first
        if reset is not None:
            windows = self._of_this_life(windows, reset)
        return self._block(inputs, windows), TensorDict({"frames": windows[:, -1, 1:]}, [len(inputs)])

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        before = self.reset_state.restore("frames", state.get("frames"), reset)
        window = torch.cat([before, self.norm(inputs).unsqueeze(1)], 1)
        return self._block(inputs, window), TensorDict({"frames": window[:, 1:]}, [len(inputs)])

    def _block(self, inputs: Tensor, windows: Tensor) -> Tensor:
        return inputs + self.narrow(nn.functional.silu(self.widen(windows.flatten(-2))))

    def _of_this_life(self, windows: Tensor, reset: Tensor) -> Tensor:
        """The windows [B, T, n, D] with what was seen before the last reset replaced by the reset state."""
        # A frame `late` steps older than the life is the reset state's frame n - 1 - late; a life that came in with the
        # state is as old as any window.
        age = positions(reset.new_full((len(reset),), self.frames, dtype=torch.int64), reset.shape[1], reset)
        late = torch.arange(self.frames - 1, -1, -1, device=reset.device) - age.unsqueeze(2)  # [B, T, n]
        learned = self.reset_state.get("frames")
        if learned is None:
            return windows.masked_fill((late > 0).unsqueeze(3), 0.0)
        earlier = learned[(self.frames - 1 - late).clamp(0, self.frames - 2)]
        return torch.where((late > 0).unsqueeze(3), earlier, windows)
