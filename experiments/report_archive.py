"""The runs that a report was made of, small enough to be kept beside it: ``lifelong report FOLDER archive=FOLDER``.

Without checkpoints and TensorBoard's files, and with the columns of ``progress.csv`` that a report reads. The same
report can be made of them anywhere, and ``lifelong compare out=...`` knows them as finished.
"""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

from lifelong.experiments.report_runs import CURVES, Run
from lifelong.experiments.run_folder import write_atomically
from lifelong.experiments.run_log import read_rows

_WHOLE = ("config.yaml", "versions.txt", "command.txt", "timing.csv")


def archive_runs(folder: Path, runs: list[Run], out: Path) -> None:
    """Copy ``runs`` of ``folder`` to ``out``, under the same names; ``compare.json`` too. ``summary.json`` comes last:
    a run that has one is whole.
    """
    out.mkdir(parents=True, exist_ok=True)
    if (folder / "compare.json").exists():
        shutil.copyfile(folder / "compare.json", out / "compare.json")
    for run in runs:
        source, target = folder / run.path, out / run.path
        target.mkdir(parents=True, exist_ok=True)
        names = [name for name in _WHOLE if (source / name).exists()]
        names += [path.name for path in source.glob("evaluation_*.json")]
        for name in names:
            shutil.copyfile(source / name, target / name)
        write_atomically(target / "progress.csv", _curves(source / "progress.csv"))
        write_atomically(target / "summary.json", (source / "summary.json").read_text())


def _curves(path: Path) -> str:
    rows = read_rows(path)
    columns = [name for name in rows[0] if name == "frames" or name.startswith(CURVES)]
    written = io.StringIO()
    table = csv.DictWriter(written, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return written.getvalue()
