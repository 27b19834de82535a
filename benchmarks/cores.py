"""How fast the memory cores are: one step while acting, one PPO-sized update, each beside ``torch.nn``'s LSTM and GRU.

    python benchmarks/cores.py [core ...] [--dim 64] [--lives 16] [--steps 128] [--acting-lives 32]
    python benchmarks/cores.py --cost [core ...]

``--cost`` puts the matrix cores at 4,096 floats of fast weights beside ``lstm`` of width 128, in one table: what an
update and a step of the core cost, with resets, and the ratio to the bar of 1.5.

All rows are measured in turns, so that a change of the machine's load meets all of them. Median CPU time, one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from lifelong.memory import core_names, core_options, make_core
from lifelong.memory.parametric import ParametricCore

Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cores", nargs="*")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--lives", type=int, default=16)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--acting-lives", type=int, default=32)
    parser.add_argument(
        "--reset-every", type=int, default=30, help="mean steps between resets in the column with resets"
    )
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.cost:
        cost_table(options)
        return

    acting: dict[str, Work] = {}
    updates: dict[str, Work] = {}
    with_resets: dict[str, Work] = {}
    inputs = torch.randn(options.lives, options.steps, options.dim)
    reset = torch.rand(options.lives, options.steps) < 1.0 / options.reset_every
    for name, module in (("torch.nn.LSTM", nn.LSTM), ("torch.nn.GRU", nn.GRU)):
        peer = module(options.dim, options.dim, batch_first=True)
        acting[name] = torch_step(peer, options.acting_lives, options.dim)
        updates[name] = update(lambda x, peer=peer: peer(x)[0], inputs)
    for name in options.cores or core_names():
        core = make_core(name, options.dim)
        acting[name] = core_step(core, options.acting_lives)
        state = core.initial_state(options.lives)
        updates[name] = update(lambda x, core=core, state=state: core(x, state)[0], inputs)
        with_resets[name] = update(lambda x, core=core, state=state: core(x, state, reset)[0], inputs)

    frames = options.lives * options.steps
    step_times = {name: 1e6 * seconds for name, seconds in measure(acting, options.rounds, repeats=20).items()}
    all_updates = {**updates, **{f"{name} +": work for name, work in with_resets.items()}}
    times = {name: 1e6 * seconds / frames for name, seconds in measure(all_updates, options.rounds, repeats=1).items()}
    print(f"dim {options.dim}; a step of {options.acting_lives} lives; forward and backward over {inputs.shape[:2]}")
    print(f"{'core':20} {'us/step':>9} {'us/frame':>9} {'/ LSTM':>7} {'/ GRU':>7} {'us/frame with resets':>21}")
    for name in updates:
        lstm, gru = times[name] / times["torch.nn.LSTM"], times[name] / times["torch.nn.GRU"]
        resets = f"{times[f'{name} +']:21.2f}" if name in with_resets else ""
        print(f"{name:20} {step_times[name]:9.1f} {times[name]:9.2f} {lstm:7.2f} {gru:7.2f} {resets}")


def cost_table(options: argparse.Namespace) -> None:
    """The update and the step of every matrix core at 4,096 floats of fast weights, over those of ``lstm``."""
    matrix = [name for name in core_names() if isinstance(make_core(name, options.dim), ParametricCore)]
    cores = {"lstm, width 128": make_core("lstm", options.dim, hidden=128)}
    for name in options.cores or matrix:
        heads = core_options(name)["heads"].default
        heads = heads if isinstance(heads, int) else len(heads)
        value_dim = core_options(name)["value_dim"].default or 32
        cores[name] = make_core(name, options.dim, head_dim=4096 // (heads * value_dim))
    inputs = torch.randn(options.lives, options.steps, options.dim)
    reset = torch.rand(options.lives, options.steps) < 1.0 / options.reset_every
    updates, acting = {}, {}
    for name, core in cores.items():
        state = core.initial_state(options.lives)
        updates[name] = update(lambda x, core=core, state=state: core(x, state, reset)[0], inputs)
        acting[name] = core_step(core, options.acting_lives)
    update_times, step_times = measure(updates, options.rounds, 1), measure(acting, options.rounds, 20)
    lstm, *_ = update_times.values()
    print(f"{'core':18} {'state floats':>12} {'us/frame':>9} {'/ lstm':>7} {'us/step':>9}")
    for name, core in cores.items():
        floats = sum(leaf.numel() for leaf in core.initial_state(1).values(True, True) if leaf.is_floating_point())
        frame = 1e6 * update_times[name] / inputs[..., 0].numel()
        ratio = update_times[name] / lstm
        print(f"{name:18} {floats:12} {frame:9.2f} {ratio:7.2f} {1e6 * step_times[name]:9.1f}")


def torch_step(peer: nn.Module, lives: int, dim: int) -> Work:
    inputs = torch.randn(lives, 1, dim)
    _, state = peer(inputs)

    @torch.no_grad()
    def work() -> None:
        peer(inputs, state)

    return work


def core_step(core: nn.Module, lives: int) -> Work:
    inputs, reset, state = torch.randn(lives, core.dim), torch.zeros(lives, dtype=torch.bool), core.initial_state(lives)

    @torch.no_grad()
    def work() -> None:
        core.step(inputs, state, reset)

    return work


def update(forward: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> Work:
    """Forward, and backward into parameters and inputs."""
    gradient = torch.randn(inputs.shape)

    def work() -> None:
        forward(inputs.clone().requires_grad_()).backward(gradient)

    return work


def measure(works: dict[str, Work], rounds: int, repeats: int) -> dict[str, float]:
    """Median seconds of each, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for warm in range(rounds + 2):
        for name, work in works.items():
            start = time.process_time()
            for _ in range(repeats):
                work()
            if warm >= 2:
                seconds[name].append((time.process_time() - start) / repeats)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
