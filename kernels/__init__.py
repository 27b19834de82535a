"""The mathematics of fast-weight memories: every update rule in several implementations that agree."""

from lifelong.kernels.api import fast_weight_attention, fast_weight_step, implementation_names
from lifelong.kernels.mesa import MesaOutput, MesaState, mesa_attention
from lifelong.kernels.mlp_memory import MLPMemoryOutput, MLPMemoryState, mlp_memory
from lifelong.kernels.rules import (
    MLSTMOutput,
    MLSTMState,
    Replay,
    delta_product_attention,
    implicit_write_rate,
    mlstm_attention,
    mlstm_step,
    normalised_attention,
    replay_window,
)
from lifelong.kernels.types import ErrorFunction, FastWeightOutput, MomentumState, State
from lifelong.kernels.validation import huber, power

__all__ = [
    "ErrorFunction",
    "FastWeightOutput",
    "MLPMemoryOutput",
    "MLPMemoryState",
    "MLSTMOutput",
    "MLSTMState",
    "MesaOutput",
    "MesaState",
    "MomentumState",
    "Replay",
    "State",
    "delta_product_attention",
    "fast_weight_attention",
    "fast_weight_step",
    "huber",
    "implementation_names",
    "implicit_write_rate",
    "mesa_attention",
    "mlp_memory",
    "mlstm_attention",
    "mlstm_step",
    "normalised_attention",
    "power",
    "replay_window",
]
