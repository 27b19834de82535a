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

from tensordict import TensorDict
from torch.utils.tensorboard import SummaryWriter

from lifelong.agents import NonFinite
from lifelong.agents.evaluation import Ablation, Evaluation, LearningLife, Span
from lifelong.envs import BatchedEnv, EnvironmentFault, References
from lifelong.experiments.build import build_agent, build_env, build_trainer, set_up_process
from lifelong.experiments.checkpoint import (
    CheckpointRefused,
    fingerprint,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)
from lifelong.experiments.config import RunConfig, plugin_names
from lifelong.experiments.errors import RunFailed, UserError
from lifelong.experiments.evaluate_options import (
    HELD_OUT,
    EvaluateOptions,
    folder_beside,
    import_what_is_allowed,
    parse_options,
)
from lifelong.experiments.metrics.lifetime import lifetime_score
from lifelong.experiments.process_memory import resident_bytes
from lifelong.experiments.run_folder import find_checkpoint, locked, write_json
from lifelong.experiments.summary import metric_name, reference_levels
from lifelong.memory import LifeTooLong

_TABLE = "{:>23} {:>9} {:>7} {:>8} {:>10} {:>11}"
SAVE_SECONDS = 60.0  # between two states kept on disk


class Life(Protocol):
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
            try:
                part.load_state_dict(state[name])
            except RuntimeError:  # a list of keys; a memory that is not of this core says it better
                if name == "agent":
                    part.core.check_state(TensorDict.from_dict(state["lives"]["memory"]["core"], auto_batch_size=True))
                raise


def evaluate(arguments: list[str]) -> int:
    """``lifelong evaluate RUN [life_steps=N] [lives=B] [key=value ...] [plugins=[...]]``."""
    if not arguments or "=" in arguments[0]:
        raise UserError("evaluate needs a run folder: lifelong evaluate RUN [life_steps=N] [lives=B] [greedy=true]")
    words = arguments[1:]
    allowed = [name for word in words if word.startswith("plugins=") for name in plugin_names(word[len("plugins=") :])]
    options = parse_options([word for word in words if not word.startswith("plugins=")])
    path, config = find_checkpoint(arguments[0])
    import_what_is_allowed(config, allowed)
    env, life = build_life(path, config, options)
    try:
        _Record(path, options, env, life).go()
    except OSError as error:
        raise RunFailed(f"the evaluation was not written: {error}") from error
    finally:
        env.close()
    return 0


def build_life(path: Path, config: RunConfig, options: EvaluateOptions) -> tuple[BatchedEnv, Life]:
    """The held-out lives, with the weights of the checkpoint."""
    device = set_up_process(config)
    env = build_env(config, HELD_OUT + options.seed, options.lives)
    level = _level(env.references)
    if options.slow_weights == "learning":
        trainer = build_trainer(dataclasses.replace(config, seed=HELD_OUT + options.seed), env, device)
        frames = load_checkpoint(path, Weights(agent=trainer.agent, algorithm=trainer.algorithm), None)
        trainer.frames = frames
        trainer.algorithm.history.load_state_dict({"segments": []})  # what is kept there are other lives' pasts
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

    def __init__(self, checkpoint: Path, options: EvaluateOptions, env: BatchedEnv, life: Life) -> None:
        self.checkpoint, self.options, self.env, self.life = checkpoint, options, env, life
        self.weights = fingerprint(checkpoint)
        home = folder_beside(checkpoint)
        self.target, self.kept = home / f"{options.stem}.json", home / f".{options.stem}"
        self.spans: list[dict[str, Any]] = []
        self.saved = time.monotonic()
        self.per_episode = metric_name(env.references, env.lifelong) == "rollout/ep_rew_mean"

    def go(self) -> None:
        options = self.options
        try:
            self.kept.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.kept.parent}: cannot write there: {error.strerror}") from error
        with locked(self.kept):
            self._resume()
            print(
                f"{options.lives} lives of {options.life_steps:,} steps on held-out seeds {' '.join(options.words())}"
            )
            unit = "return" if self.per_episode else "reward"
            print(_TABLE.format("life steps", unit, "score", "us/step", "state max", "process MB"))
            with self._curves() as curves:
                for row in self.spans:
                    print(self._line(row), flush=True)
                    _draw(curves, row)
                for stop in options.stops():
                    if stop > self.life.step:
                        self._stretch(stop)
                        _draw(curves, self.spans[-1])
            lifetime = self._lifetime()
            self._write(finished=True, lifetime=lifetime)
        shutil.rmtree(self.kept)
        for name, level in reference_levels(self.env.references).items():
            print(f"{name.replace('_', ' '):>23} {level:>9.3f}")
        if lifetime is not None:
            print(f"{'lifetime score':>23} {lifetime['whole']:>9.3f}, its second half {lifetime['second_half']:.3f}")
        print(f"written: {self.target}")

    def _stretch(self, stop: int) -> None:
        started, busy = time.monotonic(), time.process_time()
        try:
            span = self.life.run_to(stop)
        except (NonFinite, LifeTooLong, EnvironmentFault) as error:
            self._write(fault=str(error))
            raise RunFailed(f"{error}; what came before is in {self.target}") from error
        seconds, busy = time.monotonic() - started, time.process_time() - busy
        value = span.episode_return if self.per_episode else span.reward_rate
        references = self.env.references
        row = {
            **dataclasses.asdict(span),
            "value": value,
            "score": references.score(value) if references is not None and value is not None else None,
            "microseconds_per_step": seconds / (span.stop - span.start) * 1e6,
            "cpu_microseconds_per_step": busy / (span.stop - span.start) * 1e6,  # of this process, all its threads
            "process_bytes": resident_bytes(),
        }
        self.spans.append(row)
        print(self._line(row), flush=True)
        self._write()
        if time.monotonic() - self.saved > SAVE_SECONDS and stop < self.options.life_steps:
            self._save()

    def _line(self, row: dict[str, Any]) -> str:
        largest = f"{row['memory'].get('memory/state_max', float('nan')):.3g}"
        life = f"{row['start']:,}-{row['stop']:,}"
        cells = (_number(row["value"]), _number(row["score"]), f"{row['microseconds_per_step']:.0f}")
        return _TABLE.format(life, *cells, largest, f"{row['process_bytes'] / 1e6:.1f}")

    def _lifetime(self) -> dict[str, float] | None:
        """Lifetime score of the whole life and of its second half, over steps; over the episodes that ended where
        references are of those. None without references, or where no episode ended in the second half.
        """
        references = self.env.references
        counts = [row["episodes"] if self.per_episode else row["stop"] - row["start"] for row in self.spans]
        half = sum(row["start"] < self.options.life_steps // 2 for row in self.spans)
        if references is None or not sum(counts[half:]):
            return None
        earned = [count * (row["value"] or 0.0) for count, row in zip(counts, self.spans, strict=True)]
        random, oracle = ([count * level for count in counts] for level in (references.random, references.oracle))
        return lifetime_score(earned, random, oracle, half)._asdict()

    def _write(
        self, finished: bool = False, fault: str | None = None, lifetime: dict[str, float] | None = None
    ) -> None:
        """All that is known so far. ``fault``: why the life could not go on."""
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
            "fault": fault,
            "lifetime_score": lifetime,
            "references": reference_levels(self.env.references),
            "spans": self.spans,
            "curves": {**self.life.curves.records(), "cost": cost, "health": health},
        }
        write_json(self.target, result)

    def _curves(self) -> SummaryWriter:
        """TensorBoard's curves of the life, in a folder of their own because their x-axis is the life's step. What an
        earlier process wrote is written again, so that no point stands there twice.
        """
        folder = self.target.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        return SummaryWriter(str(folder))

    def _save(self) -> None:
        pickled = not self.env.state_is_tensors
        try:  # whose weights these are stands where other checkpoints hold their run's config
            save_checkpoint(self.kept, self.life.step, self.weights, _WithSpans(self), self.env, pickled, keep=1)
        except (OSError, RuntimeError) as error:  # torch tells of a full disk by a RuntimeError
            reason = " ".join(str(error).split())
            raise RunFailed(f"the life at step {self.life.step:,} was not kept: {reason}") from error
        self.saved = time.monotonic()

    def _resume(self) -> None:
        """Go on from what is kept, if it is whole and of these weights."""
        if not list_checkpoints(self.kept):
            return
        try:
            path = latest_checkpoint(self.kept)
            if verify_checkpoint(path).get("config") != self.weights:
                raise CheckpointRefused(f"{path} is of another checkpoint's weights")
        except CheckpointRefused as error:
            print(f"{error}; the life starts anew")
            for path in list_checkpoints(self.kept):
                shutil.rmtree(path)
            return
        try:
            load_checkpoint(path, _WithSpans(self), self.env, not self.env.state_is_tensors)
        except CheckpointRefused as error:
            raise UserError(f"{error}; to start the life anew, remove {self.kept}") from error
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


def _draw(curves: SummaryWriter, span: dict[str, Any]) -> None:
    """A span as points at the life step of its end."""
    own = {f"life/{name}": span[name] for name in ("reward_rate", "score", "microseconds_per_step")}
    points = {**own, "life/return": span["episode_return"], **span["memory"]}
    for tag, value in points.items():
        if value is not None:
            curves.add_scalar(tag, value, span["stop"])
    curves.flush()


def _level(references: References | None) -> tuple[float, float] | None:
    """Reward of a step that scores 0 and of one that scores 1, where they are known."""
    if references is None or references.per != "step":
        return None
    return references.random, references.oracle


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
