"""Players of ``switch_world`` that see the whole room: what references are measured with."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from lifelong.envs.measurement import Estimate
from lifelong.envs.switch_world import PICK_UP, SwitchWorldEnv
from lifelong.envs.switch_world_ways import shortest_way


class Player(ABC):
    """Chooses colours; walks to the nearest ball of a chosen colour, and where none can be reached, to any."""

    def __init__(self, environment: SwitchWorldEnv, seed: int = 0) -> None:
        self.environment = environment
        self.random = np.random.default_rng(seed)
        self._way: list[int] = []

    @abstractmethod
    def choose(self) -> set[int]:
        """The colours that are good enough now."""

    def passed(self) -> bool:
        """A step has passed: whether to choose again before the present way has ended."""
        return False

    def learn(self, colour: int, reward: float) -> None:  # noqa: B027 - some have nothing to learn
        """A ball of ``colour`` has paid ``reward``."""

    def play(self, steps: int) -> float:
        """Mean reward of a step."""
        environment, total = self.environment, 0.0
        for _ in range(steps):
            if not self._way:
                balls = environment.balls()
                colours = self.choose()
                chosen = {cell for cell, colour in balls.items() if colour in colours}
                way = shortest_way(environment, chosen) or shortest_way(environment, set(balls))
                assert way is not None, "a ball stands beside whoever is walled in by balls"
                self._way = way
            action = self._way.pop(0)
            colour = None
            if action == PICK_UP:
                colour = environment.balls()[(int(environment.front_pos[0]), int(environment.front_pos[1]))]
            reward = environment.step(action)[1]
            total += reward
            if colour is not None:
                self.learn(colour, reward)
            if self.passed():
                self._way = []
        return total / steps


class Oracle(Player):
    """Knows the rewarded colour, at every step."""

    def __init__(self, environment: SwitchWorldEnv, seed: int = 0) -> None:
        super().__init__(environment, seed)
        self._colour = -1

    def choose(self) -> set[int]:
        self._colour = self.environment.rewarded
        return {self._colour}

    def passed(self) -> bool:
        return self.environment.rewarded != self._colour


class UniformPicks(Player):
    """Walks to a ball of a colour drawn uniformly: what collecting is worth without knowing the colour."""

    def choose(self) -> set[int]:
        return {int(self.random.integers(self.environment.colours))}


class Eliminator(Player):
    """Goes for the colours that are most probable after all it was paid (exact Bayesian filter of the switching).

    With truthful feedback, that is elimination: a colour that paid is kept until it does not, one that cost is dropped.
    """

    def __init__(self, environment: SwitchWorldEnv, seed: int = 0) -> None:
        super().__init__(environment, seed)
        self.belief = np.full(environment.colours, 1 / environment.colours)

    def choose(self) -> set[int]:
        return set(np.flatnonzero(self.belief >= self.belief.max() - 1e-9).tolist())

    def learn(self, colour: int, reward: float) -> None:
        # The reward was earned before the switch that this step may have brought; ``passed`` follows with the switch.
        right = self.environment.feedback if reward > 0 else 1 - self.environment.feedback
        self.belief *= np.where(np.arange(len(self.belief)) == colour, right, 1 - right)
        if self.belief.sum() == 0:  # cannot be: the filter holds every switch possible, unless the hazard is 0
            raise ArithmeticError("what was paid is impossible under the rules that the filter assumes")
        self.belief /= self.belief.sum()

    def passed(self) -> bool:
        environment, others = self.environment, len(self.belief) - 1
        hazard = environment.hazard
        if environment.switching == "hazard":
            self.belief = (1 - hazard) * self.belief + hazard / (others + 1)
        else:
            self.belief = (1 - hazard) * self.belief + hazard * (1 - self.belief) / others
        return False


def measure_player(kind: type[Player], lives: int, steps: int, seed: int = 0, **options: object) -> Estimate:
    """Reward of a step over ``lives`` lives of ``steps`` steps, the lives being the samples."""
    rates = []
    for life in range(lives):
        environment = SwitchWorldEnv(**options)  # type: ignore[arg-type]
        environment.gen_obs = dict  # nothing looks at it, and it is most of a step
        environment.reset(seed=1000 * seed + life)
        rates.append(kind(environment, life).play(steps))
    return Estimate(float(np.mean(rates)), float(np.std(rates, ddof=1) / lives**0.5))


def measure_random(lives: int, steps: int, seed: int = 0, **options: object) -> Estimate:
    """The same for uniform random actions."""
    rates = []
    for life in range(lives):
        environment = SwitchWorldEnv(**options)  # type: ignore[arg-type]
        environment.gen_obs = dict
        environment.reset(seed=1000 * seed + life)
        actions = np.random.default_rng(life).integers(PICK_UP + 1, size=steps)
        rates.append(sum(environment.step(int(action))[1] for action in actions) / steps)
    return Estimate(float(np.mean(rates)), float(np.std(rates, ddof=1) / lives**0.5))
