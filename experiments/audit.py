"""``lifelong audit env=NAME``: does the task ask for memory at all?

Many tasks that are called memory tasks do not. Three things are looked at: what random actions get; what an agent
without memory learns to get in a fixed budget; and, for MiniGrid's memory tasks, whether a pose that the agent can take
shows cue and goal together. The agent is that of every experiment, with ``memory=none``: it sees the last transition
(observation, action and reward of the step before) beside the present observation, as all agents here do. What is known
to be earned without memory, with the last transition and without, is judged too.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

import torch
from minigrid.envs import MemoryEnv

from lifelong.agents import NonFinite
from lifelong.agents.statistics import LifeStatistics
from lifelong.envs import BatchedEnv, EnvironmentFault
from lifelong.envs.gymnasium_env import GymnasiumEnv
from lifelong.envs.minigrid_leaks import LeakSearch, search_leaks
from lifelong.experiments.build import build_env, build_trainer, set_up_process
from lifelong.experiments.config import RunConfig, load_config
from lifelong.experiments.errors import RunFailed, UserError
from lifelong.experiments.summary import metric_name

#: Score (0: random, 1: oracle) above which an agent without memory shows that none is needed.
LIMIT = 0.3
_STANDARD_ERRORS = 3.0  # by which the trained agent has to exceed the limit
_FRAMES, _RANDOM_FRAMES = 100_000, 20_000
_OWN_KEYS = ("oracle", "layouts")


@dataclasses.dataclass(frozen=True)
class Findings:
    """What the audit of one environment found. Scores are None where no oracle is known."""

    env: str
    per: str  # "step" or "episode"
    frames: int
    random: float
    memoryless: float
    memoryless_error: float  # standard error
    oracle: float | None
    known_memoryless: float | None  # the stored level of the best policy of the present observation
    known_last_transition: float | None  # the same, of the best that sees the last transition too
    guess: float | None  # what guessing between two answers gets
    leaks: LeakSearch | None

    def score(self, value: float) -> float | None:
        """Between random (0) and oracle (1)."""
        return None if self.oracle is None else (value - self.random) / (self.oracle - self.random)

    @property
    def limit(self) -> float:
        """The score that an agent without memory may reach."""
        guess = None if self.guess is None else self.score(self.guess)
        return LIMIT if guess is None else max(LIMIT, guess)

    def reasons(self) -> list[str]:
        """Why it is no memory task; empty if nothing speaks against it."""
        found = []
        if self.leaks is not None and self.leaks.leaking:
            found.append(str(self.leaks))
        trained, certain = self.score(self.memoryless), self.memoryless - _STANDARD_ERRORS * self.memoryless_error
        at_least = self.score(certain)
        if trained is not None and at_least is not None and at_least > self.limit:
            found.append(
                f"an agent without memory, trained for {self.frames:,} frames, scores {trained:.2f} (at least "
                f"{at_least:.2f}, {_STANDARD_ERRORS:g} standard errors lower), more than {self.limit:.2f}"
            )
        known = None if self.known_memoryless is None else self.score(self.known_memoryless)
        if known is not None and known > self.limit:
            found.append(f"the best known policy without memory scores {known:.2f}, more than {self.limit:.2f}")
            return found
        carried = None if self.known_last_transition is None else self.score(self.known_last_transition)
        if carried is not None and carried > self.limit:
            found.append(
                f"a known policy of the last transition scores {carried:.2f}, more than {self.limit:.2f}: for so much, "
                "an agent that sees its last transition needs no more memory than that"
            )
        return found

    @property
    def verdict(self) -> str:
        """In words."""
        if self.reasons():
            return "no memory task"
        return "undecided" if self.oracle is None else "memory task"

    def text(self) -> str:
        """For the terminal."""
        unit = "reward of a step" if self.per == "step" else "return of an episode"
        lines = [f"{self.env}: {unit}, and score (0 is random, 1 the oracle; no memory task above {self.limit:.2f})"]
        rows: list[tuple[str, float | None]] = [
            ("random actions", self.random),
            ("no memory, trained", self.memoryless),
        ]
        rows += [("no memory, best known", self.known_memoryless)]
        rows += [("last transition, known", self.known_last_transition), ("a guess between two", self.guess)]
        for name, value in [*rows, ("oracle", self.oracle)]:
            if value is not None:
                score = self.score(value)
                lines.append(f"  {name:<23} {value:8.3f}" + ("" if score is None else f"   score {score:6.3f}"))
        lines.append("  (the trained agent sees the last transition: observation, action and reward)")
        if self.leaks is not None:
            lines.append(f"  {self.leaks}")
        lines.append(f"verdict: {self.verdict}")
        lines += [f"  because {reason}" for reason in self.reasons()]
        if self.verdict == "undecided":
            lines.append("  because nothing is known of what is possible; give oracle=VALUE")
        return "\n".join(lines)


def audit(arguments: list[str]) -> int:
    """``lifelong audit env=NAME [frames=100000] [oracle=VALUE] [layouts=100] [key=value ...]``.

    Returns:
        0 for a memory task, 1 otherwise.

    Raises:
        UserError: a key or value that does not fit.
        RunFailed: the environment or the training failed.
    """
    own, config = _parse(arguments)
    device = set_up_process(config)
    try:
        findings = find(config, device, own.get("oracle"), int(own.get("layouts", 100)))
    except (NonFinite, EnvironmentFault) as error:
        raise RunFailed(str(error)) from error
    print(findings.text())
    return 0 if findings.verdict == "memory task" else 1


def find(config: RunConfig, device: torch.device, oracle: float | None, layouts: int) -> Findings:
    """Play at random, train without memory, search for poses.

    Args:
        config: with ``memory`` none.
        device: of the agent.
        oracle: what is possible, where the environment does not say.
        layouts: worlds in which poses are searched.
    """
    env = build_env(config, config.seed)
    metric = metric_name(env.references, env.lifelong)
    references, name = env.references, str(config.env.get("id") or env.name)
    grid = _memory_grid(env)
    guess = None
    if grid is not None:  # success pays 1 at most, and one end in two is right
        oracle, guess = oracle if oracle is not None or references is not None else 1.0, 0.5
    best = references.oracle if oracle is None and references is not None else oracle
    random = _random_level(env, metric, config.seed)
    if best is not None and best <= random:
        env.close()
        raise UserError(f"oracle={best:g}: must be more than random actions get, {random:.4g}")
    leaks = None if grid is None else search_leaks(grid, layouts, config.seed)
    env.close()
    memoryless, error = _trained_level(config, device, metric)
    return Findings(
        env=name,
        per="step" if metric.endswith("rate") else "episode",
        frames=config.frames,
        random=random,
        memoryless=memoryless,
        memoryless_error=error,
        oracle=best,
        known_memoryless=None if references is None else references.memoryless,
        known_last_transition=None if references is None else references.last_transition,
        guess=guess,
        leaks=leaks,
    )


def _memory_grid(env: BatchedEnv) -> MemoryEnv | None:
    """The first environment, if it is a MiniGrid task whose cue and goals are known."""
    base = env.environments[0].unwrapped if isinstance(env, GymnasiumEnv) else None
    return base if isinstance(base, MemoryEnv) else None


def _random_level(env: BatchedEnv, metric: str, seed: int) -> float:
    """What uniform random actions get, over at least ``_RANDOM_FRAMES`` frames and, in episodes, twice B of them."""
    played = LifeStatistics(env.num_lives, window=10**6)
    spec = env.action_spec.expand(env.num_lives, *env.action_spec.shape)
    torch.manual_seed(seed)
    env.reset()
    by_episode = metric.endswith("mean")
    while played.total_steps < _RANDOM_FRAMES or (by_episode and played.episodes < 2 * env.num_lives):
        if played.total_steps >= 20 * _RANDOM_FRAMES:
            break  # episodes of thousands of steps: fewer have to do
        step = env.step(spec.rand())
        played.add(step.reward, step.terminated | step.truncated, step.soft_reset, None)
    metrics = played.metrics()
    if metric not in metrics:
        raise UserError(f"no episode ended in {played.total_steps:,} random steps; give the environment a step limit")
    return metrics[metric]


def _trained_level(config: RunConfig, device: torch.device, metric: str) -> tuple[float, float]:
    """What the agent without memory gets at the end of its training, and the standard error of that.

    The samples are the last 100 episodes, or the reward rates of the segments in the last quarter of the frames.
    """
    env = build_env(config, config.seed)
    trainer = build_trainer(config, env, device)
    rates: list[tuple[int, float]] = []
    while not trainer.done:
        rate = trainer.update()["rollout/reward_rate"]
        rates.append((trainer.frames, rate))
    env.close()
    samples = list(trainer.lives.statistics.returns)
    if metric.endswith("rate"):
        samples = [rate for frames, rate in rates if frames > 0.75 * trainer.frames]
    if len(samples) < 2:
        raise UserError("too few episodes ended in the budget; give more frames=")
    return statistics.fmean(samples), statistics.stdev(samples) / len(samples) ** 0.5


def _parse(arguments: list[str]) -> tuple[dict[str, float], RunConfig]:
    """The audit's own options, and the config of the run without memory."""
    own: dict[str, float] = {}
    rest: list[str] = []
    for word in arguments:
        key, _, value = word.partition("=")
        if key in _OWN_KEYS:
            try:
                own[key] = float(value)
            except ValueError:
                raise UserError(f"{word}: must be a number") from None
        else:
            rest.append(word)
    given = {word.partition("=")[0] for word in rest}
    if not given & {"env", "experiment"}:
        raise UserError("audit needs an environment: lifelong audit env=NAME [key=value ...]")
    if "memory" in given:
        raise UserError("memory: audit trains memory=none; leave it out")
    if not math.isfinite(own.get("oracle", 0.0)):
        raise UserError(f"oracle={own['oracle']:g}: must be a finite number")
    layouts = own.get("layouts", 1.0)
    if not layouts.is_integer() or layouts < 1:
        raise UserError(f"layouts={layouts:g}: must be an integer, 1 or more")
    frames: list[str] = [] if "frames" in given else [f"frames={_FRAMES}"]
    return own, load_config([*rest, "memory=none", *frames])
