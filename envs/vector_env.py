"""An already-built Gymnasium VectorEnv behind the batched interface: ``from_vector_env(vector_env, seed=0)``."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from lifelong.envs.base import BatchedEnv, EnvironmentFault, Observation, Step
from lifelong.envs.gymnasium_env import RESET_MEMORY, ResetMemory, check_state, environment_fault, life_seeds
from lifelong.envs.options import check_choice, check_count
from lifelong.envs.spaces import ObservationFault, action_layout, observation_layout

_STATE_FORMAT = 1


def from_vector_env(
    vector_env: VectorEnv[Any, Any, Any], *, seed: int, reset_memory: ResetMemory = "episode"
) -> BatchedEnv:
    """Adapt a Gymnasium VectorEnv.

    Autoreset modes SAME_STEP and DISABLED are served (in the latter, ended episodes are restarted here, with a reset
    mask). NEXT_STEP is refused: after each end of an episode it returns a filler row, whose action was ignored and
    whose reward is 0, and which must not be learned from.

    Args:
        vector_env: used by this object alone from now on.
        seed: of its first reset; SyncVectorEnv and AsyncVectorEnv get one seed per life, drawn as in ``GymnasiumEnv``.
        reset_memory: "episode": ends of episodes end the life; "life": they are soft resets, and lives have no end.

    Raises:
        ValueError: NEXT_STEP, or a vector environment that does not state its autoreset mode.
        UnsupportedSpace: an observation or action space that is not served.
    """
    return GymnasiumVectorEnv(vector_env, seed=seed, reset_memory=reset_memory)


class GymnasiumVectorEnv(BatchedEnv):
    """See ``from_vector_env``. Whatever the vector environment overwrites later (``copy=False``) is copied at once."""

    state_is_tensors = False

    def __init__(self, vector_env: VectorEnv[Any, Any, Any], *, seed: int, reset_memory: ResetMemory) -> None:
        spec = getattr(vector_env, "spec", None)
        self.name = type(vector_env.unwrapped).__name__ if spec is None else spec.id
        check_choice(self.name, "reset_memory", reset_memory, RESET_MEMORY)
        check_count(self.name, "seed", seed, low=0)
        mode = vector_env.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            found = "does not state its autoreset mode" if mode is None else f"restarts episodes in mode {mode.name}"
            remedy = "build it with autoreset_mode=AutoresetMode.SAME_STEP"
            raise ValueError(f"{self.name} {found}; served are SAME_STEP and DISABLED: {remedy}")
        self.num_lives = int(vector_env.num_envs)
        self.lifelong = reset_memory == "life"
        self._same_step = mode == AutoresetMode.SAME_STEP
        self._vector_env = vector_env
        self._observations = observation_layout(vector_env.single_observation_space, self.name)
        self._actions = action_layout(vector_env.single_action_space, self.name)
        self.observation_spec, self.action_spec = self._observations.spec, self._actions.spec
        one_seed_per_life = isinstance(vector_env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._seed: int | list[int] | None = life_seeds(seed, self.num_lives) if one_seed_per_life else seed
        self._life_step = np.zeros(self.num_lives, np.int64)
        self._total_steps = 0

    def reset(self) -> Observation:
        """First observations of new lives. The seeds are used once: a second call draws on from the same streams."""
        try:
            observation, _ = self._vector_env.reset(seed=self._seed)
        except Exception as error:
            raise self._fault(None, error) from error
        self._seed = None
        self._life_step.fill(0)
        return self._take(observation)

    def step(self, action: Tensor) -> Step:
        actions = np.stack([np.asarray(one) for one in self._actions.decode(action)])
        self._life_step += 1
        self._total_steps += 1
        try:
            observation, rewards, terminated, truncated, infos = self._vector_env.step(actions)
            terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
            over = terminated | truncated
            final = None
            if over.any():
                if self._same_step:
                    final = self._take_final(infos, over)
                else:
                    final = self._take(observation)
                    observation, _ = self._vector_env.reset(options={"reset_mask": over.copy()})
        except EnvironmentFault:
            raise
        except Exception as error:
            raise self._fault(None, error) from error
        reward = np.array(rewards, np.float32)
        if not np.isfinite(reward).all():
            index = int(np.flatnonzero(~np.isfinite(reward))[0])
            raise self._fault(index, f"the reward is {reward[index]}, not a finite number")
        no = np.zeros_like(over)
        step = Step(
            observation=self._take(observation),
            reward=torch.from_numpy(reward),
            terminated=torch.from_numpy(no if self.lifelong else terminated),
            truncated=torch.from_numpy(no.copy() if self.lifelong else truncated & ~terminated),
            soft_reset=torch.from_numpy(over if self.lifelong else no),
            final_observation=None if self.lifelong else final,
        )
        if not self.lifelong:
            self._life_step[over] = 0
        return step

    def state_dict(self) -> dict[str, Any]:
        """The vector environment, pickled, and the counters. RuntimeError: it cannot be pickled (it holds a lambda)."""
        try:
            vector_env = pickle.dumps(self._vector_env)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RuntimeError(
                f"{self.name}: its state cannot be saved, because the vector environment cannot be pickled: {error}"
            ) from error
        return {
            "format": _STATE_FORMAT,
            "name": self.name,
            "vector_env": vector_env,
            "seed": self._seed,
            "life_step": torch.from_numpy(self._life_step.copy()),
            "total_steps": self._total_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. It is unpickled: load only what you trust. ValueError: a state of another environment."""
        check_state(state, _STATE_FORMAT, self.name, self.num_lives)
        self._vector_env.close()
        self._vector_env = pickle.loads(state["vector_env"])
        self._seed = state["seed"]
        self._life_step = state["life_step"].numpy().copy()
        self._total_steps = int(state["total_steps"])

    def close(self) -> None:
        self._vector_env.close()

    def _take(self, observation: Any) -> Observation:
        arrays = self._observations.allocate(self.num_lives)
        try:
            self._observations.write_batch(arrays, observation)
            return self._observations.finish(arrays)
        except ObservationFault as fault:
            raise self._fault(fault.row, fault) from fault

    def _take_final(self, infos: Mapping[str, Any], over: np.ndarray) -> Observation:
        """The final observations of SAME_STEP: an object array with one observation per ended life, or a batch."""
        if "final_obs" not in infos:
            raise ValueError("an episode ended, but the info holds no 'final_obs' (SAME_STEP promises it)")
        finals = infos["final_obs"]
        arrays = self._observations.allocate(self.num_lives)
        try:
            if isinstance(finals, np.ndarray) and finals.dtype == object:
                for index in np.flatnonzero(over):
                    self._observations.write(arrays, int(index), finals[index])
            else:
                self._observations.write_batch(arrays, finals)
            return self._observations.finish(arrays)
        except ObservationFault as fault:
            raise self._fault(fault.row, fault) from fault

    def _fault(self, index: int | None, reason: object) -> EnvironmentFault:
        base = self._vector_env.unwrapped
        if isinstance(base, AsyncVectorEnv) and isinstance(reason, OSError | EOFError):
            sentinels = [worker.sentinel for worker in base.processes]
            gone = wait(sentinels, timeout=5.0)  # a pipe closes a little before its process has ended
            if gone:
                index, reason = min(map(sentinels.index, gone)), "its process is gone"
        life_step = 0 if index is None else int(self._life_step[index])
        return environment_fault(self.name, index, life_step, self._total_steps, reason)
