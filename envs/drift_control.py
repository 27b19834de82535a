"""Balance a pole, or swing up a double pendulum, with hidden controls that are rewired while one does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.control_systems import SYSTEMS
from lifelong.envs.drift_control_learners import simulate_cartpole_learner
from lifelong.envs.measurement import Estimate, measure, oracle_policy, random_policy
from lifelong.envs.options import check_choice, check_count, check_flag, check_probability
from lifelong.envs.privileged import Privileged
from lifelong.envs.random_streams import Channel, Stream
from lifelong.envs.registry import register_env

EPISODE_STEPS = 500  # the limit of CartPole-v1


class DriftControlWorld(NamedTuple):
    """The physical state, and what the controls do."""

    state: Tensor  # [B, 4] float64, see ``control_systems``
    pending: Tensor  # [B, delay] float64: the forces under way, the next one first
    episode_step: Tensor  # [B] int64
    wiring: Tensor  # [B] int64: which of the permutations the controls have; hidden
    steps_since_change: Tensor  # [B] int64: 0 at the first step under a wiring
    changed: Tensor  # [B] bool: another wiring than a step ago


@register_env("drift_control")
class DriftControl(TensorEnv[DriftControlWorld]):
    """CartPole or Acrobot, in lives without end, whose controls mean now this and now that.

    Which force an action applies is hidden: a permutation of the actions (for CartPole: the sign of the push). With
    probability ``hazard`` per step another permutation takes over, uniformly, whatever the agent does, in the middle of
    an episode. The force that is chosen now acts ``delay`` steps later. Velocities are masked: of CartPole one sees x
    and theta, of Acrobot the cosines and sines of both angles.

    * ``cartpole``: 1 for every step after which the pole stands. Where it has fallen, or has stood for 500 steps, the
      world starts again (a soft reset); the mean return of such an episode is what is compared.
    * ``acrobot``: 1 where the tip comes over the line, and the world starts again.

    Drifting masses, lengths and gravity are no task for a memory (one fixed linear feedback balances CartPole under all
    of them) and are left out here. With ``hazard=0`` only the wiring drawn at birth is hidden.

    Observation: ``observation`` [B, P] float32 (or P + 2, with velocities), about unit size.
    Actions: 0..1 (cartpole) or 0..2 (acrobot).
    Privileged: ``oracle_action`` int64, ``regime`` int64, ``steps_since_change`` int64, ``changed`` bool (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        system: ``"cartpole"`` or ``"acrobot"``.
        hazard: probability per step that the controls are rewired.
        delay: steps until a force acts.
        velocities: show them too.
    """

    name = "drift_control"
    world_type = DriftControlWorld

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        system: Literal["cartpole", "acrobot"] = "cartpole",
        hazard: float = 0.01,
        delay: int = 0,
        velocities: bool = False,
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.system = SYSTEMS[check_choice(self.name, "system", system, tuple(SYSTEMS))]
        self.hazard = check_probability(self.name, "hazard", hazard)
        self.delay = check_count(self.name, "delay", delay, low=0, high=1000)
        self.shows_velocities = check_flag(self.name, "velocities", velocities)
        self.num_actions = len(self.system.forces)
        self.observation_size = self.system.num_positions + 2 * velocities
        self.observation_bound = self.system.bound
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)
        wirings = torch.tensor(list(itertools.permutations(range(self.num_actions))), device=self.device)
        self._forces = torch.tensor(self.system.forces, dtype=torch.float64, device=self.device)[wirings]
        self._action_for = wirings.argsort(dim=1)  # [wiring, index of a force] -> action

    @property
    def references(self) -> References:  # type: ignore[override]
        options = self.system.name, self.hazard, self.delay
        levels = drift_control_levels(*options)
        memoryless = None if self.shows_velocities else _BEST_MEMORYLESS.get(options)
        last_transition = None if self.shows_velocities else _BEST_LAST_TRANSITION.get(options)
        notes = {"oracle": "knows wiring and state, a fixed control law: " + _simulated(levels.oracle)}
        notes["random"] = _simulated(levels.random)
        if memoryless is not None:
            notes["memoryless"] = "the best policy of the observation that was found: " + _simulated(memoryless)
        if last_transition is not None:
            notes["last_transition"] = "the best that was found: " + _simulated(last_transition)
        if levels.learner is not None:
            notes["ideal_learner"] = (
                "reads the wiring from positions by the equations of motion, so that the ideal is no less: "
                + _simulated(levels.learner)
            )
        return References(
            per="episode" if self.system.name == "cartpole" else "step",
            random=levels.random.mean,
            oracle=levels.oracle.mean,
            memoryless=None if memoryless is None else memoryless.mean,
            last_transition=None if last_transition is None else last_transition.mean,
            ideal_learner=None if levels.learner is None else levels.learner.mean,
            notes=notes,
        )

    def birth_channels(self) -> Mapping[str, Channel]:
        return {"wiring": Channel(Stream.SCHEDULE), "state": Channel(Stream.WORLD, 4)}

    def step_channels(self) -> Mapping[str, Channel]:
        return {"change": Channel(Stream.SCHEDULE, 2)}

    def begin(self, draws: Mapping[str, Tensor]) -> DriftControlWorld:
        wiring = (draws["wiring"][:, 0] * len(self._forces)).to(torch.int64)
        zeros = torch.zeros_like(wiring)
        return DriftControlWorld(
            state=self.system.begin(draws["state"]),
            pending=torch.zeros(len(wiring), self.delay, dtype=torch.float64, device=self.device),
            episode_step=zeros,
            wiring=wiring,
            steps_since_change=zeros,
            changed=torch.zeros_like(zeros, dtype=torch.bool),
        )

    def restart(self, world: DriftControlWorld, draws: Mapping[str, Tensor]) -> DriftControlWorld:
        born = self.begin(draws)
        return world._replace(state=born.state, pending=born.pending, episode_step=born.episode_step)

    def advance(
        self, world: DriftControlWorld, action: Tensor, draws: Mapping[str, Tensor]
    ) -> Change[DriftControlWorld]:
        force, pending = self._forces[world.wiring, action], world.pending
        if self.delay:
            force, pending = pending[:, 0], torch.cat([pending[:, 1:], force[:, None]], dim=1)
        state = self.system.move(world.state, force)
        episode_step = world.episode_step + 1
        over = self.system.over(state)
        reward = over
        if self.system.name == "cartpole":
            reward, over = ~over, over | (episode_step >= EPISODE_STEPS)
        changed = draws["change"][:, 0] < self.hazard
        others = len(self._forces) - 1
        shift = 1 + (draws["change"][:, 1] * others).to(torch.int64)
        after = DriftControlWorld(
            state=state,
            pending=pending,
            episode_step=episode_step,
            wiring=torch.where(changed, (world.wiring + shift).remainder(others + 1), world.wiring),
            steps_since_change=(world.steps_since_change + 1).masked_fill(changed, 0),
            changed=changed,
        )
        return Change(after, reward.to(torch.float32), soft_reset=over)

    def observe(self, world: DriftControlWorld) -> Observation:
        shown = self.system.positions(world.state)
        if self.shows_velocities:
            shown = torch.cat([shown, self.system.velocities(world.state)], dim=1)
        return {"observation": shown.to(torch.float32)}

    def describe(self, world: DriftControlWorld) -> Mapping[str, Tensor]:
        return Privileged(
            {
                "oracle_action": lambda: self._oracle_action(world),
                "regime": world.wiring,
                "steps_since_change": world.steps_since_change,
                "changed": world.changed,
            }
        )

    def _oracle_action(self, world: DriftControlWorld) -> Tensor:
        """What applies the wanted force, at the time when it will act."""
        state = world.state
        for force in world.pending.unbind(1):
            state = self.system.move(state, force)
        return self._action_for[world.wiring, self.system.wanted(state)]


class Levels(NamedTuple):
    """What is earned in one setting: per episode of CartPole, per step of Acrobot."""

    random: Estimate
    oracle: Estimate
    learner: Estimate | None  # of CartPole only


# `python benchmarks/stored_references.py --only drift_control`, by (system, hazard, delay).
_STORED_LEVELS = {
    ("cartpole", 0.01, 0): Levels(Estimate(21.22161, 0.03908), Estimate(500.0, 0.0), Estimate(499.99731, 0.00081)),
    ("acrobot", 0.01, 0): Levels(Estimate(0.0004224, 0.0000115), Estimate(0.0124507, 0.0000167), None),
}
_BEST_MEMORYLESS = {
    ("cartpole", 0.01, 0): Estimate(27.540, 0.135),
    ("acrobot", 0.01, 0): Estimate(0.0015260, 0.0000494),
}
_BEST_LAST_TRANSITION = {
    ("cartpole", 0.01, 0): Estimate(136.792, 1.680),
    ("acrobot", 0.01, 0): Estimate(0.0027396, 0.0000909),
}


@lru_cache(maxsize=64)
def drift_control_levels(system: str, hazard: float, delay: int) -> Levels:
    """The levels of a setting (stored for the default options, else a few seconds of simulation)."""
    stored = _STORED_LEVELS.get((system, hazard, delay))
    return simulate_levels(system, hazard, delay) if stored is None else stored


def simulate_levels(
    system: str, hazard: float, delay: int, lives: int = 256, steps: int = 1000, seed: int = 0
) -> Levels:
    """Simulate random actions, the oracle and the learner, after a burn-in of 500 steps."""

    def build() -> DriftControl:
        return DriftControl(lives, seed, system=system, hazard=hazard, delay=delay)  # type: ignore[arg-type]

    env = build()
    per: Literal["episode", "step"] = "episode" if system == "cartpole" else "step"
    random = measure(env, random_policy(env.num_actions, seed), steps, per, burn_in=500)
    oracle = measure(build(), oracle_policy, steps, per, burn_in=500)
    learner = simulate_cartpole_learner(build(), steps, burn_in=500) if system == "cartpole" else None
    return Levels(random, oracle, learner)


def _simulated(level: Estimate) -> str:
    return f"simulation, standard error {level.standard_error:.2g}"
