"""The rollout: segments of T steps from B lives that go on from one segment to the next.

The memory's state and the last transition are carried, detached, from segment to segment (truncated backpropagation
through time with unbroken lives); they are stored at the segment's start only. Values are stored as they were when
the agent acted, with those of final observations where a life was truncated, so that the advantage needs no second
run of the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.agents.actor_critic import ActorCritic, PolicyStep, Previous
from lifelong.agents.distributed import ALONE, Group
from lifelong.agents.encoder import Observation
from lifelong.agents.faults import NonFinite
from lifelong.agents.health import refuse_broken_memory
from lifelong.agents.life_curves import LifeCurves
from lifelong.agents.statistics import LifeStatistics


class StepResult(Protocol):
    """What an environment's step gives back (``lifelong.envs.Step``)."""

    @property
    def observation(self) -> Observation: ...
    @property
    def reward(self) -> Tensor: ...
    @property
    def terminated(self) -> Tensor: ...
    @property
    def truncated(self) -> Tensor: ...
    @property
    def soft_reset(self) -> Tensor: ...
    @property
    def final_observation(self) -> Observation | None: ...
    @property
    def privileged(self) -> Mapping[str, Tensor]: ...


class _MovedStep(NamedTuple):
    """A step on another device."""

    observation: Observation
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    soft_reset: Tensor
    final_observation: Observation | None
    privileged: Mapping[str, Tensor]


class Environment(Protocol):
    """What the rollout needs of a batched environment (``lifelong.envs.BatchedEnv``)."""

    num_lives: int
    device: torch.device

    def reset(self) -> Observation: ...
    def step(self, action: Tensor) -> StepResult: ...


class Lives:
    """B lives in progress: the environment, what the agent sees and remembers now, and its statistics.

    ``act`` moves all of them by one step. Training and evaluation both go through it.
    """

    def __init__(self, env: Environment, agent: ActorCritic, generator: torch.Generator, group: Group = ALONE) -> None:
        self.env = env
        self.agent = agent
        self.generator = generator
        self.group = group  # whose ranks live the other lives, if any, and draw from the same generator
        self.statistics = LifeStatistics(env.num_lives)
        device = self.device = agent.token.weight.device
        self.state = agent.core.initial_state(env.num_lives, device=device).detach()  # a reset state may be learned
        self.last = agent.initial_previous(env.num_lives)
        self.reset = torch.ones(env.num_lives, dtype=torch.bool, device=device)
        # What the environment says of the situation that is acted in next; never for the policy.
        self.situation: Mapping[str, Tensor] = {}
        self.curves: LifeCurves | None = None  # fed with every step, where somebody wants them
        self.observation: Observation | None = (
            None  # the environment starts on first use: loading a state must not reset it
        )

    def start(self) -> None:
        """Start the environment unless lives are in progress."""
        if self.observation is None:
            self.observation = self._here(self.env.reset())

    def memory(self) -> TensorDict:
        """What is remembered before the next step, batch [B]: the core's state and the last transition."""
        return TensorDict({"core": self.state, "previous": self.last}, [self.env.num_lives])

    @torch.no_grad()
    def act(self, previous: Previous, greedy: bool = False) -> tuple[PolicyStep, StepResult, Previous]:
        """One step in all lives: the policy's step, the environment's, and the transition for the next token."""
        assert self.observation is not None, "call start() first"
        observation = self.observation
        try:
            policy = self.agent.step(observation, self.reset, self.state, previous, self.generator, greedy, self.group)
        except NonFinite:
            self._blame_memory(previous)
            raise
        step = self._step(policy.action)
        if not bool(step.reward.isfinite().all()):
            index = int(step.reward.isfinite().logical_not().nonzero()[0])
            life_step = int(self.statistics.life_step[index])
            raise NonFinite(f"the reward of life {index} at its step {life_step} is {float(step.reward[index])}")
        life_end = step.terminated | step.truncated
        if self.curves is not None:
            self.curves.add(self.situation, policy.action, step.reward, life_end, self.statistics.life_step)
        self.statistics.add(step.reward, life_end, step.soft_reset, self.situation.get("steps_since_change"))
        self.situation = step.privileged
        self.state = policy.state
        self.observation = step.observation
        self.reset = life_end
        self._observed = observation
        return policy, step, Previous(policy.embedding, policy.action, step.reward, step.soft_reset)

    def _blame_memory(self, previous: Previous) -> None:
        """Say which memory broke in a step that failed, or had broken before it, if one did."""
        assert self.observation is not None
        core, life_step = self.agent.core, self.statistics.life_step
        refuse_broken_memory(core, core.restarted(self.state, self.reset), life_step)
        token = self.agent.peek_token(self.observation, self.reset, previous)
        if bool(token.isfinite().all()):
            _, state = core.step(token, self.state, self.reset)
            refuse_broken_memory(core, state, life_step)

    def _step(self, action: Tensor) -> StepResult:
        """The environment's step; its tensors are moved where agent and environment live on different devices."""
        if self.env.device == self.device:
            return self.env.step(action)
        step = self.env.step(action.to(self.env.device))
        final = None if step.final_observation is None else self._here(step.final_observation)
        return _MovedStep(
            self._here(step.observation),
            step.reward.to(self.device),
            step.terminated.to(self.device),
            step.truncated.to(self.device),
            step.soft_reset.to(self.device),
            final,
            step.privileged,
        )

    def _here(self, observation: Observation) -> Observation:
        return {key: value.to(self.device) for key, value in observation.items()}

    def remember(self, previous: Previous) -> None:
        """Keep the last transition in the form that survives a change of weights (its observation, not its
        embedding).
        """
        size = self.env.num_lives
        self.last = TensorDict(
            {
                "observation": TensorDict(dict(self._observed), [size]),
                "action": previous.action,
                "reward": previous.reward,
                "soft_reset": previous.soft_reset,
            },
            [size],
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything but the environment and the agent's weights."""
        return {
            "memory": self.memory().to_dict(),
            "reset": self.reset,
            "rule_age": self.situation.get("steps_since_change"),
            "observation": self.observation,
            "generator": self.generator.get_state(),
            "statistics": self.statistics.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        size = [self.env.num_lives]
        memory = TensorDict.from_dict(state["memory"], batch_size=size)
        self.state, self.last = memory["core"], memory["previous"]
        self.state.batch_size = self.last.batch_size = self.last["observation"].batch_size = torch.Size(size)
        self.agent.core.check_state(self.state)
        self.reset, self.observation = state["reset"], state["observation"]
        self.situation = {} if state["rule_age"] is None else {"steps_since_change": state["rule_age"]}
        self.generator.set_state(state["generator"])
        self.statistics.load_state_dict(state["statistics"])


@torch.no_grad()
def collect_segment(lives: Lives, length: int) -> TensorDict:
    """Run ``length`` steps in all lives and return them as a segment (see ``lifelong.agents.segment``)."""
    lives.start()
    agent, size = lives.agent, lives.env.num_lives
    memory = lives.memory()
    previous = agent.embed_previous(lives.last)
    rows: list[dict[str, Any]] = []
    truncated_values: list[tuple[int, Tensor, Tensor]] = []
    for t in range(length):
        observation, reset = lives.observation, lives.reset
        policy, step, previous = lives.act(previous)
        # Not the state: memory that is let go is used again by the next step, and is still in the cache.
        row = {"action": policy.action, "log_prob": policy.log_prob, "trunk": policy.trunk}
        rows.append({"observation": observation, "reset": reset, **row, "step": step})
        if step.final_observation is not None:
            cut = (step.truncated & ~step.terminated).nonzero().squeeze(-1)
            if cut.numel():
                truncated_values.append((t, cut, _final_values(agent, step.final_observation, policy, previous, cut)))
    lives.remember(previous)
    assert lives.observation is not None
    bootstrap = agent.peek_value(lives.observation, lives.reset, lives.state, previous)

    def stack(values: list[Tensor]) -> Tensor:
        return torch.stack(values, 1)

    # The critic reads a whole segment at once: as many small products would take longer than the policy's.
    value = agent.value(stack([row["trunk"] for row in rows])).squeeze(-1)
    next_value = torch.cat([value[:, 1:], bootstrap.unsqueeze(1)], 1)
    for t, cut, values in truncated_values:
        next_value[cut, t] = values
    terminated = stack([row["step"].terminated for row in rows])
    truncated = stack([row["step"].truncated for row in rows]) & ~terminated  # both at once: the termination wins
    following = {
        "reward": stack([row["step"].reward for row in rows]).unsqueeze(-1),
        "done": (terminated | truncated).unsqueeze(-1),
        "terminated": terminated.unsqueeze(-1),
        "truncated": truncated.unsqueeze(-1),
        "state_value": next_value.unsqueeze(-1),
    }
    keys = rows[0]["observation"].keys()
    steps = TensorDict(
        {
            "observation": TensorDict(
                {key: stack([row["observation"][key] for row in rows]) for key in keys}, [size, length]
            ),
            "action": stack([row["action"] for row in rows]),
            "action_log_prob": stack([row["log_prob"] for row in rows]),
            "state_value": value.unsqueeze(-1),
            "reset": stack([row["reset"] for row in rows]),
            "soft_reset": stack([row["step"].soft_reset for row in rows]),
            "next": TensorDict(following, [size, length]),
        },
        [size, length],
    )
    return TensorDict({"steps": steps, "memory": memory}, [size])


def _final_values(
    agent: ActorCritic, final_observation: Observation, policy: PolicyStep, previous: Previous, rows: Tensor
) -> Tensor:
    """V of the final observations of the lives ``rows``, read with the memory that they still have: the bootstrap of
    a truncation.
    """
    observation = {key: value[rows] for key, value in final_observation.items()}
    before = Previous(*(part[rows] for part in previous))
    no_reset = torch.zeros(rows.shape, dtype=torch.bool, device=rows.device)
    return agent.peek_value(observation, no_reset, policy.state[rows], before)
