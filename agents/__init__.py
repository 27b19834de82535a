"""Agents: network, rollout, PPO, training and evaluation loops. They meet environments through specs and never import
them.
"""

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.evaluation import evaluate_lives
from lifelong.agents.faults import NonFinite
from lifelong.agents.ppo import PPO, PPOConfig
from lifelong.agents.rollout import Lives, collect_segment
from lifelong.agents.trainer import Trainer

__all__ = ["PPO", "ActorCritic", "Lives", "NonFinite", "PPOConfig", "Trainer", "collect_segment", "evaluate_lives"]
