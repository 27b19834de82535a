"""Any Gymnasium environment: a loop over B plain environments in this process, behind the batched interface.

A loop of our own beats Gymnasium's SyncVectorEnv (no merging of infos, no second copy) and treats the ends of episodes
as the contract wants: same-step restarts with the final observation handed out, and soft resets inside a life that goes
on.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from lifelong.envs.base import BatchedEnv, EnvironmentFault, Observation, References, Step, UnsupportedSpace
from lifelong.envs.episode_references import EPISODE_REFERENCES
from lifelong.envs.life_wrapper import PRIVILEGED, SOFT_RESET, check_nesting, soft_reset
from lifelong.envs.options import check_choice, check_count
from lifelong.envs.registry import register_env
from lifelong.envs.spaces import ActionLayout, ObservationFault, ObservationLayout, action_layout, observation_layout
from lifelong.envs.wrappers import ends_of_episodes, wrap_environments

ResetMemory = Literal["episode", "life"]
RESET_MEMORY = ("episode", "life")
_STATE_FORMAT = 2


class GymnasiumEnv(BatchedEnv):
    """B lives, each in a Gymnasium environment of its own.

    With ``reset_memory="episode"`` a life is an episode: it ends where the environment says terminated or truncated
    (where it says both, termination wins: there is nothing to bootstrap from). With ``"life"`` those ends are soft
    resets; only ``life_steps`` cuts a life. When the cut falls on the end of an episode, ``final_observation`` is the
    first of the episode that the life would have gone on with, which is what its value must be taken from.

    What an environment says in ``info["privileged"]`` (see ``life_wrapper``) goes to ``Step.privileged``, and in
    ``info["soft_reset"]`` to ``Step.soft_reset``; all else in ``info`` is dropped.

    Args:
        environments: B environments, used by this object alone.
        observations: how their observations are laid out.
        actions: how actions are handed to them.
        name: for messages.
        seed: environment i starts from child first_life + i of SeedSequence(seed), whatever B is, and draws on from
            there.
        reset_memory: which ends clear the memory.
        life_steps: length of a life with ``reset_memory="life"``; None: no end.
        references: reward levels.
        first_life: index of the first life, to split a batch over processes.
    """

    state_is_tensors = False

    def __init__(
        self,
        environments: Sequence[gymnasium.Env[Any, Any]],
        observations: ObservationLayout,
        actions: ActionLayout,
        *,
        name: str,
        seed: int,
        reset_memory: ResetMemory = "episode",
        life_steps: int | None = None,
        references: References | None = None,
        first_life: int = 0,
    ) -> None:
        check_choice(name, "reset_memory", reset_memory, RESET_MEMORY)
        if life_steps is not None:
            check_count(name, "life_steps", life_steps)
            if reset_memory == "episode":
                raise ValueError(
                    f"{name}: life_steps needs reset_memory=life; with reset_memory=episode use max_episode_steps"
                )
        if reset_memory == "life":
            check_nesting(name, environments[0])
        self.name = name
        self.num_lives = len(environments)
        self.observation_spec, self.action_spec = observations.spec, actions.spec
        self.references = references
        self.lifelong = reset_memory == "life"
        self._environments = list(environments)
        self._observations, self._actions = observations, actions
        first = check_count(name, "first_life", first_life, low=0)
        self._seeds = life_seeds(check_count(name, "seed", seed, low=0), first + self.num_lives)[first:]
        self._life_steps = life_steps
        self._life_step = np.zeros(self.num_lives, np.int64)
        self._total_steps = 0
        self._started = False
        self.privileged: dict[str, Tensor] = {}

    @property
    def environments(self) -> tuple[gymnasium.Env[Any, Any], ...]:
        """The environments themselves, one per life, to look at."""
        return tuple(self._environments)

    def reset(self) -> Observation:
        """First observations of new lives. The seeds are used once: a second call draws on from the same streams."""
        arrays = self._observations.allocate(self.num_lives)
        self._life_step.fill(0)
        infos: list[Mapping[str, Any]] = []
        index = 0
        try:
            for index, environment in enumerate(self._environments):
                seed = None if self._started else self._seeds[index]
                observation, info = environment.reset(seed=seed)
                self._observations.write(arrays, index, observation)
                infos.append(info)
        except Exception as error:
            raise self._fault(index, error) from error
        self._started = True
        self.privileged = _privileged(infos)
        return self._finish(arrays)

    def step(self, action: Tensor) -> Step:
        if not self._started:
            raise RuntimeError(f"{self.name}: call reset() or load_state_dict() before step()")
        try:
            actions = self._actions.decode(action)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error} (at step {self._total_steps} of the batch)") from None
        if len(actions) != self.num_lives:
            raise ValueError(f"{self.name}: got {len(actions)} actions for {self.num_lives} lives")
        self._life_step += 1
        self._total_steps += 1
        cut = [False] * self.num_lives
        if self._life_steps is not None:
            cut = (self._life_step >= self._life_steps).tolist()

        rewards = np.zeros(self.num_lives, np.float32)
        terminated, truncated, restarted = np.zeros((3, self.num_lives), np.bool_)
        observations = self._observations.allocate(self.num_lives)
        final_observations: list[np.ndarray] | None = None
        write, lifelong = self._observations.write, self.lifelong
        infos: list[Mapping[str, Any]] = []
        index = 0
        try:
            for index, environment in enumerate(self._environments):
                observation, rewards[index], is_terminated, is_truncated, info = environment.step(actions[index])
                episode_over = is_terminated or is_truncated
                restarted[index] = info.get(SOFT_RESET, False)
                if episode_over or cut[index]:
                    life_over = cut[index] if lifelong else True
                    if lifelong and episode_over:
                        observation, info = soft_reset(environment)
                        restarted[index] = True
                    if life_over:
                        restarted[index] = False
                        terminated[index] = is_terminated and not lifelong
                        truncated[index] = not terminated[index]
                        if final_observations is None:
                            final_observations = self._observations.allocate(self.num_lives)
                        write(final_observations, index, observation)
                        observation, info = environment.reset()
                write(observations, index, observation)
                infos.append(info)
        except Exception as error:
            raise self._fault(index, error) from error
        if not np.isfinite(rewards).all():
            index = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise self._fault(index, f"the reward is {rewards[index]}, not a finite number")
        final = None if final_observations is None else self._finish(final_observations)
        self.privileged = _privileged(infos)
        step = Step(
            observation=self._finish(observations),
            reward=torch.from_numpy(rewards),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            soft_reset=torch.from_numpy(restarted),
            final_observation=final,
            privileged=self.privileged,
        )
        if final is not None:
            self._life_step[terminated | truncated] = 0
        return step

    def state_dict(self) -> dict[str, Any]:
        """The environments, pickled with their generators, and the counters.

        Raises:
            RuntimeError: an environment that cannot be pickled.
        """
        try:
            environments = pickle.dumps(self._environments)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RuntimeError(
                f"{self.name}: its state cannot be saved, because the environment cannot be pickled: {error}"
            ) from error
        return {
            "format": _STATE_FORMAT,
            "name": self.name,
            "environments": environments,
            "life_step": torch.from_numpy(self._life_step.copy()),
            "total_steps": self._total_steps,
            "started": self._started,
            "privileged": dict(self.privileged),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. It is unpickled: load only what you trust. ValueError: a state of another environment."""
        check_state(state, _STATE_FORMAT, self.name, self.num_lives)
        for environment in self._environments:
            environment.close()
        self._environments = pickle.loads(state["environments"])
        self._life_step = state["life_step"].numpy().copy()
        self._total_steps = int(state["total_steps"])
        self._started = bool(state["started"])
        self.privileged = dict(state["privileged"])

    def close(self) -> None:
        for environment in self._environments:
            environment.close()

    def _finish(self, arrays: Sequence[np.ndarray]) -> Observation:
        try:
            return self._observations.finish(arrays)
        except ObservationFault as fault:
            raise self._fault(fault.row, fault) from fault

    def _fault(self, index: int, reason: object) -> EnvironmentFault:
        return environment_fault(self.name, index, int(self._life_step[index]), self._total_steps, reason)


def _privileged(infos: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """What the environments tell of what is hidden, side by side: [B, ...] by name."""
    told = [info.get(PRIVILEGED, {}) for info in infos]
    return {key: torch.from_numpy(np.stack([np.asarray(one[key]) for one in told])) for key in told[0]}


def environment_fault(
    name: str, index: int | None, life_step: int, total_steps: int, reason: object
) -> EnvironmentFault:
    """The fault of environment ``index`` (None: a vector environment that does not say which), in one line."""
    what = " ".join(str(reason).split())
    if isinstance(reason, Exception) and not isinstance(reason, ObservationFault):
        what = f"{type(reason).__name__}: {what}"
    who = f"vector environment ({name})" if index is None else f"environment {index} ({name})"
    when = f"step {total_steps}" if index is None else f"step {life_step} of its life (step {total_steps} of the batch)"
    return EnvironmentFault(f"{who} failed in {when}: {what}")


def check_state(state: Mapping[str, Any], format: int, name: str, num_lives: int) -> None:
    """ValueError: ``state`` is of another format, environment or number of lives."""
    if state.get("format") != format or state.get("name") != name:
        raise ValueError(f"{name}: this state belongs to the environment {state.get('name')!r}")
    if len(state["life_step"]) != num_lives:
        raise ValueError(f"{name}: this state holds {len(state['life_step'])} lives, not {num_lives}")


def life_seeds(seed: int, num_lives: int) -> list[int]:
    """One seed per life from SeedSequence(seed): life i's is the same for every B, and neighbouring roots share none.

    They stay below 2^31, because some environments hand theirs to C.
    """
    return [int(child.generate_state(1)[0] >> 1) for child in np.random.SeedSequence(seed).spawn(num_lives)]


def build_environment(
    name: str, id: str, max_episode_steps: int | None, options: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    """``gymnasium.make`` with errors of one line (ValueError): an unknown id, options that the environment refuses."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is out of date.*")
            return gymnasium.make(id, max_episode_steps=max_episode_steps, disable_env_checker=True, **options)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ValueError(f"{name}: cannot make id={id!r}: {' '.join(str(error).split())}") from error
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"{name}: {id} refuses its options {dict(options)}: {' '.join(str(error).split())}") from error


@register_env("gymnasium")
def make_gymnasium(
    num_lives: int,
    seed: int,
    id: str = "CartPole-v1",
    reset_memory: ResetMemory = "episode",
    life_steps: int | None = None,
    max_episode_steps: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Mapping[str, Any]] = (),
    first_life: int = 0,
) -> GymnasiumEnv:
    """B environments of a Gymnasium id.

    Args:
        num_lives: B.
        seed: root of the environments' seeds.
        id: a registered Gymnasium id.
        reset_memory: "episode": ends of episodes end the life; "life": they are soft resets.
        life_steps: with reset_memory="life", cut a life after this many steps; None: never.
        max_episode_steps: truncate episodes after this many steps; None: the id's own limit; -1: no limit.
        kwargs: passed on to ``gymnasium.make``.
        wrappers: what is put around each environment, the innermost first: ``name`` and options, see ``wrappers``.
        first_life: index of the first life, to split a batch over processes.

    Raises:
        ValueError: an unknown id or option, or a wrapper that does not fit.
        UnsupportedSpace: an observation or action space that is not served.
    """
    check_count("gymnasium", "num_lives", num_lives)
    limit = episode_limit("gymnasium", "max_episode_steps", max_episode_steps)
    options = dict(kwargs or {})
    if ends_of_episodes("gymnasium", wrappers, reset_memory, "max_episode_steps", limit) == "none":
        limit = -1
    environments = [build_environment("gymnasium", id, limit, options) for _ in range(num_lives)]
    environments = wrap_environments("gymnasium", environments, wrappers)
    try:
        observations = observation_layout(environments[0].observation_space, id)
        actions = action_layout(environments[0].action_space, id)
    except UnsupportedSpace as error:
        hint = (
            " (MiniGrid and BabyAI ids are served by name=minigrid)" if id.startswith(("MiniGrid-", "BabyAI-")) else ""
        )
        raise UnsupportedSpace(f"{error}{hint}") from None
    return GymnasiumEnv(
        environments,
        observations,
        actions,
        name=id,
        seed=seed,
        reset_memory=reset_memory,
        life_steps=life_steps,
        references=None if limit is not None or options or wrappers else EPISODE_REFERENCES.get(id),
        first_life=first_life,
    )


def episode_limit(env: str, option: str, value: float | None) -> int | None:
    """``value`` as a Python int (Gymnasium and MiniGrid accept no other), if it is None, -1 or at least 1."""
    if value is None:
        return None
    whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())  # 1e6 is a float to YAML
    if isinstance(value, bool) or not whole or (value < 1 and value != -1):
        raise ValueError(
            f"{env}: {option}={value!r} is not allowed; allowed: a positive integer, -1 (no limit) or null"
        )
    return int(value)
