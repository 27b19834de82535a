"""How much the agent is told of a hidden regime: the same environment, from blind to fully informed."""

from __future__ import annotations

from torch import Tensor

from lifelong.envs.options import check_choice

SIGNALS = ("hidden", "flag", "cue", "always")


class Signal:
    """Extra entries of an observation that tell of the regime.

    ``hidden``: none. ``flag``: one entry, 1 at the first step under a regime. ``cue``: the regime's code at the first
    step under it, zeros after. ``always``: the regime's code at every step.

    Args:
        env: name of the environment, for errors.
        signal: one of ``SIGNALS``.
        code_size: size R of a regime's code.
    """

    def __init__(self, env: str, signal: str, code_size: int) -> None:
        self.kind = check_choice(env, "signal", signal, SIGNALS)
        self.width = {"hidden": 0, "flag": 1}.get(signal, code_size)

    def entries(self, fresh: Tensor, code: Tensor) -> Tensor:
        """[B, width] float32 from ``fresh`` [B] bool (the first step under the regime) and ``code`` [B, R] float32."""
        if self.kind == "hidden":
            return code[:, :0]
        if self.kind == "flag":
            return fresh[:, None].to(code.dtype)
        return code * fresh[:, None] if self.kind == "cue" else code
