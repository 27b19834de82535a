"""The summary of a run: what it reached, against the references of its environment. Read from ``progress.csv``, so it
survives a kill.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from lifelong.envs import BatchedEnv, References
from lifelong.experiments.config import RunConfig
from lifelong.experiments.run_folder import write_json
from lifelong.experiments.run_log import read_rows
from lifelong.memory import make_core

_REFERENCE_NAMES = ("random", "memoryless", "last_transition", "order_free", "ideal_learner", "oracle")


@dataclass(frozen=True)
class Summary:
    """``value`` is the reward rate of a step, or the mean return of the last episodes, as the references are stated."""

    env: str
    memory: str
    seed: int
    frames: int
    per: str
    final_quarter: float | None
    best: float | None
    final_quarter_score: float | None
    best_score: float | None
    references: dict[str, float]
    frames_per_second: float | None
    core_parameters: int  # of the memory core alone

    def text(self) -> str:
        """For the terminal."""
        unit = "reward per step" if self.per == "step" else "return of an episode"
        lines = [f"{self.env} with {self.memory}, seed {self.seed}, {self.frames:,} frames; {unit}:"]
        for name, value, score in (
            ("final quarter", self.final_quarter, self.final_quarter_score),
            ("best", self.best, self.best_score),
        ):
            if value is not None:
                lines.append(f"  {name:<16} {value:8.3f}" + ("" if score is None else f"   score {score:6.3f}"))
        lines += [f"  {name.replace('_', ' '):<16} {value:8.3f}" for name, value in self.references.items()]
        if self.references:
            lines.append("  (score: 0 is the random policy, 1 the oracle)")
        return "\n".join(lines)


def metric_name(references: References | None, lifelong: bool) -> str:
    """The logged metric that an environment is judged by."""
    per_episode = references.per == "episode" if references is not None else not lifelong
    return "rollout/ep_rew_mean" if per_episode else "rollout/reward_rate"


def score_of(env: BatchedEnv, metrics: dict[str, float]) -> float:
    """The normalised score of a row of metrics; NaN where there are no references or no episode has ended yet."""
    value = metrics.get(metric_name(env.references, env.lifelong))
    return float("nan") if env.references is None or value is None else env.references.score(value)


def reference_levels(references: References | None) -> dict[str, float]:
    """The levels that are known, lowest knowledge first."""
    if references is None:
        return {}
    levels = {name: getattr(references, name) for name in _REFERENCE_NAMES}
    return {name: float(value) for name, value in levels.items() if value is not None}


def summarise(config: RunConfig, env: BatchedEnv, folder: Path) -> Summary:
    """Final quarter (so that a collapse shows) and best, from what was logged."""
    name = metric_name(env.references, env.lifelong)
    rows = read_rows(folder / "progress.csv")
    last = int(rows[-1]["frames"]) if rows else 0
    series = [(int(row["frames"]), float(row[name])) for row in rows if row.get(name)]
    tail = [value for frames, value in series if frames > 0.75 * last]
    final = sum(tail) / len(tail) if tail else None
    best = max((value for _, value in series), default=None)
    speeds = sorted(float(row["time/fps"]) for row in read_rows(folder / "timing.csv"))
    references = env.references

    def score(value: float | None) -> float | None:
        return None if references is None or value is None else references.score(value)

    return Summary(
        env=str(config.env.get("id") or config.env["name"]),
        memory=config.memory["name"],
        seed=config.seed,
        frames=last,
        per="episode" if name.endswith("ep_rew_mean") else "step",
        final_quarter=final,
        best=best,
        final_quarter_score=score(final),
        best_score=score(best),
        references=reference_levels(references),
        frames_per_second=speeds[len(speeds) // 2] if speeds else None,
        core_parameters=_core_parameters(config),
    )


def _core_parameters(config: RunConfig) -> int:
    options = dict(config.memory)
    core = make_core(options.pop("name"), config.agent.width, **options)
    return sum(parameter.numel() for parameter in core.parameters())


def write_summary(folder: Path, summary: Summary) -> None:
    write_json(folder / "summary.json", asdict(summary))
