"""``lifelong bench kernels``: the fast-weight kernels beside their peers on this machine, as ratios of one run.

Rows are measured in turns, so that a change of the machine's load meets all of them, and medians are compared: of CPU
time where one thread works, of wall time else. The first row is the largest error against the float64 reference:
speed of wrong numbers is not reported.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lifelong.experiments.errors import UserError, did_you_mean
from lifelong.kernels import FastWeightOutput, fast_weight_attention, fast_weight_step

Work = Callable[[], object]
Clock = Callable[[], float]

_TRAINING_SHAPES = ((32, 128, 4, 32), (16, 256, 2, 64))
_ERROR_BAR = 5e-6


@dataclass(frozen=True)
class Row:
    """One line of the table. The bar, if there is one, is about `ratio`; `at_most` says on which side of it to be."""

    what: str
    ours: str
    peer: str
    ratio: float
    bar: float | None = None
    at_most: bool = True

    def __str__(self) -> str:
        row = f"{self.what:<58} {self.ours:>12} {self.peer:>26} {self.ratio:>9.3g}"
        if self.bar is None:
            return row
        met = self.ratio <= self.bar if self.at_most else self.ratio >= self.bar
        bar = f"{'<=' if self.at_most else '>='} {self.bar:g}"
        return f"{row} {bar:>8} {'met' if met else 'MISSED':>7}"


@dataclass(frozen=True)
class Inputs:
    """Tokens of a gated delta memory: unit keys, mild decays, a reset every 32 steps."""

    query: Tensor
    key: Tensor
    value: Tensor
    write_rate: Tensor
    log_decay: Tensor
    reset: Tensor
    state: Tensor

    @classmethod
    def make(cls, lives: int, length: int, heads: int, width: int, device: str = "cpu") -> Inputs:
        generator = torch.Generator().manual_seed(0)
        scalars = (lives, length, heads)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        return cls(
            query=normal(*scalars, width),
            key=functional.normalize(normal(*scalars, width), dim=-1),
            value=normal(*scalars, width),
            write_rate=normal(*scalars).sigmoid(),
            log_decay=-0.1 * normal(*scalars).abs(),
            reset=(torch.rand(lives, length, generator=generator) < 1 / 32).to(device),
            state=normal(lives, heads, width, width),
        )

    @property
    def learned(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.value, self.write_rate, self.log_decay, self.state

    def to_double(self) -> Inputs:
        names = ("query", "key", "value", "write_rate", "log_decay", "state")
        return replace(self, **{name: getattr(self, name).double() for name in names})

    def run(self, implementation: str) -> FastWeightOutput:
        return fast_weight_attention(
            self.query, self.key, self.value, self.write_rate, self.log_decay,
            reset=self.reset, initial_state=self.state, implementation=implementation,
        )  # fmt: skip


def medians(works: Sequence[Work], rounds: int, clock: Clock = time.process_time, repeats: int = 1) -> list[float]:
    """Median seconds of each, taken in turns after one round that does not count."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, seconds in zip(works, taken, strict=True):
            start = clock()
            for _ in range(repeats):
                work()
            seconds.append((clock() - start) / repeats)
    return [statistics.median(seconds[1:]) for seconds in taken]


def training(inputs: Inputs, implementation: str) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward, gradients into everything."""
    for tensor in inputs.learned:
        tensor.requires_grad_()
    seed = inputs.value.detach().roll(1, 0)
    return lambda: torch.autograd.grad(inputs.run(implementation).output, inputs.learned, seed)


def recurrent(peer: type[nn.LSTM] | type[nn.GRU], lives: int, length: int, width: int = 128) -> Work:
    module = peer(width, width, batch_first=True)
    inputs = torch.randn(lives, length, width, requires_grad=True)
    seed = torch.randn(lives, length, width)
    return lambda: torch.autograd.grad(module(inputs)[0], (inputs, *module.parameters()), seed)


def softmax_attention(lives: int, length: int, heads: int, width: int) -> Work:
    query, key, value = (torch.randn(lives, heads, length, width, requires_grad=True) for _ in range(3))
    seed = torch.randn(lives, heads, length, width)

    def work() -> object:
        output = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return torch.autograd.grad(output, (query, key, value), seed)

    return work


def acting(lives: int, heads: int, width: int, device: str = "cpu") -> Work:
    """One step of every life, in place."""
    inputs = Inputs.make(lives, 1, heads, width, device)
    query, key, value, write_rate, log_decay = (tensor[:, 0].contiguous() for tensor in inputs.learned[:5])

    @torch.no_grad()
    def work() -> object:
        return fast_weight_step(
            query, key, value, write_rate, log_decay, reset=inputs.reset[:, 0], state=inputs.state, in_place=True
        )

    return work


def gru_cell(lives: int, width: int = 128) -> Work:
    peer = nn.GRUCell(width, width)
    inputs, hidden = torch.randn(lives, width), torch.zeros(lives, width)
    return torch.no_grad()(lambda: peer(inputs, hidden))


def error_rows(rounds: int) -> Iterator[Row]:
    inputs = Inputs.make(4, 64, 2, 32)
    exact = training(inputs.to_double(), "reference")()
    for name in ("chunked", "native"):
        found = training(inputs, name)()
        error = max(((one - two).norm() / two.norm()).item() for one, two in zip(found, exact, strict=True))
        yield Row(f"{name}: gradients against float64", f"{error:.1e}", "reference", error, _ERROR_BAR)


def training_rows(rounds: int) -> Iterator[Row]:
    for shape in _TRAINING_SHAPES:
        names = {"native": 0.4, "chunked": 1.25}
        works: list[Work] = [training(Inputs.make(*shape), name) for name in names]
        works += [recurrent(nn.LSTM, *shape[:2]), recurrent(nn.GRU, *shape[:2])]
        *ours, lstm, gru = medians(works, rounds)
        for (name, bar), seconds in zip(names.items(), ours, strict=True):
            what = f"{name}: training {_shape(shape)}"
            yield Row(what, _ms(seconds), f"LSTM(128) {_ms(lstm)}", seconds / lstm, bar)
            yield Row(what, _ms(seconds), f"GRU(128) {_ms(gru)}", seconds / gru)


def long_rows(rounds: int) -> Iterator[Row]:
    for length, bar in ((512, 4.0), (4096, 15.0)):
        shape = (4096 // length, length, 4, 32)
        names = ("native", "chunked")
        works = [training(Inputs.make(*shape), name) for name in names]
        *ours, peer = medians([*works, softmax_attention(*shape)], rounds)
        for name, seconds in zip(names, ours, strict=True):
            what = f"{name}: training {_shape(shape)}, times faster"
            yield Row(what, _ms(seconds), f"softmax {_ms(peer)}", peer / seconds, bar, at_most=False)


def step_rows(rounds: int) -> Iterator[Row]:
    for lives in (1, 16, 256, 1024):
        ours, peer = medians([acting(lives, 4, 32), gru_cell(lives)], rounds, repeats=max(3, 2000 // lives))
        yield Row(f"step of {lives} lives, H=4 D=32", _us(ours), f"GRUCell(128) {_us(peer)}", ours / peer, 1.0)


def thread_rows(rounds: int) -> Iterator[Row]:
    def with_threads(work: Work, count: int) -> object:
        torch.set_num_threads(count)
        return work()

    for shape in _TRAINING_SHAPES:
        work = training(Inputs.make(*shape), "native")
        works = [partial(with_threads, work, 1), partial(with_threads, work, 2)]
        one, two = medians(works, 2 * rounds, time.perf_counter)
        torch.set_num_threads(1)
        what = f"native: training {_shape(shape)}, two threads, times faster"
        yield Row(what, _ms(two), f"one thread {_ms(one)}", one / two, 1.6, at_most=False)


def life_rows(rounds: int, steps: int = 10_000_000, piece: int = 50_000) -> Iterator[Row]:
    """One unbroken life in float32 beside float64."""
    single = torch.zeros(1, 1, 16, 16)
    double, largest = single.double(), 0.0
    for start in range(0, steps, piece):
        inputs = replace(Inputs.make(1, piece, 1, 16), reset=torch.zeros(1, piece, dtype=torch.bool))
        inputs = replace(inputs, value=inputs.value.roll(start // piece, 1))
        found = replace(inputs, state=single).run("auto")
        expected = replace(inputs.to_double(), state=double).run("auto")
        single, double = cast(Tensor, found.state), cast(Tensor, expected.state)
        largest = max(largest, float(torch.linalg.vector_norm(single)))
    last = slice(-1000, None)
    error = (found.output[:, last] - expected.output[:, last]).norm() / expected.output[:, last].norm()
    what = f"life of {steps:.0e} steps, last outputs; largest |S| {largest:.1f}"
    yield Row(what, f"{error.item():.1e}", "float64", error.item(), 1e-4)


def soak_rows(rounds: int, calls: int = 1_000_000) -> Iterator[Row]:
    """Whether a step costs as much, in time and in memory, after a million calls as at the start."""
    import resource  # Windows has none

    work, seconds, peaks = acting(1, 4, 32), [], []
    for _ in range(10):
        seconds += medians([work], 1, repeats=calls // 20)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    what = f"time of a step after {calls:.0e} calls, of that at the start"
    yield Row(what, _us(seconds[-1]), f"start {_us(seconds[0])}", seconds[-1] / seconds[0], 1.2)
    what = f"peak memory after {calls:.0e} calls, of that after a tenth"
    yield Row(what, f"{peaks[-1] >> 10} MiB", f"a tenth {peaks[0] >> 10} MiB", peaks[-1] / peaks[0], 1.01)


def gpu_rows(rounds: int) -> Iterator[Row]:
    """The step beside a copy of its state; training beside flash-linear-attention, where that is installed."""
    lives, heads, width = 4096, 4, 64
    state = torch.empty(lives, heads, width, width, device="cuda")
    copy = state.clone()
    ours, peer = medians(
        [_on_gpu(acting(lives, heads, width, "cuda")), _on_gpu(lambda: copy.copy_(state))], rounds, time.perf_counter
    )
    what = f"step of {lives} lives, H={heads} D={width}: bandwidth"
    yield Row(what, _us(ours), f"copy of the state {_us(peer)}", peer / ours, 0.8, at_most=False)

    shape = (1024, 128, 4, 64)
    inputs = Inputs.make(*shape, "cuda")
    works = [_on_gpu(training(inputs, "auto"))]
    if importlib.util.find_spec("fla") is None:
        print("flash-linear-attention is not installed: not compared (pip install flash-linear-attention)")
        return
    ours, peer = medians([*works, _on_gpu(_flash_linear_attention(inputs))], rounds, time.perf_counter)
    yield Row(f"triton: training {_shape(shape)}", _ms(ours), f"fla {_ms(peer)}", ours / peer, 1.0)


def _flash_linear_attention(inputs: Inputs) -> Work:
    """The same data, packed into one row of sequences that end at resets."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    starts = inputs.reset.clone()
    starts[:, 0] = True
    bounds = starts.flatten().nonzero()[:, 0]
    end = bounds.new_full((1,), starts.numel())
    offsets = torch.cat([bounds, end]).to(torch.int32)
    packed = [tensor.detach().flatten(0, 1)[None].requires_grad_() for tensor in inputs.learned[:5]]
    query, key, value, rate, decay = packed
    entry = torch.zeros(len(bounds), *inputs.state.shape[1:], device="cuda")
    goes_on = ~inputs.reset[:, 0]
    entry[(bounds % inputs.reset.shape[1] == 0).nonzero()[goes_on, 0]] = inputs.state.detach()[goes_on].mT
    entry.requires_grad_()
    seed = torch.randn_like(value)

    def work() -> object:
        output, _ = chunk_gated_delta_rule(
            query, key, value, decay, rate, scale=1.0, initial_state=entry, output_final_state=True, cu_seqlens=offsets
        )
        return torch.autograd.grad(output, [*packed, entry], seed)

    return work


def _on_gpu(work: Work) -> Work:
    def run() -> object:
        made = work()
        torch.cuda.synchronize()
        return made

    return run


def _shape(shape: tuple[int, ...]) -> str:
    return " ".join(f"{name}={size}" for name, size in zip("BTHD", shape, strict=True))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} us"


_PARTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "error": error_rows,
    "training": training_rows,
    "long": long_rows,
    "step": step_rows,
    "threads": thread_rows,
    "life": life_rows,
    "soak": soak_rows,
    "gpu": gpu_rows,
}


def main(arguments: list[str]) -> int:
    """``lifelong bench kernels [PART ...] [rounds=N]``; returns 1 if the numbers are wrong, which ends the run."""
    parts, rounds = [], 15
    for argument in arguments:
        name, _, number = argument.partition("=")
        if name == "rounds" and number.isdecimal() and int(number) > 0:
            rounds = int(number)
        elif argument in _PARTS:
            parts.append(argument)
        else:
            raise UserError(
                f"{argument}: not a part of the benchmark; allowed: {', '.join(_PARTS)}, and rounds=N"
                f"{did_you_mean(argument, _PARTS)}"
            )
    torch.set_num_threads(1)
    load = " ".join(f"{part:.1f}" for part in os.getloadavg())
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(f"{os.cpu_count()} CPUs, load {load}; GPU: {gpu}; torch {torch.__version__}; one thread, {rounds} rounds")
    print(f"{'':<58} {'ours':>12} {'peer':>26} {'ratio':>9} {'bar':>8}")
    for part, rows in _PARTS.items():
        if parts and part not in parts and part != "error":
            continue
        if part == "gpu" and not torch.cuda.is_available():
            print("gpu: not measured, there is none")
            continue
        for row in rows(rounds):
            print(row, flush=True)
            if part == "error" and not row.ratio <= _ERROR_BAR:
                return 1
    return 0
