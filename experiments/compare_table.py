"""What a comparison shows in the terminal: sizes before it, a live table with the time left, results after it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lifelong.experiments.engine import Ended
from lifelong.experiments.metrics.aggregate import estimate, interquartile_mean

_WIDTH_OF_FILES = 200
_QUIET_SECONDS = 60.0  # between two lines about progress where nobody watches


@dataclass(frozen=True)
class CoreSize:
    """What a core costs; ``options`` were set to reach the budget, ``note`` says by how much it misses."""

    memory: str
    parameters: int
    state_bytes: int
    options: str
    note: str


def print_sizes(aim: str, sizes: dict[CoreSize, list[str]]) -> None:
    """The size of every core, before anything runs; ``sizes`` holds the environments in which it is so."""
    table = Table(title=f"cores, {aim}" if aim else "cores", title_justify="left")
    several = len({size.memory for size in sizes}) < len(sizes)  # a core may differ where environments differ in width
    for column in ("memory", "parameters", "state bytes", "options", "note", *(["environments"] if several else [])):
        table.add_column(column, justify="right" if column in ("parameters", "state bytes") else "left")
    for size, environments in sizes.items():
        row = [size.memory, f"{size.parameters:,}", f"{size.state_bytes:,}", size.options, size.note]
        table.add_row(*row, *([", ".join(environments)] if several else []))
    _console().print(table)


@dataclass(frozen=True)
class CellProgress:
    """How far one core is in one environment; ``frames_planned`` counts all its runs, ``lives_planned`` those that are
    evaluated in the end.
    """

    env: str
    memory: str
    learning_rate: float | None
    runs_done: int
    runs_planned: int
    frames_done: int
    frames_planned: int
    score: float | None
    running: int
    lives_done: int
    lives_planned: int


class LiveTable:
    """A row for each core in each environment, and the time left at the speed of this session.

    On a terminal it is redrawn in place; elsewhere a line about every run that ends and one a minute are printed.
    """

    def __init__(self) -> None:
        self._console = _console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._started, self._said = time.monotonic(), 0.0
        self._frames_before: int | None = None

    def __enter__(self) -> LiveTable:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, ended: Ended) -> None:
        """A run is over."""
        run = "/".join(ended.job.folder.parts[-4:]) + (", its life" if ended.job.verb == "evaluate" else "")
        self._console.print(f"done: {run}" if ended.fault is None else f"failed: {run}: {ended.fault}")

    def update(self, rows: list[CellProgress]) -> None:
        """Show the present state."""
        done, planned = (sum(getattr(row, name) for row in rows) for name in ("frames_done", "frames_planned"))
        if self._frames_before is None:
            self._frames_before = done
        now = time.monotonic()
        speed = (done - self._frames_before) / max(now - self._started, 1e-9)
        left = f"{_clock((planned - done) / speed)} left" if speed > 0 else "time left not known yet"
        title = f"{done:,} of {planned:,} frames, {speed:,.0f} frames/s, {left}"
        lived, lives = (sum(getattr(row, name) for row in rows) for name in ("lives_done", "lives_planned"))
        title += f"; then lives: {lived} of {lives}" if lives else ""
        if self._live:
            self._live.update(self._table(title, rows), refresh=True)
        elif now - self._said > _QUIET_SECONDS:
            self._said = now
            self._console.print(title)

    @staticmethod
    def _table(title: str, rows: list[CellProgress]) -> Table:
        table = Table(title=title, title_justify="left")
        for column in ("environment", "memory", "learning rate", "runs", "running", "frames", "score"):
            table.add_column(column, justify="left" if column in ("environment", "memory") else "right")
        for row in rows:
            table.add_row(
                row.env,
                row.memory,
                "choosing" if row.learning_rate is None else f"{row.learning_rate:g}",
                f"{row.runs_done}/{row.runs_planned}",
                str(row.running or ""),
                f"{row.frames_done / max(row.frames_planned, 1):.0%}",
                "" if row.score is None else f"{row.score:.3f}",
            )
        return table


@dataclass(frozen=True)
class Result:
    """One core in one environment, when all is over: scores of the seeds at the learning rate chosen."""

    env: str
    memory: str
    learning_rate: float
    finals: list[float]
    bests: list[float]
    frames_per_second: float | None
    parameters: int
    state_bytes: int


def print_results(results: list[Result]) -> None:
    """The table of a finished comparison; ``lifelong report`` says more."""
    title = "final quarter (with its bootstrap 95 % interval) and best of training: interquartile means over seeds"
    table = Table(title=title, title_justify="left")
    columns = ("environment", "memory", "learning rate", "seeds", "final quarter", "interval", "best")
    for column in (*columns, "parameters", "state bytes", "frames/s"):
        table.add_column(column, justify="left" if column in ("environment", "memory") else "right")
    for result in results:
        level = estimate([result.finals])
        table.add_row(
            result.env,
            result.memory,
            f"{result.learning_rate:g}",
            str(len(result.finals)),
            f"{float(level.value):.3f}",
            f"{float(level.low):.3f} to {float(level.high):.3f}" if len(result.finals) > 1 else "",
            f"{float(interquartile_mean([result.bests])):.3f}",
            f"{result.parameters:,}",
            f"{result.state_bytes:,}",
            "" if result.frames_per_second is None else f"{result.frames_per_second:,.0f}",
        )
    _console().print(table)


def _console(stderr: bool = False) -> Console:
    """A terminal has a width; a file or a pipe takes whole rows."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_WIDTH_OF_FILES)


def _clock(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {int(seconds % 60):02d} s"
