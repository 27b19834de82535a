"""Agents: network, rollout, algorithms, training and evaluation loops.

They meet environments through specs and never import them.
"""

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.algorithm import Algorithm, AlgorithmConfig
from lifelong.agents.faults import NonFinite
from lifelong.agents.rollout import Lives, collect_segment
from lifelong.agents.trainer import Trainer

__all__ = [
    "ActorCritic",
    "Algorithm",
    "AlgorithmConfig",
    "Lives",
    "NonFinite",
    "Trainer",
    "collect_segment",
]
