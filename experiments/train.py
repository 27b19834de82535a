"""``lifelong train`` and ``lifelong resume``: the loop around a Trainer that logs, saves, and stops well.

``experiment=NAME``, ``env=NAME``, ``memory=NAME`` and ``algorithm=NAME`` take a commented file of settings
(``lifelong list`` names them all); ``key=value`` changes one of them, for example ``frames=1e6``, ``seed=1``,
``memory.heads=2``, ``algorithm.learning_rate=0.001`` or ``out=runs/mine``. The run's folder gets config, command,
versions, progress.csv, TensorBoard's events, checkpoints and a summary. A run that was killed goes on, bit for bit,
with ``lifelong resume RUN``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from tqdm import tqdm

from lifelong.agents import NonFinite, Trainer
from lifelong.agents.distributed import Group, RankLost, join
from lifelong.agents.health import memory_histograms
from lifelong.envs import BatchedEnv, EnvironmentFault
from lifelong.experiments.build import build_env, build_trainer, set_up_process
from lifelong.experiments.checkpoint import Parts, drop_later_checkpoints, load_checkpoint, save_checkpoint
from lifelong.experiments.config import RunConfig, import_plugin, load_config, to_yaml
from lifelong.experiments.errors import RunFailed, UserError, whole_number
from lifelong.experiments.run_folder import (
    CHECKPOINTS,
    append_command,
    append_versions,
    create_run_folder,
    edits_without_effect,
    find_checkpoint,
    locked,
)
from lifelong.experiments.run_log import RunLog
from lifelong.experiments.summary import score_of, summarise, write_summary
from lifelong.memory import LifeTooLong


def train(overrides: list[str]) -> int:
    """``lifelong train [experiment=NAME] [key=value ...]``."""
    config = load_config(overrides)
    device = set_up_process(config)
    with _joined(device, config) as group:
        env = build_env(config, config.seed, group=group)
        trainer = build_trainer(config, env, device, group)
        folder = group.gather(create_run_folder(config) if group.rank == 0 else Path())[0]
        print(f"run folder: {folder}", flush=True)
        with _locked(folder, group):
            return _Run(config, folder, env, trainer, resume_at=None).go()


def resume(arguments: list[str]) -> int:
    """``lifelong resume RUN [frames=N]``: go on from the newest whole checkpoint, bit for bit on the CPU."""
    if not arguments or "=" in arguments[0]:
        raise UserError("resume needs a run folder: lifelong resume RUN [frames=N]")
    path, config = find_checkpoint(arguments[0])
    folder = path.parent.parent
    if path.parent.name != CHECKPOINTS or not (folder / "config.yaml").exists():
        raise UserError(f"{arguments[0]}: not in a run folder; resume needs the folder that train made")
    edits = edits_without_effect(folder, config)
    for word in arguments[1:]:
        if word.partition("=")[0] != "frames":
            raise UserError(f"{word}: only frames=N, a new total, may be changed on resume")
        config.frames = whole_number(word, lowest=1)
    for module in config.plugins:
        import_plugin(module)
    device = set_up_process(config)
    with _joined(device, config) as group:
        env = build_env(config, config.seed, group=group)
        trainer = build_trainer(config, env, device, group)
        with _locked(folder, group):
            frames = _load(path, trainer, env)
            if group.rank == 0:
                if edits:
                    print(
                        f"lifelong: resume goes by the config of the checkpoint; {folder / 'config.yaml'} {edits}",
                        file=sys.stderr,
                    )
                drop_later_checkpoints(folder / CHECKPOINTS, frames)
                append_command(folder)
                append_versions(folder, frames)
            print(f"resuming {folder} at {frames:,} frames", flush=True)
            return _Run(config, folder, env, trainer, resume_at=frames).go()


@contextmanager
def _joined(device: torch.device, config: RunConfig) -> Iterator[Group]:
    """The ranks that ``torchrun`` began, or this process alone. Rank 0 speaks and writes for all.

    Raises:
        UserError: lives that cannot be divided among the ranks.
        RunFailed: another rank has left, and rank 0 says so; the others follow without a word.
    """
    with ExitStack() as stack:
        try:
            group = stack.enter_context(join(device, config.env["num_lives"]))
        except ValueError as error:
            raise UserError(str(error)) from error
        if group.rank > 0:
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        try:
            yield group
        except RankLost as error:
            if group.rank > 0:
                raise SystemExit(1) from error
            raise RunFailed(f"{error}; lifelong resume goes on from the last checkpoint") from error


def _locked(folder: Path, group: Group) -> AbstractContextManager[None]:
    return locked(folder) if group.rank == 0 else nullcontext()


def _parts(trainer: Trainer, env: BatchedEnv) -> Parts:
    """What a rank does not share with the others."""
    return Parts(trainer.group, {"environment": env, "lives": trainer.lives, "history": trainer.algorithm.history})


def _load(path: Path, trainer: Trainer, env: BatchedEnv) -> int:
    """Go on from a checkpoint; returns its frames."""
    pickled = not env.state_is_tensors
    if trainer.group.world == 1:
        return load_checkpoint(path, trainer, env, pickled)
    parts = _parts(trainer, env)
    frames = load_checkpoint(path, trainer, parts, pickled, trainer.group.world)
    parts.restore()
    return frames


class _Run:
    """One process's part of a run."""

    def __init__(
        self, config: RunConfig, folder: Path, env: BatchedEnv, trainer: Trainer, resume_at: int | None
    ) -> None:
        self.config = config
        self.folder = folder
        self.env = env
        self.trainer = trainer
        self.log = RunLog(folder, resume_at) if trainer.group.rank == 0 else None
        if self.log and resume_at is None:
            self.log.begin(config)
        self.saved_at = trainer.frames
        self.own_signal: int | None = None  # that this process got
        self.stop_signal: int | None = None  # that one of the ranks got

    def go(self) -> int:
        """Train to the end, or to a signal; always leave a checkpoint. Returns the exit code."""
        with _Signals(self._on_signal), self._bar() as bar:
            while not self.trainer.done and not self._asked_to_stop():
                self._update(bar)
            if self.trainer.frames > self.saved_at or not self.trainer.frames:
                self._save()
        if self.log:
            self.log.close()
        self.env.close()
        if self.stop_signal is not None and not self.trainer.done:
            print(f"stopped at {self.trainer.frames:,} frames; go on with: lifelong resume {self.folder}")
            return 128 + self.stop_signal
        if self.trainer.group.rank > 0:
            return 0
        summary = summarise(self.config, self.env, self.folder)
        write_summary(self.folder, summary)
        print(summary.text())
        print(f"curves: tensorboard --logdir {self.folder.parent}")
        return 0

    def _asked_to_stop(self) -> bool:
        """Whether any of the ranks was: they stop after the same update."""
        self.stop_signal = next(filter(None, self.trainer.group.gather(self.own_signal)), None)
        return self.stop_signal is not None

    def _update(self, bar: tqdm) -> None:
        trainer = self.trainer
        before, started = trainer.frames, time.monotonic()
        try:
            metrics = trainer.update()
        except (NonFinite, EnvironmentFault, LifeTooLong) as error:
            if self.log:
                self.log.close()
            rank = f"rank {trainer.group.rank}: " if trainer.group.world > 1 else ""
            raise RunFailed(f"{rank}{error}; {self._last_good()}") from error
        seconds = time.monotonic() - started
        metrics["rollout/score"] = score_of(self.env, metrics)
        if metrics["rollout/score"] != metrics["rollout/score"]:  # no references, or no episode has ended yet
            del metrics["rollout/score"]
        rates = {
            "time/fps": (trainer.frames - before) / seconds,
            "time/collect_seconds": trainer.timings["collect"],
            "time/update_seconds": trainer.timings["update"],
        }
        if self.log and (trainer.algorithm.updates % self.config.log.every_updates == 0 or trainer.done):
            try:
                self.log.add(trainer.frames, metrics, rates)
            except OSError as error:
                raise RunFailed(f"the logs were not written: {error.strerror}; {self._last_good()}") from error
        bar.set_postfix_str(_bar_text(self.env, metrics), refresh=False)
        bar.update(trainer.frames - before)
        if trainer.frames - self.saved_at >= self.config.checkpoint.every_frames:
            self._save()

    def _save(self) -> None:
        self.saved_at = self.trainer.frames
        group = self.trainer.group
        parts = _parts(self.trainer, self.env) if group.world > 1 else None
        if parts:
            parts.gather()
        if not self.log:
            return
        try:
            save_checkpoint(
                self.folder / CHECKPOINTS,
                self.trainer.frames,
                to_yaml(self.config),
                self.trainer,
                parts or self.env,
                pickled_environment=not self.env.state_is_tensors,
                keep=self.config.checkpoint.keep,
                ranks=group.world,
            )
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise RunFailed(
                f"the checkpoint at {self.trainer.frames:,} frames was not written: {reason}; {self._last_good()}"
            ) from error
        self.log.add_histograms(self.trainer.frames, memory_histograms(self.trainer.lives))

    def _last_good(self) -> str:
        try:
            path, _ = find_checkpoint(str(self.folder))
        except UserError:
            return "no checkpoint had been written"
        return f"the last good checkpoint is {path}"

    def _bar(self) -> tqdm:
        return tqdm(
            total=self.config.frames,
            initial=self.trainer.frames,
            unit="frame",
            unit_scale=True,
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 10,
            file=sys.stderr,
            disable=self.log is None,
        )

    def _on_signal(self, number: int) -> None:
        if self.own_signal is not None:
            raise KeyboardInterrupt  # asked twice: leave at once, the last checkpoint stays
        self.own_signal = number


class _Signals:
    """Ctrl-C and SIGTERM ask for a stop after the present update; the handlers are put back on leaving."""

    def __init__(self, handler: Callable[[int], None]) -> None:
        self.handler = handler
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        def handle(number: int, frame: FrameType | None) -> None:
            self.handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, handle)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def _bar_text(env: BatchedEnv, metrics: dict[str, float]) -> str:
    parts = []
    if "rollout/ep_rew_mean" in metrics and not env.lifelong:
        parts.append(f"return {metrics['rollout/ep_rew_mean']:.3f}")
    else:
        parts.append(f"reward rate {metrics['rollout/reward_rate']:.3f}")
    if "rollout/score" in metrics:
        parts.append(f"score {metrics['rollout/score']:.3f}")
    return ", ".join(parts)
