"""``lifelong list memory --check``: what a memory for a life without end must be, measured for every core.

Four requirements, from the paper behind the project: a state and a step that cost the same at any age; a parallel
form equal to the steps; no write that is lost below what float32 can hold; and enough expressiveness to hold what is
written. Cores are built with their defaults at width 64, and nothing is taken from what they say of themselves but the
bytes that a growing state would need.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.experiments.config import import_plugin, plugin_names
from lifelong.experiments.errors import UserError, did_you_mean
from lifelong.experiments.probes import pairs
from lifelong.experiments.probes.learner import Learner, train
from lifelong.memory import MemoryCore, core_names, core_options, make_core

_DIM = 64
_YOUNG, _OLD = 1_000, 1_000_000  # life steps
_GROWING_REACH = 10_000  # as old as a growing state is made: its cost is plain by then
_CHUNK = 1_000  # steps of a sequence call while a life is lived
_AGES = (1, 10, 100, 1_000)
_PAIRS, _UPDATES = 8, 300  # of the recall task and its training

# The newest write sets the size of what a state holds at least; float32 rounds off what is smaller by this factor.
_HELD = torch.finfo(torch.float32).eps
_TOLERANCE = 1e-4  # of the parallel form, float32, over _PARALLEL_STEPS
_PARALLEL_STEPS, _PARALLEL_LIVES = 256, 4
_ENOUGH_RECALL = 0.5
_SLOWER = 1.5  # an old life's step takes at most so many times as long as a young one's


@dataclasses.dataclass
class Requirements:
    """What was measured of one core."""

    memory: str
    bytes_young: int  # of state at life step 10^3
    bytes_old: int  # at life step 10^6
    lived: int  # the life step at which the old life was timed
    step_young: float  # microseconds of a step of one life at life step 10^3
    step_old: float  # at life step ``lived``
    parallel_error: float  # largest difference between the sequence call and the steps, over the largest output
    parallel_speed: float  # time of the steps over that of the sequence call
    lost: float  # share of the last 1,000 writes that weigh less than float32 holds beside the newest
    weights: dict[int, float]  # weight of a write in the state by age, over that of age 1
    recall: float  # share of 8 pairs recalled after a short training

    def failures(self) -> list[str]:
        """The requirements that are not met, in words."""
        found = []
        if self.bytes_old > self.bytes_young:
            found.append("state grows")
        if self.step_old > _SLOWER * self.step_young:
            found.append("step slows")
        if not self.parallel_error < _TOLERANCE:
            found.append("parallel form differs")
        if self.parallel_speed < 2.0:
            found.append("no parallel form")
        if self.lost > 0.0:
            found.append("loses writes")
        if self.recall < _ENOUGH_RECALL:
            found.append("recalls little")
        return found


def check(arguments: list[str]) -> int:
    """``lifelong list memory --check [memory=a,b] [seconds=5] [out=FILE.json] [plugins=[...]]``. Returns 0.

    Raises:
        UserError: a word that does not fit, or a file that cannot be written.
    """
    names, seconds, out = _parse(arguments)
    torch.set_num_threads(1)
    print(_HEADER, flush=True)
    rows = []
    for name in names:
        try:
            row = measure(name, seconds)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            print(f"{name:<18} could not be measured: {' '.join(str(error).split())[:200]}", flush=True)
            continue
        rows.append(row)
        print(_line(row), flush=True)
    print(_footer(seconds))
    if out is not None:
        _write(out, rows)
    return 0


def measure(name: str, seconds: float) -> Requirements:
    """Measure one core; ``seconds`` of CPU time are given to living to step 10^6."""
    core = build(name, _YOUNG)
    bytes_young, bytes_old = core.state_bytes_at(_YOUNG), core.state_bytes_at(_OLD)
    target = _GROWING_REACH if bytes_old > bytes_young else _OLD
    young_core, old_core = build(name, _YOUNG + _CHUNK), build(name, target + _CHUNK)
    young, _ = live(young_core, _YOUNG, seconds)
    old, lived = live(old_core, target, seconds)
    step_young, step_old = time_steps([(young_core, young), (old_core, old)])
    error, speed = parallel_form(core)
    weights = weights_by_age(build(name, max(_AGES) + 1))
    return Requirements(
        memory=name,
        bytes_young=bytes_young,
        bytes_old=bytes_old,
        lived=lived,
        step_young=step_young,
        step_old=step_old,
        parallel_error=error,
        parallel_speed=speed,
        lost=share_lost(weights),
        weights={age: _relative(weights, age) for age in _AGES},
        recall=recall(build(name, _YOUNG)),
    )


def build(name: str, longest_life: int) -> MemoryCore:
    """The core with its defaults, the same weights every time; a cache that grows gets the room that it needs."""
    torch.manual_seed(0)
    room = {"capacity": longest_life} if "capacity" in core_options(name) else {}
    return make_core(name, _DIM, **room)


@torch.no_grad()
def live(core: MemoryCore, steps: int, seconds: float) -> tuple[TensorDict, int]:
    """Live one life of ``steps`` random steps in sequence calls, or what fits into ``seconds`` of CPU time (1,000 at
    least). Returns the state and the steps lived.
    """
    generator = torch.Generator().manual_seed(0)
    state, lived, started = core.initial_state(1), 0, time.process_time()
    while lived < steps and (lived == 0 or time.process_time() - started < seconds):
        inputs = torch.randn(1, _CHUNK, core.dim, generator=generator)
        _, state = core(inputs, state)
        lived += _CHUNK
    return state, lived


@torch.no_grad()
def time_steps(lives: list[tuple[MemoryCore, TensorDict]], rounds: int = 9, steps: int = 20) -> list[float]:
    """Microseconds of one step of each life: medians over rounds that take turns."""
    inputs = torch.randn(1, _DIM)
    taken: list[list[float]] = [[] for _ in lives]
    for _ in range(rounds + 1):
        for of_life, (core, state) in zip(taken, lives, strict=True):
            started = time.process_time()
            for _ in range(steps):
                core.step(inputs, state)
            of_life.append((time.process_time() - started) / steps * 1e6)
    return [statistics.median(of_life[1:]) for of_life in taken]  # the first round warms up


@torch.no_grad()
def parallel_form(core: MemoryCore) -> tuple[float, float]:
    """The sequence call beside the steps folded, resets inside: largest relative difference, and how much faster."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(_PARALLEL_LIVES, _PARALLEL_STEPS, core.dim, generator=generator)
    reset = torch.rand(_PARALLEL_LIVES, _PARALLEL_STEPS, generator=generator) < 0.01

    def sequence() -> tuple[Tensor, TensorDict]:
        return core(inputs, core.initial_state(_PARALLEL_LIVES), reset)

    def folded() -> tuple[Tensor, TensorDict]:
        state, outputs = core.initial_state(_PARALLEL_LIVES), []
        for t in range(_PARALLEL_STEPS):
            output, state = core.step(inputs[:, t], state, reset[:, t])
            outputs.append(output)
        return torch.stack(outputs, 1), state

    (found, state), (wanted, wanted_state) = sequence(), folded()
    error = 0.0
    for a, b in [(found, wanted), *zip(_floating(state), _floating(wanted_state), strict=True)]:
        error = max(error, float((a - b).abs().max() / b.abs().max().clamp(min=1.0)))
    times = [[_seconds(run) for run in (sequence, folded)] for _ in range(3)]
    return error, statistics.median(slow / fast for fast, slow in times)


def weights_by_age(core: MemoryCore) -> Tensor:
    """How much the state after 1,001 steps depends on the input of each age 0 .. 1,000: the largest entry of the
    gradient of a random functional, in float64. (A norm would square 10^-180 to zero, which is no eviction.)
    """
    core = core.double()
    steps = max(_AGES) + 1
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(1, steps, core.dim, generator=generator, dtype=torch.float64).requires_grad_()
    _, state = core(inputs, core.initial_state(1))
    parts = [leaf for leaf in _floating(state) if leaf.requires_grad]
    if not parts:
        return torch.zeros(steps, dtype=torch.float64)
    functional = sum((leaf * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)).sum() for leaf in parts)
    (gradient,) = torch.autograd.grad(functional, inputs, materialize_grads=True)  # type: ignore[arg-type]
    return gradient[0].abs().amax(-1).flip(0)


def recall(core: MemoryCore) -> float:
    """Train on 8 pairs of the probes' task, written and then each asked once, for 300 updates; the share recalled.

    Guessing is right once in 8 times. ``lifelong probe`` asks more, with a training that is long enough.
    """
    torch.manual_seed(3)
    learner = Learner(core, pairs.TOKEN, pairs.VALUES)

    def scores(lives: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens, wanted = recall_batch(lives, generator)
        answers, _ = learner(tokens, learner.initial_state(lives))
        return answers[:, _PAIRS:], wanted

    def loss(learner: Learner, generator: torch.Generator) -> Tensor:
        answers, wanted = scores(32, generator)
        return nn.functional.cross_entropy(answers.flatten(0, 1), wanted.flatten())

    train(learner, loss, _UPDATES, learning_rate=3e-3, seed=3)
    with torch.no_grad():
        answers, wanted = scores(256, torch.Generator().manual_seed(4))
    return float((answers.argmax(-1) == wanted).double().mean())


def recall_batch(lives: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens [B, 16, F] (8 pairs, then their keys in another order), and the answers [B, 8]."""
    keys = pairs.draw_keys(lives, _PAIRS, 0.0, generator)
    values = pairs.draw_values(lives, _PAIRS, generator=generator)
    order = torch.rand(lives, _PAIRS, generator=generator).argsort(1)
    asked = keys.gather(1, order.unsqueeze(2).expand_as(keys))
    return torch.cat([pairs.write_tokens(keys, values), pairs.ask_tokens(asked)], 1), values.gather(1, order)


def share_lost(weights: Tensor) -> float:
    """Share of the ages 1 .. 1,000 whose weight is below 1.2e-7, float32's resolution, of that of age 1.

    A state in float32 holds at least what its newest write left there, and what an old write adds to that must not
    be smaller than the last digit. Above zero is not enough: a gradient in float64 finds 10^-143. The weight is that of
    age 1 and not 0, which a convolution in front has not fully seen.
    """
    return float((weights[1:] <= _HELD * weights[1]).double().mean())


def _relative(weights: Tensor, age: int) -> float:
    """Over that of age 1; the mean of the ages from 0.8 of it on."""
    some = weights[min(age, int(0.8 * age) + 1) : age + 1]
    return float(some.mean() / weights[1]) if weights[1] > 0 else 0.0


def _floating(state: TensorDict) -> list[Tensor]:
    return [leaf for leaf in state.values(True, True) if leaf.is_floating_point()]


def _seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


_HEADER = (
    f"{'':<18} {'bytes of state at':>21} {'us a step at':>23} {'parallel form':>15} {'lost, of':>10} "
    f"{'weight at':>9} {'pairs':>5}\n"
    f"{'memory':<18} {'10^3':>9} {'10^6 steps':>11} {'10^3':>9} {'old (steps)':>13} {'error':>8} {'faster':>6} "
    f"{'last 1,000':>10} {'1,000':>9} {'of 8':>5}  fails"
)


def _line(row: Requirements) -> str:
    old = f"{row.step_old:.0f} ({_count(row.lived)})"
    return (
        f"{row.memory:<18} {row.bytes_young:>9,} {row.bytes_old:>11,} {row.step_young:>9.0f} {old:>13} "
        f"{row.parallel_error:>8.0e} {row.parallel_speed:>5.1f}x {row.lost:>10.1%} {row.weights[1_000]:>9.0e} "
        f"{row.recall * _PAIRS:>5.1f}  {', '.join(row.failures()) or '-'}"
    )


def _count(steps: int) -> str:
    return f"{steps / 1e6:.2g}M" if steps >= 1e6 else f"{steps // 1000}k"


def _footer(seconds: float) -> str:
    return (
        f"Defaults at width {_DIM}, one life, one thread, one seed, CPU time.\n"
        f"old: lived by sequence calls of {_CHUNK:,} random steps, to step 10^6 or for {seconds:g} s; a state that "
        f"grows, to step {_GROWING_REACH:,}.\n"
        f"parallel form: float32, {_PARALLEL_STEPS} steps with resets, beside the steps one by one; fails above "
        f"{_TOLERANCE:g} or below 2x.\n"
        f"lost: share of writes whose weight in the state (float64 gradients) is below {_HELD:.1e} of that of a write\n"
        f"of age 1: less than float32 holds beside it.\n"
        f"weight at 1,000: of a write of that age over one of age 1, untrained; small is fading, and can be learned.\n"
        f"pairs: recalled after {_UPDATES} updates, {_PAIRS * pairs.CHANCE:g} by guessing; fails below "
        f"{_ENOUGH_RECALL * _PAIRS:g}. lifelong probe asks more."
    )


def _parse(arguments: list[str]) -> tuple[list[str], float, Path | None]:
    values = {"memory": "", "seconds": "5", "out": "", "plugins": "[]"}
    for word in arguments:
        key, _, value = word.partition("=")
        if key not in values or not value:
            raise UserError(
                f"list memory --check {word}: unknown; allowed: memory=a,b seconds=N out=FILE plugins=[...]"
                f"{did_you_mean(key, values)}"
            )
        values[key] = value
    for module in plugin_names(values["plugins"]):
        import_plugin(module)
    names = [name for name in values["memory"].split(",") if name] or core_names()
    for name in names:
        if name not in core_names():
            raise UserError(
                f"memory={name}: unknown; allowed: {', '.join(core_names())}{did_you_mean(name, core_names())}"
            )
    try:
        seconds = float(values["seconds"])
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise UserError(f"seconds={values['seconds']}: must be a number, 0 or more")
    return names, seconds, Path(values["out"]) if values["out"] else None


def _write(out: Path, rows: list[Requirements]) -> None:
    content = {row.memory: {**dataclasses.asdict(row), "fails": row.failures()} for row in rows}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"{out} was not written: {error.strerror}") from error
    print(f"written: {out}")
