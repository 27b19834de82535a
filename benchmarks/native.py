"""How fast and how accurate the native fast-weight kernels are, as ratios to peers measured in the same run.

    python benchmarks/native.py [training] [long] [acting] [threads] [life] [soak] [--rounds 15]

training  forward and backward, one thread, beside `torch.nn.LSTM(128)`, with the bars of 0.4 times its time
long      the same at T = 512 and 4096 beside causal `scaled_dot_product_attention`; bars 4 and 15 times faster
acting    `fast_weight_step` beside `torch.nn.GRUCell(128)`; bar: not slower at any number of lives
threads   forward and backward with two threads beside one; bar 1.6 times faster (needs two idle cores)
life      ten million steps of a gated delta memory in float32 beside float64; bar 1e-4
soak      a million calls of `fast_weight_step`: time and memory of the last tenth beside those of the first

Rows are measured in turns, so that a change of the machine's load meets all of them: medians of CPU time, except for
`threads`, which is wall time.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lifelong.kernels import fast_weight_attention, fast_weight_step

Work = Callable[[], object]
Clock = Callable[[], float]


def medians(works: Sequence[Work], rounds: int, clock: Clock = time.process_time, repeats: int = 1) -> list[float]:
    """Median seconds of each, taken in turns."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, seconds in zip(works, taken, strict=True):
            start = clock()
            for _ in range(repeats):
                work()
            seconds.append((clock() - start) / repeats)
    return [statistics.median(seconds[1:]) for seconds in taken]


def training(lives: int, length: int, heads: int, width: int, implementation: str = "native") -> Work:
    """Forward and backward of the gated delta rule with resets, gradients into everything."""
    shape = (lives, length, heads)
    query, value = (torch.randn(*shape, width, requires_grad=True) for _ in range(2))
    key = functional.normalize(torch.randn(*shape, width), dim=-1).requires_grad_()
    write_rate = torch.rand(shape, requires_grad=True)
    log_decay = (-0.1 * torch.rand(shape)).requires_grad_()
    state = torch.zeros(lives, heads, width, width, requires_grad=True)
    reset = torch.rand(lives, length) < 1 / 32
    seed = torch.randn(*shape, width)
    arguments = (query, key, value, write_rate, log_decay)

    def work() -> object:
        output = fast_weight_attention(
            *arguments, reset=reset, initial_state=state, implementation=implementation
        ).output
        return torch.autograd.grad(output, (*arguments, state), seed)

    return work


def lstm(lives: int, length: int, width: int = 128) -> Work:
    peer = nn.LSTM(width, width, batch_first=True)
    inputs = torch.randn(lives, length, width, requires_grad=True)
    seed = torch.randn(lives, length, width)
    return lambda: torch.autograd.grad(peer(inputs)[0], (inputs, *peer.parameters()), seed)


def softmax_attention(lives: int, length: int, heads: int, width: int) -> Work:
    inputs = [torch.randn(lives, heads, length, width, requires_grad=True) for _ in range(3)]
    seed = torch.randn(lives, heads, length, width)
    return lambda: torch.autograd.grad(functional.scaled_dot_product_attention(*inputs, is_causal=True), inputs, seed)


def acting(lives: int, heads: int, width: int) -> Work:
    query, value = (torch.randn(lives, heads, width) for _ in range(2))
    key = functional.normalize(torch.randn(lives, heads, width), dim=-1)
    gates = torch.rand(lives, heads), -0.1 * torch.rand(lives, heads)
    reset = torch.rand(lives) < 1 / 32
    state = torch.zeros(lives, heads, width, width)

    def work() -> object:
        with torch.no_grad():
            return fast_weight_step(
                query, key, value, *gates, reset=reset, state=state, implementation="native", in_place=True
            )

    return work


def gru_cell(lives: int, width: int = 128) -> Work:
    peer = nn.GRUCell(width, width)
    inputs, hidden = torch.randn(lives, width), torch.zeros(lives, width)

    def work() -> object:
        with torch.no_grad():
            return peer(inputs, hidden)

    return work


def report_training(rounds: int) -> None:
    for shape in ((32, 128, 4, 32), (16, 256, 2, 64)):
        works = [training(*shape), training(*shape, implementation="chunked"), lstm(*shape[:2])]
        native, chunked, peer = medians(works, rounds)
        print(
            f"training B, T, H, D = {shape}: native {1e3 * native:.1f} ms, / LSTM(128) {native / peer:.2f} (bar 0.4); "
            f"chunked {1e3 * chunked:.1f} ms, / LSTM(128) {chunked / peer:.2f} (bar 1.25)"
        )


def report_long(rounds: int) -> None:
    for length, bar in ((512, 4), (4096, 15)):
        shape = (4096 // length, length, 4, 32)
        native, peer = medians([training(*shape), softmax_attention(*shape)], rounds)
        print(
            f"long B, T, H, D = {shape}: native {1e3 * native:.1f} ms, "
            f"softmax attention / native {peer / native:.1f} (bar {bar})"
        )


def report_acting(rounds: int) -> None:
    for lives in (1, 16, 256, 1024):
        repeats = max(3, 3000 // lives)
        native, peer = medians([acting(lives, 4, 32), gru_cell(lives)], rounds, repeats=repeats)
        print(
            f"acting {lives} lives, H, D = (4, 32): {1e6 * native:.0f} us, / GRUCell(128) {native / peer:.2f} (bar 1)"
        )


def report_threads(rounds: int) -> None:
    for shape in ((32, 128, 4, 32), (16, 256, 2, 64)):
        work = training(*shape)

        def with_threads(count: int, work: Work = work) -> Work:
            def run() -> object:
                torch.set_num_threads(count)
                return work()

            return run

        one, two = medians([with_threads(1), with_threads(2)], 2 * rounds, clock=time.perf_counter)
        torch.set_num_threads(1)
        print(f"threads B, T, H, D = {shape}: two threads {one / two:.2f} times faster than one (bar 1.6)")


def report_life(steps: int = 10_000_000, piece: int = 50_000, width: int = 16) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, piece, 1, *shape, generator=generator)

    single = torch.zeros(1, 1, width, width)
    double = single.double()
    largest = 0.0
    with torch.no_grad():
        for _ in range(steps // piece):
            key = functional.normalize(normal(width), dim=-1)
            inputs = (normal(width), key, normal(width), normal().sigmoid(), -0.01 * normal().abs())
            found = fast_weight_attention(*inputs, initial_state=single, implementation="native")
            wide = tuple(tensor.double() for tensor in inputs)
            expected = fast_weight_attention(*wide, initial_state=double, implementation="native")
            single, double = found.state, expected.state
            largest = max(largest, single.norm().item())
    error = (found.output[:, -1000:] - expected.output[:, -1000:]).norm() / expected.output[:, -1000:].norm()
    print(
        f"life of {steps} steps: finite {bool(torch.isfinite(found.output).all())}, largest norm of the state "
        f"{largest:.1f}, last outputs within {error.item():.1e} of float64 (bar 1e-4)"
    )


def report_soak(calls: int = 1_000_000) -> None:
    work = acting(1, 4, 32)
    tenth = calls // 10
    taken, memory = [], []
    for _ in range(10):
        start = time.process_time()
        for _ in range(tenth):
            work()
        taken.append((time.process_time() - start) / tenth)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(
        f"soak of {calls} steps: last tenth {taken[-1] / taken[0]:.2f} times the time of the first, "
        f"{memory[-1] - memory[0]:.1f} MiB more at its peak"
    )


def main() -> None:
    reports = {
        "training": report_training,
        "long": report_long,
        "acting": report_acting,
        "threads": report_threads,
        "life": lambda _: report_life(),
        "soak": lambda _: report_soak(),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", metavar="report", help=f"some of {', '.join(reports)}; all if none")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    unknown = sorted(set(options.reports) - set(reports))
    if unknown:
        parser.error(f"unknown report {', '.join(unknown)}; known are {', '.join(reports)}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, report in reports.items():
        if not options.reports or name in options.reports:
            report(options.rounds)


if __name__ == "__main__":
    main()
