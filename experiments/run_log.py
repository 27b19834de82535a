"""What a run writes while it goes: TensorBoard events, ``progress.csv``, ``timing.csv``. The x-axis is always frames.

``progress.csv`` holds only what the seed determines: on the CPU, a run that was killed and resumed writes the same
bytes as one that was not. Clock times are in ``timing.csv`` and under ``time/`` in TensorBoard.
"""

from __future__ import annotations

import csv
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from lifelong.experiments.run_folder import write_atomically


class CsvTable:
    """A CSV file that grows by rows, and by columns when a metric appears for the first time.

    Args:
        path: the file.
        resume_at: keep the rows up to this many frames and drop the rest (a half-written last line too); None starts
            a new file.
    """

    def __init__(self, path: Path, resume_at: int | None) -> None:
        self.path = path
        self.columns: list[str] = ["frames"]
        rows = [] if resume_at is None else [row for row in read_rows(path) if int(row["frames"]) <= resume_at]
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
        self.writer = SummaryWriter(str(folder), purge_step=purge)

    def add_text(self, tag: str, text: str) -> None:
        self.writer.add_text(tag, text)

    def add(self, frames: int, metrics: dict[str, float], timings: dict[str, float]) -> None:
        """One point at ``frames``: ``metrics`` are determined by the seed, ``timings`` are clock times."""
        for tag, value in {**metrics, **timings}.items():
            self.writer.add_scalar(tag, value, frames)
        self.progress.add(frames, metrics)
        self.timing.add(frames, timings)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
