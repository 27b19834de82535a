"""``lifelong probe memory=NAME[,NAME...]``: what can this memory do? No reinforcement learning, minutes on a CPU.

Every core is put between two linear maps, brought to the same state size, trained by gradient for the same number of
updates on short lives, and then measured (``experiments/probes/``). The folder gets a PNG per probe, the same in
TensorBoard, and ``probe.json`` with every number drawn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from lifelong.experiments.config import load_config
from lifelong.experiments.errors import RunFailed, UserError, did_you_mean, whole_number
from lifelong.experiments.matching import Match, match, refuse_given_width
from lifelong.experiments.probes import pairs, teachers
from lifelong.experiments.probes.catalogue import PROBES, TASKS
from lifelong.experiments.probes.learner import Learner, train
from lifelong.experiments.probes.plots import draw, draw_by_size
from lifelong.experiments.probes.probe import Curve
from lifelong.experiments.run_folder import write_json
from lifelong.memory import LifeTooLong, make_core

_DIM = 64  # width of the cores' inputs and outputs
_LEARNING_RATE = 3e-3
_ROOM = max(pairs.STEPS, teachers.STEPS) + 1  # steps of a life that a growing state must hold: a question follows
_STATE_FLOATS, _UPDATES = 1024, 1000
_KEYS = ("memory", "probes", "seed", "state_floats", "updates", "out", "plugins")


@dataclass(frozen=True)
class _Request:
    """The command line, read."""

    cores: dict[str, dict[str, Any]]  # name: options
    probes: list[str]
    sizes: list[int]  # floats of state
    updates: int
    seed: int
    out: Path


@dataclass
class _Entry:
    """A core at a size, and what came out."""

    name: str
    size: int
    matched: Match
    loss: dict[str, float] = field(default_factory=dict)  # by task, at the end of training
    seconds: float = 0.0  # CPU seconds of everything
    curves: dict[str, dict[str, Curve]] = field(default_factory=dict)  # by probe and panel
    refused: dict[str, str] = field(default_factory=dict)  # by probe: why the core cannot be measured


def probe(arguments: list[str]) -> int:
    """``lifelong probe memory=NAME[,...] [probes=...] [state_floats=1024] [updates=1000] [seed=0] [out=FOLDER]``."""
    request = _read(arguments)
    torch.set_num_threads(1)
    entries: dict[str, _Entry] = {}
    for name, options in request.cores.items():
        for size in request.sizes:
            entry = _Entry(name, size, _match(name, options, size))
            refuse_given_width(entry.matched, arguments, "state_floats")
            entries[name if len(request.sizes) == 1 else f"{name} {size}"] = entry
    for label, entry in entries.items():
        print(f"{label}: {entry.matched}", flush=True)
    _make_folder(request.out)
    failed: list[str] = []
    with SummaryWriter(str(request.out)) as writer:
        try:
            for label, entry in entries.items():
                started = time.process_time()
                try:
                    _examine(label, entry, request, writer)
                except ArithmeticError as error:
                    failed.append(f"{label}: {error}")
                entry.seconds = time.process_time() - started
                _write(request, entries)
        finally:  # on Ctrl-C, what there is
            _draw(request, entries, writer)
    print(_table(request, entries))
    print(f"plots and probe.json: {request.out}")
    if failed:
        raise RunFailed(f"training broke down: {'; '.join(failed)}")
    return 0


def _read(arguments: list[str]) -> _Request:
    given: dict[str, str] = {}
    for word in arguments:
        key, _, value = word.partition("=")
        if key not in _KEYS and not key.startswith("memory."):
            raise UserError(f"{word}: no such key here; allowed: {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}")
        given[key] = value
    names = _listed(given, "memory", [])
    if not names:
        raise UserError("probe needs a memory: lifelong probe memory=NAME[,NAME...]; see lifelong list memory")
    passed_on = [f"{key}={value}" for key, value in given.items() if key.startswith("memory.") or key == "plugins"]
    if len(names) > 1 and any(key.startswith("memory.") for key in given):
        raise UserError("options of a core (memory.KEY=VALUE) can be given for one core only")
    cores = {name: dict(load_config([f"memory={name}", *passed_on]).memory) for name in names}
    probes = _listed(given, "probes", list(PROBES))
    for word in probes:
        if word not in PROBES:
            raise UserError(f"probes={word}: unknown; allowed: {', '.join(PROBES)}{did_you_mean(word, PROBES)}")
    return _Request(
        cores,
        probes,
        [whole_number(f"state_floats={word}", 1) for word in _listed(given, "state_floats", [str(_STATE_FLOATS)])],
        whole_number(f"updates={given.get('updates', _UPDATES)}", 1),
        whole_number(f"seed={given.get('seed', 0)}", 0),
        Path(given.get("out") or Path("runs") / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_probe"),
    )


def _listed(given: dict[str, str], key: str, default: list[str]) -> list[str]:
    words = [word.strip() for word in given.get(key, "").strip("[]").split(",")]
    return list(dict.fromkeys(word for word in words if word)) or default


def _match(name: str, options: dict[str, Any], size: int) -> Match:
    try:
        # The core's own name may differ from that of the file that holds its options.
        chosen = dict(options)
        core_name = chosen.pop("name")
        return _with_room(core_name, match(core_name, chosen, _DIM, state_bytes=4 * size), size)
    except (ValueError, TypeError) as error:
        raise UserError(f"memory={name}: {' '.join(str(error).split())}") from error


def _with_room(core_name: str, matched: Match, size: int) -> Match:
    """A state that grows with the life must hold the lives of the training, whatever the bytes that are asked for."""
    core = make_core(core_name, _DIM, **matched.options)
    if matched.width is None or core.state_bytes_at(_ROOM) <= core.state_bytes():
        return matched
    options = {**matched.options, matched.width: _ROOM}
    state_bytes = make_core(core_name, _DIM, **options).state_bytes()
    note = f"it grows, and the task needs {_ROOM} steps: {state_bytes / (4 * size):.0f} times the bytes asked for"
    return Match(options, matched.width, state_bytes, matched.parameters, note)


def _make_folder(path: Path) -> None:
    if (path / "probe.json").exists():
        raise UserError(f"out={path} holds the result of a probe already")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={path}: cannot write there: {error.strerror}") from error


def _examine(label: str, entry: _Entry, request: _Request, writer: SummaryWriter) -> None:
    """Train the core on what the probes need, and measure it."""
    for task in dict.fromkeys(PROBES[name].task for name in request.probes):
        torch.manual_seed(request.seed)
        core = make_core(request.cores[entry.name]["name"], _DIM, **entry.matched.options)
        learner = Learner(core, TASKS[task].token_size, TASKS[task].answer_size)
        with tqdm(total=request.updates, desc=f"{label}: learns {task}", unit="update", **_bar()) as bar:

            def learned(loss: float, bar: tqdm = bar, task: str = task) -> None:
                bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                bar.update()
                if bar.n % 10 == 0:
                    writer.add_scalar(f"probe/loss_{task}/{label}", loss, bar.n)

            try:
                entry.loss[task] = train(
                    learner, TASKS[task].loss, request.updates, _LEARNING_RATE, request.seed, learned
                )
            except LifeTooLong as error:
                entry.refused.update({name: str(error) for name in request.probes if PROBES[name].task == task})
                continue
        for name in request.probes:
            if PROBES[name].task == task:
                generator = torch.Generator().manual_seed(request.seed + 1)  # the same lives for every core
                with torch.no_grad(), _told(f"{label}: {name}") as progress:
                    try:
                        entry.curves[name] = PROBES[name].measure(learner, generator, progress)
                    except ValueError as error:  # a memory whose state grows says when a life has outgrown it
                        entry.refused[name] = " ".join(str(error).split())


@contextmanager
def _told(what: str) -> Iterator[Callable[[str], None]]:
    """A line that says how far a measurement is."""
    with tqdm(desc=what, bar_format="{desc} {postfix} [{elapsed}]", **_bar()) as bar:

        def tell(where: str) -> None:
            bar.set_postfix_str(where, refresh=False)
            bar.update()

        yield tell


def _bar() -> dict[str, Any]:
    terminal = sys.stderr.isatty()
    return {"mininterval": 0.5 if terminal else 10, "leave": False, "dynamic_ncols": True, "file": sys.stderr}


def _write(request: _Request, entries: dict[str, _Entry]) -> None:
    """``probe.json``: the numbers behind every plot."""
    levels = {
        name: {
            key: {
                label: asdict(level) if isinstance(level, Curve) else level
                for label, level in panel.references().items()
            }
            for key, panel in PROBES[name].panels.items()
        }
        for name in request.probes
    }
    write_json(
        request.out / "probe.json",
        {
            "seed": request.seed,
            "updates": request.updates,
            "learning_rate": _LEARNING_RATE,
            "references": levels,
            "cores": {label: {**asdict(entry), "headlines": _headlines(entry)} for label, entry in entries.items()},
        },
    )


def _headlines(entry: _Entry) -> dict[str, float]:
    return {name: PROBES[name].headline(curves) for name, curves in entry.curves.items()}


def _draw(request: _Request, entries: dict[str, _Entry], writer: SummaryWriter) -> None:
    """A PNG per probe, and the same in TensorBoard."""
    sizes = ", ".join(f"{size:,}" for size in request.sizes)
    budget = f"{request.updates:,} updates of training, seed {request.seed}"
    others = [f"{entry.name} {entry.matched.state_bytes // 4:,}" for entry in entries.values() if entry.matched.note]
    exceptions = f" (but {', '.join(dict.fromkeys(others))})" if others else ""
    subtitle = f"{sizes} floats of state{exceptions}, {budget}; bars: one standard error"
    for name in request.probes:
        curves = {label: entry.curves[name] for label, entry in entries.items() if name in entry.curves}
        figure = draw(PROBES[name], curves, subtitle)
        figure.savefig(request.out / f"{name}.png")
        writer.add_figure(f"probe/{name}", figure)
    if "capacity" in request.probes and len(request.sizes) > 1:
        held: dict[str, list[tuple[float, float]]] = {}
        for entry in entries.values():
            if "capacity" in entry.curves and entry.matched.state_bytes:
                point = (entry.matched.state_bytes / 4, PROBES["capacity"].headline(entry.curves["capacity"]))
                held.setdefault(entry.name, []).append(point)
        figure = draw_by_size(held, subtitle)
        figure.savefig(request.out / "capacity_by_size.png")
        writer.add_figure("probe/capacity_by_size", figure)


def _table(request: _Request, entries: dict[str, _Entry]) -> str:
    """A row per core, a column per probe."""
    width = max(len(label) for label in entries) + 2
    lines = ["", " " * width + "".join(f"{name:>17}" for name in request.probes) + f"{'CPU seconds':>14}"]
    for label, entry in entries.items():
        numbers = _headlines(entry)
        cells = (f"{numbers[name]:,.3g}" if name in numbers else "-" for name in request.probes)
        lines.append(f"{label:<{width}}" + "".join(f"{cell:>17}" for cell in cells) + f"{entry.seconds:>14.0f}")
    lines += [f"  {name}: {PROBES[name].headline_says}" for name in request.probes]
    lines += [f"{label}, {name}: {why}" for label, entry in entries.items() for name, why in entry.refused.items()]
    return "\n".join(lines)
