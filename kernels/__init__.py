"""The mathematics of fast-weight memories: every update rule in several implementations that agree."""

from lifelong.kernels.api import fast_weight_attention, fast_weight_step, implementation_names
from lifelong.kernels.types import ErrorFunction, FastWeightOutput, MomentumState, State
from lifelong.kernels.validation import huber, power

__all__ = [
    "ErrorFunction",
    "FastWeightOutput",
    "MomentumState",
    "State",
    "fast_weight_attention",
    "fast_weight_step",
    "huber",
    "implementation_names",
    "power",
]
