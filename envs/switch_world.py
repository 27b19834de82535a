"""``switch_world``: a MiniGrid room that never resets, with coloured balls, one colour of which is worth collecting.

A ball that is picked up pays and appears elsewhere. Which colour pays is hidden and switches on a schedule, whatever
the agent does; colours recur. What was learned a switch ago is wrong now, and the present observation says nothing of
it: an agent has to remember what paid.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from minigrid.core.actions import Actions
from minigrid.core.constants import COLOR_NAMES
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Ball
from minigrid.minigrid_env import MiniGridEnv

from lifelong.envs.gymnasium_env import GymnasiumEnv
from lifelong.envs.life_wrapper import PRIVILEGED, LifeStreams, ScheduleClock
from lifelong.envs.minigrid_env import minigrid_layout
from lifelong.envs.minigrid_observation import PartialView
from lifelong.envs.options import check_choice, check_count, check_probability
from lifelong.envs.random_streams import Stream
from lifelong.envs.registry import register_env
from lifelong.envs.schedules import Hazard, Markov, Schedule
from lifelong.envs.spaces import DiscreteActions
from lifelong.envs.switch_world_references import switch_world_references
from lifelong.envs.switch_world_ways import PICK_UP, Cell, shortest_way
from lifelong.envs.wrapper_continuing import NO_STEP_LIMIT

ID = "lifelong/SwitchWorld-v0"
SWITCHING = ("markov", "hazard")
COLOURS = tuple(COLOR_NAMES)


class SwitchWorldEnv(MiniGridEnv):
    """One room. Actions: left, right, forward, pick up. A ball pays +1 if its colour is the rewarded one, else -1.

    ``info["privileged"]``: ``rewarded_colour`` (0 to K-1), ``steps_since_change``, and the ``good`` and ``bad`` picks
    of this life; on request ``oracle_action``, the next on the shortest way to the rewarded ball, or where others block
    it, to any.

    Args:
        size: of the room, walls included.
        colours: K, one ball each.
        hazard: probability per step that the rewarded colour switches.
        switching: "markov": to another colour, uniformly; "hazard": to any, the present one included.
        feedback: probability that a pick pays what it is worth; else it pays the opposite.
        view_size: cells on a side of the agent's view, odd.
        tell_oracle: whether to search for ``oracle_action`` at every step.
    """

    def __init__(
        self,
        size: int = 8,
        colours: int = 4,
        hazard: float = 0.001,
        switching: Literal["markov", "hazard"] = "markov",
        feedback: float = 1.0,
        view_size: int = 7,
        tell_oracle: bool = False,
        render_mode: str | None = None,
    ) -> None:
        check_count("switch_world", "size", size, low=5, high=100)
        check_count("switch_world", "colours", colours, low=2, high=len(COLOURS))
        if check_count("switch_world", "view_size", view_size, low=3) % 2 == 0:
            raise ValueError(f"switch_world: view_size={view_size} is not allowed; allowed: odd integers of at least 3")
        check_choice("switch_world", "switching", switching, SWITCHING)
        self.hazard, self.switching = check_probability("switch_world", "hazard", hazard), switching
        self.feedback = check_probability("switch_world", "feedback", feedback)
        self.colours, self.tell_oracle = colours, tell_oracle
        self.schedule: Schedule = Markov(colours, hazard) if switching == "markov" else Hazard(0.0, colours, hazard)
        self.streams = LifeStreams()
        self._since = self.good = self.bad = 0
        super().__init__(
            mission_space=MissionSpace(mission_func=_mission),
            grid_size=size,
            max_steps=NO_STEP_LIMIT,
            agent_view_size=view_size,
            render_mode=render_mode,
        )
        self.action_space = spaces.Discrete(PICK_UP + 1)

    @property
    def rewarded(self) -> int:
        """The colour that pays now, 0 to K-1."""
        return int(self.clock.value)

    def balls(self) -> dict[Cell, int]:
        """Where which colour lies."""
        width = self.grid.width
        return {
            (i % width, i // width): COLOURS.index(cell.color)
            for i, cell in enumerate(self.grid.grid)
            if isinstance(cell, Ball)
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new life."""
        self.streams.begin_life(seed)
        self.clock = ScheduleClock(self.schedule, self.streams.generator(Stream.SCHEDULE))
        self._world = self.streams.generator(Stream.WORLD)
        self._noise = self.streams.generator(Stream.NOISE)
        self.good = self.bad = 0
        observation, info = super().reset(seed=seed, options=options)
        return observation, self._tell(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is out of range; allowed: 0 to {PICK_UP}")
        reward = self._pick_up() if action == PICK_UP else 0.0
        observation, _, _, _, info = super().step(Actions.done if action == PICK_UP else action)
        colour = self.rewarded
        self.clock.advance()
        self._since = 0 if self.rewarded != colour else self._since + 1
        return observation, reward, False, False, self._tell(info)

    def _pick_up(self) -> float:
        ahead = (int(self.front_pos[0]), int(self.front_pos[1]))
        ball = self.grid.get(*ahead)
        if not isinstance(ball, Ball):
            return 0.0
        right = COLOURS.index(ball.color) == self.rewarded
        self.good, self.bad = self.good + right, self.bad + (not right)
        self._put(ball)
        self.grid.set(*ahead, None)
        truthful = self._noise.random() < self.feedback
        return 1.0 if right == truthful else -1.0

    def _gen_grid(self, width: int, height: int) -> None:
        self._since = 0
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        self.agent_pos = self._draw_free_cell()
        self.agent_dir = int(self._world.integers(4))
        for colour in COLOURS[: self.colours]:
            self._put(Ball(colour))
        self.mission = _mission()

    def _put(self, ball: Ball) -> None:
        cell = self._draw_free_cell()
        self.grid.set(*cell, ball)
        ball.cur_pos = np.array(cell)

    def _draw_free_cell(self) -> Cell:
        cells = [(i % self.width, i // self.width) for i, thing in enumerate(self.grid.grid) if thing is None]
        free = [cell for cell in cells if cell != tuple(self.agent_pos)]
        return free[int(self._world.integers(len(free)))]

    def _tell(self, info: dict[str, Any]) -> dict[str, Any]:
        counts = {"good": self.good, "bad": self.bad}
        hidden = {"rewarded_colour": self.rewarded, "steps_since_change": self._since, **counts}
        if self.tell_oracle:
            balls = self.balls()
            rewarded = {cell for cell, colour in balls.items() if colour == self.rewarded}
            way = shortest_way(self, rewarded) or shortest_way(self, set(balls))
            assert way is not None, "a ball stands beside whoever is walled in by balls"
            hidden["oracle_action"] = way[0]
        return {**info, PRIVILEGED: hidden}


def _mission() -> str:
    return "collect the balls of the right colour"


@register_env("switch_world")
def make_switch_world(
    num_lives: int,
    seed: int,
    size: int = 8,
    colours: int = 4,
    hazard: float = 0.001,
    switching: Literal["markov", "hazard"] = "markov",
    feedback: float = 1.0,
    view_size: int = 7,
    tell_oracle: bool = False,
    life_steps: int | None = None,
) -> GymnasiumEnv:
    """B rooms whose lives never end.

    Args:
        num_lives: B.
        seed: root of the environments' seeds.
        size: of the room, walls included.
        colours: K, one ball each; one colour is rewarded.
        hazard: probability per step that the rewarded colour switches.
        switching: "markov": to another colour; "hazard": to any, the present one included.
        feedback: probability that a pick pays what it is worth; else it pays the opposite.
        view_size: cells on a side of the agent's view, odd.
        tell_oracle: search for the oracle's action at every step, for ``Step.privileged``.
        life_steps: cut a life after this many steps; None: never.

    Raises:
        ValueError: an option out of range.
    """
    check_count("switch_world", "num_lives", num_lives)
    options = {"size": size, "colours": colours, "hazard": hazard, "switching": switching, "feedback": feedback}
    options |= {"view_size": view_size, "tell_oracle": tell_oracle}
    environments = [SwitchWorldEnv(**options) for _ in range(num_lives)]  # type: ignore[arg-type]
    for environment in environments:
        PartialView(environment).install()
    return GymnasiumEnv(
        environments,
        minigrid_layout(environments[0], "switch_world", direction=False, mission_length=None),
        DiscreteActions(PICK_UP + 1),
        name="switch_world",
        seed=seed,
        reset_memory="life",
        life_steps=life_steps,
        references=switch_world_references(size, colours, hazard, switching, feedback),
    )


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=SwitchWorldEnv)
