"""``lifelong evaluate RUN``: one unbroken life in a batch of held-out lives, in constant memory.

The slow weights stay as they are and the fast weights live, unless it is asked for something else. The result,
``evaluation_*.json`` in the run's folder, is written anew after every stretch of the life; a life that is cut short is
gone on with by the same command, from the state that is kept beside it until the end.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

from torch.utils.tensorboard import SummaryWriter

from lifelong.agents import NonFinite
from lifelong.agents.evaluation import STATE_DTYPES, Ablation, Evaluation, LearningLife, Span
from lifelong.envs import BatchedEnv, EnvironmentFault, References
from lifelong.experiments.build import build_agent, build_env, build_trainer, set_up_process
from lifelong.experiments.checkpoint import latest_checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from lifelong.experiments.config import RunConfig, import_plugin, plugin_names
from lifelong.experiments.errors import RunFailed, UserError, did_you_mean, whole_number
from lifelong.experiments.process_memory import resident_bytes
from lifelong.experiments.run_folder import find_checkpoint, locked, write_json
from lifelong.experiments.summary import metric_name, reference_levels
from lifelong.memory import LifeTooLong

# Held-out lives: seeds that no training run of up to this many seeds draws.
HELD_OUT = 1_000_003
_TABLE = "{:>23} {:>9} {:>7} {:>8} {:>10} {:>11}"
_LONGEST_STRETCH = 100_000  # steps between two looks at the life
_SAVE_SECONDS = 60.0  # between two states kept on disk


@dataclasses.dataclass
class EvaluateOptions:
    """What may follow RUN."""

    life_steps: int = 10_000  # steps of each life
    lives: int = 64  # in one batch
    spans: int = 10  # parts of the life that are reported, besides its powers of ten
    seed: int = 0  # of the held-out lives and the actions
    greedy: bool = False  # the most likely action in place of a drawn one
    fast_weights: str = "live"  # frozen: from life step freeze_at on, the memory is read but not written
    freeze_at: int = 1_000
    slow_weights: str = "frozen"  # learning: training goes on along the life
    reset_memory_every: int | None = None  # drop the memory every so many steps; the world goes on
    dtype: str = "float32"  # of the memory between steps; float64: of everything

    def words(self) -> list[str]:
        """Those that differ from the defaults, seed and length apart: what the file is named by."""
        plain = EvaluateOptions()
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("life_steps", "seed")]
        changed = [name for name in names if getattr(self, name) != getattr(plain, name)]
        return [f"{name}={getattr(self, name)}" for name in changed]

    def stops(self) -> list[int]:
        """Life steps at which the life is looked at: equal parts, powers of ten from 1,000 on, none too far apart."""
        last = self.life_steps
        equal = {last * index // self.spans for index in range(1, self.spans + 1)}
        powers = {10**power for power in range(3, 19) if 10**power < last}
        return sorted(equal | powers | set(range(_LONGEST_STRETCH, last, _LONGEST_STRETCH)))


class _Life(Protocol):
    """A life in progress: ``Evaluation`` or ``LearningLife``."""

    step: int
    curves: Any

    def run_to(self, stop: int) -> Span: ...
    def environment_loaded(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any) -> None: ...


class Weights:
    """Takes weights (and, to go on learning, the optimiser's state) out of a training state and leaves the rest."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("evaluation does not save")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def evaluate(arguments: list[str]) -> int:
    """``lifelong evaluate RUN [life_steps=N] [lives=B] [key=value ...] [plugins=[...]]``."""
    if not arguments or "=" in arguments[0]:
        raise UserError("evaluate needs a run folder: lifelong evaluate RUN [life_steps=N] [lives=B] [greedy=true]")
    words = arguments[1:]
    allowed = [name for word in words if word.startswith("plugins=") for name in plugin_names(word[len("plugins=") :])]
    options = parse_options([word for word in words if not word.startswith("plugins=")])
    path, config = find_checkpoint(arguments[0])
    import_what_is_allowed(config, allowed)
    env, life = _build(path, config, options)
    try:
        _Record(path, options, env, life).go()
    except EnvironmentFault as error:
        raise UserError(str(error)) from error
    finally:
        env.close()
    return 0


def _build(path: Path, config: RunConfig, options: EvaluateOptions) -> tuple[BatchedEnv, _Life]:
    """The held-out lives, with the weights of the checkpoint."""
    device = set_up_process(config)
    env = build_env(config, HELD_OUT + options.seed, options.lives)
    level = _level(env.references, env.lifelong)
    if options.slow_weights == "learning":
        trainer = build_trainer(dataclasses.replace(config, seed=HELD_OUT + options.seed), env, device)
        frames = load_checkpoint(path, Weights(agent=trainer.agent, algorithm=trainer.algorithm), None)
        trainer.frames = frames
        print(f"{path.name}, trained for {frames:,} frames; slow weights go on learning")
        return env, LearningLife(trainer, level)
    agent = build_agent(config, env, device)
    frames = load_checkpoint(path, Weights(agent=agent), None)
    agent.eval()
    if options.dtype == "float64":
        agent.double()
    freeze = options.freeze_at if options.fast_weights == "frozen" else None
    ablation = Ablation(freeze, options.reset_memory_every, options.dtype)
    print(f"{path.name}, trained for {frames:,} frames; slow weights frozen")
    return env, Evaluation(env, agent, options.seed, options.greedy, level, ablation)


class _Record:
    """Runs a life to its end, and writes down what it was like so far."""

    def __init__(self, checkpoint: Path, options: EvaluateOptions, env: BatchedEnv, life: _Life) -> None:
        self.checkpoint, self.options, self.env, self.life = checkpoint, options, env, life
        # Beside the checkpoints; in the checkpoint's own parent when it stands alone.
        home = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent
        stem = "_".join([f"evaluation_{options.life_steps}_steps_seed{options.seed}", *options.words()])
        self.target, self.kept = home / f"{stem}.json", home / f".{stem}"
        self.spans: list[dict[str, Any]] = []
        self.saved = time.monotonic()
        self.per_episode = metric_name(env.references, env.lifelong) == "rollout/ep_rew_mean"

    def go(self) -> None:
        options = self.options
        self.kept.mkdir(exist_ok=True)
        with locked(self.kept):
            self._resume()
            print(
                f"{options.lives} lives of {options.life_steps:,} steps on held-out seeds {' '.join(options.words())}"
            )
            unit = "return" if self.per_episode else "reward"
            print(_TABLE.format("life steps", unit, "score", "us/step", "state max", "process MB"))
            for row in self.spans:
                print(self._line(row), flush=True)
            for stop in options.stops():
                if stop > self.life.step:
                    self._stretch(stop)
            self._write(finished=True)
        shutil.rmtree(self.kept)
        self._curves_by_life_step()
        for name, level in reference_levels(self.env.references).items():
            print(f"{name.replace('_', ' '):>23} {level:>9.3f}")
        print(f"written: {self.target}")

    def _stretch(self, stop: int) -> None:
        started = time.monotonic()
        try:
            span = self.life.run_to(stop)
        except (NonFinite, LifeTooLong) as error:
            raise RunFailed(f"{error}; what came before is in {self.target}") from error
        seconds = time.monotonic() - started
        value = span.episode_return if self.per_episode else span.reward_rate
        references = self.env.references
        row = {
            **dataclasses.asdict(span),
            "value": value,
            "score": references.score(value) if references is not None and value is not None else None,
            "microseconds_per_step": seconds / (span.stop - span.start) * 1e6,
            "process_bytes": resident_bytes(),
        }
        self.spans.append(row)
        print(self._line(row), flush=True)
        self._write(finished=False)
        if time.monotonic() - self.saved > _SAVE_SECONDS and stop < self.options.life_steps:
            self._save()

    def _line(self, row: dict[str, Any]) -> str:
        largest = f"{row['memory'].get('memory/state_max', float('nan')):.3g}"
        life = f"{row['start']:,}-{row['stop']:,}"
        cells = (_number(row["value"]), _number(row["score"]), f"{row['microseconds_per_step']:.0f}")
        return _TABLE.format(life, *cells, largest, f"{row['process_bytes'] / 1e6:.1f}")

    def _write(self, finished: bool) -> None:
        cost = [
            {
                "life_step": row["stop"],
                "microseconds": row["microseconds_per_step"],
                "state_bytes": row["memory"]["memory/state_bytes"],
            }
            for row in self.spans
        ]
        health = [
            {"life_step": row["stop"], **{name.removeprefix("memory/"): value for name, value in row["memory"].items()}}
            for row in self.spans
        ]
        result = {
            "checkpoint": self.checkpoint.name,
            "options": dataclasses.asdict(self.options),
            "finished": finished,
            "references": reference_levels(self.env.references),
            "spans": self.spans,
            "curves": {**self.life.curves.records(), "cost": cost, "health": health},
        }
        try:
            write_json(self.target, result)
        except OSError as error:
            raise UserError(f"{self.target} was not written: {error.strerror}") from error

    def _curves_by_life_step(self) -> None:
        """TensorBoard's curves of the life, in a folder of their own because their x-axis is the life's step."""
        folder = self.target.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        with SummaryWriter(str(folder)) as writer:
            for span in self.spans:
                values = {"reward_rate": span["reward_rate"], "score": span["score"], "return": span["episode_return"]}
                values["microseconds_per_step"] = span["microseconds_per_step"]
                for name, value in values.items():
                    if value is not None:
                        writer.add_scalar(f"life/{name}", value, span["stop"])
                for tag, value in span["memory"].items():
                    writer.add_scalar(tag, value, span["stop"])

    def _save(self) -> None:
        pickled = not self.env.state_is_tensors
        save_checkpoint(self.kept, self.life.step, "", _WithSpans(self), self.env, pickled, keep=1)
        self.saved = time.monotonic()

    def _resume(self) -> None:
        if list_checkpoints(self.kept):
            path = latest_checkpoint(self.kept)
            load_checkpoint(path, _WithSpans(self), self.env, not self.env.state_is_tensors)
            self.life.environment_loaded()
            print(f"going on at life step {self.life.step:,}")


class _WithSpans:
    """A life and what was written of it, as one state."""

    def __init__(self, record: _Record) -> None:
        self.record = record

    def state_dict(self) -> dict[str, Any]:
        return {"life": self.record.life.state_dict(), "spans": self.record.spans}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.record.life.load_state_dict(state["life"])
        self.record.spans = state["spans"]


def _level(references: References | None, lifelong: bool) -> tuple[float, float]:
    """Reward of a step that scores 0 and of one that scores 1."""
    if references is None or references.per != "step":
        return 0.0, 1.0
    return references.random, references.oracle


def import_what_is_allowed(config: RunConfig, allowed: list[str]) -> None:
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
    choices = {
        "greedy": ["true", "false"],
        "fast_weights": ["live", "frozen"],
        "slow_weights": ["frozen", "learning"],
        "dtype": list(STATE_DTYPES),
    }
    for word in words:
        key, _, value = word.partition("=")
        if key not in names:
            raise UserError(f"{word}: unknown; allowed: {', '.join(names)}{did_you_mean(key, names)}")
        if key in choices:
            if value.lower() not in choices[key]:
                near = did_you_mean(value, choices[key])
                raise UserError(f"{word}: allowed are {', '.join(choices[key])}{near}")
            setattr(options, key, value.lower() == "true" if key == "greedy" else value.lower())
        else:
            setattr(options, key, whole_number(word, lowest=0 if key in ("seed", "freeze_at") else 1))
    if options.spans > options.life_steps:
        raise UserError(f"spans={options.spans}: must not exceed life_steps={options.life_steps}")
    if options.slow_weights == "learning" and options != dataclasses.replace(
        options, fast_weights="live", reset_memory_every=None, dtype="float32", greedy=False
    ):
        raise UserError("slow_weights=learning: goes with fast_weights=live, dtype=float32, greedy=false and no resets")
    return options


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
