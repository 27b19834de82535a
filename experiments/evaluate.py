"""``lifelong evaluate RUN``: one unbroken stretch of steps with the slow weights frozen, in constant memory."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from lifelong.agents import evaluate_lives
from lifelong.envs import EnvironmentFault
from lifelong.experiments.build import build_agent, build_env, set_up_process
from lifelong.experiments.checkpoint import load_checkpoint
from lifelong.experiments.config import RunConfig, import_plugin, plugin_names
from lifelong.experiments.errors import UserError, did_you_mean, whole_number
from lifelong.experiments.process_memory import resident_bytes
from lifelong.experiments.run_folder import find_checkpoint, write_json
from lifelong.experiments.summary import metric_name, reference_levels

# Held-out lives: seeds that no training run of up to this many seeds draws.
_HELD_OUT = 1_000_003
_TABLE = "{:>23} {:>9} {:>7} {:>8} {:>10} {:>11}"


@dataclasses.dataclass
class EvaluateOptions:
    """What may follow RUN."""

    life_steps: int = 10_000  # steps of each life
    lives: int = 64  # in one batch
    spans: int = 10  # parts of the life that are reported
    seed: int = 0  # of the held-out lives and the actions
    greedy: bool = False  # the most likely action in place of a drawn one


class _AgentOnly:
    """Takes the weights out of a training state and leaves the rest."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("evaluation does not save")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.agent.load_state_dict(state["agent"])


def evaluate(arguments: list[str]) -> int:
    """``lifelong evaluate RUN [life_steps=N] [lives=B] [spans=10] [seed=0] [greedy=true] [plugins=[...]]``."""
    if not arguments or "=" in arguments[0]:
        raise UserError("evaluate needs a run folder: lifelong evaluate RUN [life_steps=N] [lives=B] [greedy=true]")
    words = arguments[1:]
    allowed = [name for word in words if word.startswith("plugins=") for name in plugin_names(word[len("plugins=") :])]
    options = parse_options([word for word in words if not word.startswith("plugins=")])
    path, config = find_checkpoint(arguments[0])
    _import_what_is_allowed(config, allowed)
    device = set_up_process(config)
    env = build_env(config, _HELD_OUT + options.seed, options.lives)
    agent = build_agent(config, env, device)
    frames = load_checkpoint(path, _AgentOnly(agent), None)
    agent.eval()
    print(f"{path.name}, trained for {frames:,} frames; slow weights frozen")
    print(f"{options.lives} lives of {options.life_steps:,} steps on held-out seeds")
    references = env.references
    per_episode = metric_name(references, env.lifelong) == "rollout/ep_rew_mean"
    print(
        _TABLE.format(
            "life steps", "return" if per_episode else "reward", "score", "us/step", "state max", "process MB"
        )
    )
    rows = []
    started = time.monotonic()
    try:
        for span in evaluate_lives(env, agent, options.life_steps, options.spans, options.seed, options.greedy):
            now = time.monotonic()
            value = span.episode_return if per_episode else span.reward_rate
            score = references.score(value) if references is not None and value is not None else None
            row = {
                **dataclasses.asdict(span),
                "value": value,
                "score": score,
                "microseconds_per_step": (now - started) / (span.stop - span.start) * 1e6,
                "process_bytes": resident_bytes(),
            }
            rows.append(row)
            cells = (_number(value), _number(score), f"{row['microseconds_per_step']:.0f}")
            largest = f"{span.memory.get('memory/state_max', float('nan')):.3g}"
            life = f"{span.start:,}-{span.stop:,}"
            print(_TABLE.format(life, *cells, largest, f"{row['process_bytes'] / 1e6:.1f}"), flush=True)
            started = now
    except EnvironmentFault as error:
        raise UserError(str(error)) from error
    finally:
        env.close()
    for name, level in reference_levels(references).items():
        print(f"{name.replace('_', ' '):>23} {level:>9.3f}")
    result = {
        "checkpoint": path.name,
        "options": dataclasses.asdict(options),
        "references": reference_levels(references),
        "spans": rows,
    }
    target = _folder(path) / f"evaluation_{options.life_steps}_steps_seed{options.seed}.json"
    try:
        write_json(target, result)
    except OSError as error:
        raise UserError(f"{target} was not written: {error.strerror}") from error
    print(f"written: {target}")
    return 0


def _import_what_is_allowed(config: RunConfig, allowed: list[str]) -> None:
    """A run may be somebody else's: modules that it names are imported only where the user names them too.

    Raises:
        UserError: it needs others.
    """
    module, separator, _ = str(config.env.get("id", "")).partition(":")  # Gymnasium imports what stands before a colon
    needed = [*config.plugins, *([module] if separator else [])]
    missing = [name for name in needed if name not in allowed]
    if missing:
        names = ",".join(needed)
        raise UserError(
            f"this run needs the modules {names}, whose code would run; if you trust it, add plugins=[{names}]"
        )
    for name in config.plugins:
        import_plugin(name)


def parse_options(words: list[str]) -> EvaluateOptions:
    """``key=value`` words to options.

    Raises:
        UserError: an unknown key, or a value of the wrong kind.
    """
    options = EvaluateOptions()
    names = [field.name for field in dataclasses.fields(EvaluateOptions)]
    for word in words:
        key, _, value = word.partition("=")
        if key not in names:
            raise UserError(f"{word}: unknown; allowed: {', '.join(names)}{did_you_mean(key, names)}")
        if key == "greedy":
            if value.lower() not in ("true", "false"):
                raise UserError(f"{word}: must be true or false")
            options.greedy = value.lower() == "true"
            continue
        setattr(options, key, whole_number(word, lowest=0 if key == "seed" else 1))
    if options.spans > options.life_steps:
        raise UserError(f"spans={options.spans}: must not exceed life_steps={options.life_steps}")
    return options


def _folder(checkpoint: Path) -> Path:
    """Where the result goes: the run's folder, or the checkpoint's own parent when it stands alone."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
