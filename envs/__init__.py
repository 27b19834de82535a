"""Environments: one interface for a batch of lives, the registry, and everything that registers itself in it."""

from lifelong.envs import batched_suite, gymnasium_env, gymnasium_face, minigrid_env, popgym_env, switch_world
from lifelong.envs.base import BatchedEnv, EnvironmentFault, References, Step, UnsupportedSpace
from lifelong.envs.registry import env_names, make_env, register_env
from lifelong.envs.vector_env import from_vector_env

__all__ = [
    "BatchedEnv",
    "EnvironmentFault",
    "References",
    "Step",
    "UnsupportedSpace",
    "batched_suite",
    "env_names",
    "from_vector_env",
    "gymnasium_env",
    "gymnasium_face",
    "make_env",
    "minigrid_env",
    "popgym_env",
    "register_env",
    "switch_world",
]

gymnasium_face.register_ids()
