"""What a run writes while it goes: TensorBoard events, ``progress.csv``, ``timing.csv``. The x-axis is always frames.

``progress.csv`` holds only what the seed determines: on the CPU, a run that was killed and resumed writes the same
bytes as one that was not. Clock times are in ``timing.csv`` and under ``time/`` in TensorBoard.
"""

from __future__ import annotations

import csv
import dataclasses
import time
from pathlib import Path

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from lifelong.experiments.config import RunConfig, to_yaml
from lifelong.experiments.errors import UserError
from lifelong.experiments.run_folder import write_atomically

# The page "custom scalars": charts in which the runs of several cores lie over each other.
LAYOUT = {
    "learning": {
        "score": ["Multiline", ["rollout/score"]],
        "reward of a step": ["Multiline", ["rollout/reward_rate"]],
        "return of an episode": ["Multiline", ["rollout/ep_rew_mean"]],
    },
    "inside the life": {"reward by steps since the rule changed": ["Multiline", ["life/reward_after_change_.*"]]},
    "memory": {
        "largest entry": ["Multiline", ["memory/state_max"]],
        "effective rank": ["Multiline", ["memory/effective_rank"]],
        "surprise before and after the write": ["Multiline", ["memory/surprise_.*"]],
    },
    "is something broken": {
        "ratio deviation": ["Multiline", ["train/ratio_deviation"]],
        "share not finite": ["Multiline", ["memory/state_non_finite"]],
    },
}
_JUDGED_BY = ("rollout/score", "rollout/reward_rate", "rollout/ep_rew_mean")


def hyperparameters(config: RunConfig) -> dict[str, float | str | bool]:
    """Everything in the config that is a number or a word, by its dotted key; lists as words."""
    found: dict[str, float | str | bool] = {}

    def add(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), inner)
        elif isinstance(value, (bool, int, float, str)):
            found[prefix] = value
        elif value is not None:
            found[prefix] = str(value)

    add("", dataclasses.asdict(config))
    return found


class CsvTable:
    """A CSV file that grows by rows, and by columns when a metric appears for the first time.

    Args:
        path: the file.
        resume_at: keep the rows up to this many frames and drop the rest (a half-written last line too); None starts
            a new file.

    Raises:
        UserError: ``resume_at`` is above 0 and the file is missing, or cannot be read.
    """

    def __init__(self, path: Path, resume_at: int | None) -> None:
        self.path = path
        self.columns: list[str] = ["frames"]
        rows = _kept_rows(path, resume_at) if resume_at else []
        if rows:
            self.columns = list(rows[-1])
            while len(self.columns) > 1 and all(row[self.columns[-1]] == "" for row in rows):
                self.columns.pop()  # a column that came only after the checkpoint will come again
        self._rewrite(rows)

    def add(self, frames: int, values: dict[str, float]) -> None:
        """Append a row."""
        new = [key for key in values if key not in self.columns]
        if new:
            self.columns += new
            self._rewrite(read_rows(self.path))
        row = {"frames": frames, **values}
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([row.get(column, "") for column in self.columns])

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        lines = [self.columns, *([row.get(column, "") for column in self.columns] for row in rows)]
        write_atomically(self.path, "".join(",".join(line) + "\n" for line in lines))


def read_rows(path: Path) -> list[dict[str, str]]:
    """The complete rows of a table; nothing where there is no file."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1].splitlines()  # a kill in mid-write leaves a last line without its end
    if not whole:
        return []
    columns = whole[0].split(",")
    rows = [line.split(",") for line in whole[1:]]
    return [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]


def _kept_rows(path: Path, frames: int) -> list[dict[str, str]]:
    """The rows up to ``frames``. A table that is gone or damaged is no new one: the summary would be of a part only."""
    try:
        if path.stat().st_size == 0:
            raise ValueError("nothing in it")
        return [row for row in read_rows(path) if int(row["frames"]) <= frames]
    except FileNotFoundError as error:
        raise UserError(f"{path}: missing, and the run is at {frames:,} frames; put it back, or train anew") from error
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: cannot be read; put back a good copy of it, or train anew") from error


def _wait_for_a_new_second(folder: Path) -> None:
    """TensorBoard reads the files of a folder in the order of their names, which begin with the second they were made
    in: of two from the same second, the later may come first.
    """
    while any(path.name.startswith(f"events.out.tfevents.{int(time.time())}.") for path in folder.iterdir()):
        time.sleep(0.05)


class RunLog:
    """All of a run's logs behind one ``add``.

    Args:
        folder: of the run.
        resume_at: frames of the checkpoint that the run goes on from; None for a new run. Later points of an earlier
            process are purged.
    """

    def __init__(self, folder: Path, resume_at: int | None) -> None:
        self.progress = CsvTable(folder / "progress.csv", resume_at)
        self.timing = CsvTable(folder / "timing.csv", resume_at)
        purge = None if resume_at is None else resume_at + 1
        _wait_for_a_new_second(folder)
        self.writer = SummaryWriter(str(folder), purge_step=purge)

    def begin(self, config: RunConfig) -> None:
        """What TensorBoard needs to know once: the config as text and as hyperparameters, and how charts are grouped.

        The hyperparameters go into the run itself; ``SummaryWriter.add_hparams`` would make a second run of them.
        """
        self.writer.add_text("config", "    " + to_yaml(config).replace("\n", "\n    "))
        for summary in hparams(hyperparameters(config), dict.fromkeys(_JUDGED_BY, 0.0)):
            self.writer.file_writer.add_summary(summary)
        self.writer.add_custom_scalars(LAYOUT)

    def add_histograms(self, frames: int, tensors: dict[str, Tensor]) -> None:
        """The distributions of some tensors at ``frames``; entries that are not finite are left away."""
        for tag, tensor in tensors.items():
            finite = tensor[tensor.isfinite()]
            if finite.numel():
                self.writer.add_histogram(tag, finite, frames)

    def add(self, frames: int, metrics: dict[str, float], timings: dict[str, float]) -> None:
        """One point at ``frames``: ``metrics`` are determined by the seed, ``timings`` are clock times."""
        for tag, value in {**metrics, **timings}.items():
            self.writer.add_scalar(tag, value, frames)
        self.progress.add(frames, metrics)
        self.timing.add(frames, timings)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
