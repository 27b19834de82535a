"""Environments: one interface for a batch of lives, the registry, and everything that registers itself in it."""

from lifelong.envs import associative_recall, switching_bandit
from lifelong.envs.base import BatchedEnv, EnvironmentFault, References, Step, UnsupportedSpace
from lifelong.envs.registry import env_names, make_env, register_env

__all__ = [
    "BatchedEnv",
    "EnvironmentFault",
    "References",
    "Step",
    "UnsupportedSpace",
    "associative_recall",
    "env_names",
    "make_env",
    "register_env",
    "switching_bandit",
]
