"""From a config to the objects that run: environment, agent, trainer."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch

from lifelong.agents import ActorCritic, Trainer
from lifelong.agents.distributed import ALONE, Group, launched_by_torchrun, local_rank
from lifelong.envs import BatchedEnv, make_env
from lifelong.envs.registry import env_factory
from lifelong.experiments.config import RunConfig
from lifelong.experiments.errors import UserError
from lifelong.memory import make_core


def set_up_process(config: RunConfig) -> torch.device:
    """Threads and device, before anything is built. ``cuda`` is a GPU of its own for each process of ``torchrun``.

    Raises:
        UserError: the device does not exist here.
    """
    torch.set_num_threads(config.threads)
    try:
        device = torch.device(config.device)
        if device == torch.device("cuda") and launched_by_torchrun():
            device = torch.device("cuda", local_rank())
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={config.device}: not available here ({str(error).splitlines()[0]})") from error
    return device


def build_env(config: RunConfig, seed: int, num_lives: int | None = None, group: Group = ALONE) -> BatchedEnv:
    """The environment, with ``num_lives`` in place of the config's when given; of several ranks, this one's lives.

    Raises:
        UserError: an option that the environment refuses, or lives that cannot be divided among ranks.
    """
    options = dict(config.env)
    if num_lives is not None:
        options["num_lives"] = num_lives
    if group.world > 1:
        options = _share_of_lives(options, group)
    try:
        return make_env({**options, "seed": seed})
    except Exception as error:  # the constructor may be anybody's
        raise UserError(f"env: {_one_line(error)}") from error


def _share_of_lives(options: dict[str, Any], group: Group) -> dict[str, Any]:
    """An environment's options with this rank's part of the lives."""
    kinds = inspect.signature(env_factory(options["name"])).parameters.values()
    if not any(kind.name == "first_life" or kind.kind is kind.VAR_KEYWORD for kind in kinds):
        raise UserError(
            f"env={options['name']}: cannot be divided among ranks: it has no option first_life, the index of the "
            "first life of a batch; train it without torchrun"
        )
    size = options["num_lives"] // group.world
    return {**options, "num_lives": size, "first_life": options.get("first_life", 0) + group.rank * size}


def build_agent(config: RunConfig, env: BatchedEnv, device: torch.device) -> ActorCritic:
    """The network, its weights drawn from the seed.

    Raises:
        UserError: an option that the core or the encoder refuses, or a space that is not served.
    """
    torch.manual_seed(config.seed)
    options = dict(config.memory)
    agent = config.agent
    try:
        core = make_core(options.pop("name"), agent.width, **options)
    except (ValueError, TypeError) as error:
        raise UserError(f"memory: {_one_line(error)}") from error
    try:
        network = ActorCritic(
            env.observation_spec,
            env.action_spec,
            core,
            encoder_layers=agent.encoder_layers,
            encoder_grid=agent.encoder_grid,
            head_width=agent.head_width,
            layer_norm=agent.layer_norm,
        )
    except ValueError as error:
        raise UserError(f"agent: {_one_line(error)}") from error
    network = network.to(device)
    try:  # a kernel that cannot serve the core says so at its first call; better here than in a run's folder
        with torch.no_grad():
            network.core(torch.zeros(1, 1, agent.width, device=device), network.core.initial_state(1, device=device))
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"memory: {_one_line(error)}") from error
    return network


def build_trainer(config: RunConfig, env: BatchedEnv, device: torch.device, group: Group = ALONE) -> Trainer:
    """Agent, algorithm and lives.

    Raises:
        UserError: an option that is out of range.
    """
    agent = build_agent(config, env, device)
    try:
        return Trainer(env, agent, dataclasses.replace(config.algorithm), config.seed, config.frames, group)
    except ValueError as error:
        raise UserError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
