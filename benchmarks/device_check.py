"""Check the Triton kernels on the GPU of this machine, then time them: `python benchmarks/device_check.py`.

Under five minutes. First every kernel against the float64 reference, values and gradients; if one is off, nothing is
timed. Then the step against the bandwidth of a copy, the gated delta rule forward and backward against
flash-linear-attention where it is installed (`pip install flash-linear-attention`), and the two algorithms against each
other, which is what the rule in `lifelong.kernels.triton_attention.algorithm` should follow. The tables go to
kernels/RESULTS.md, under the name of the card.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lifelong.kernels import reference, triton_attention
from lifelong.kernels.types import FastWeightCall, FastWeightOutput

RESULTS = Path(__file__).parent.parent / "kernels" / "RESULTS.md"
DEVICE = "cuda"
ALGORITHMS = ("recurrent", "chunked")
WIDTHS = (16, 32, 64, 128)
# Relative errors in the Euclidean norm that are allowed: float32, correlated keys in float32, bfloat16 inputs.
FLOAT32, CORRELATED, BFLOAT16 = 5e-6, 1e-4, 1e-2


def make_call(
    lives: int,
    steps: int,
    heads: int,
    width: int,
    *,
    reset_rate: float = 1 / 32,
    dtype: torch.dtype = torch.float32,
    alike: bool = False,
    seed: int = 0,
    **options: Any,
) -> FastWeightCall:
    """A gated delta call; with `alike`, the keys of a life differ by a tenth and every write overshoots by 0.9."""
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=DEVICE)

    rows = (lives, steps, heads)
    keys = normal(*rows, width)
    if alike:
        keys = normal(lives, 1, heads, width) + 0.1 * keys
    return FastWeightCall(
        query=normal(*rows, width).to(dtype),
        key=torch.nn.functional.normalize(keys, dim=-1).to(dtype),
        value=normal(*rows, width).to(dtype),
        write_rate=torch.full(rows, 1.9, device=DEVICE) if alike else normal(*rows).sigmoid(),
        initial_weights=normal(lives, heads, width, width),
        log_decay=None if alike else -0.1 * normal(*rows).abs(),
        reset=torch.rand(lives, steps, generator=generator, device=DEVICE) < reset_rate,
        **options,
    )


def leaves(call: FastWeightCall) -> dict[str, Tensor]:
    """The tensors of a call that gradients flow into."""
    names = ("query", "key", "value", "write_rate", "initial_weights", "log_decay")
    return {name: getattr(call, name) for name in names if getattr(call, name) is not None}


def with_gradients(call: FastWeightCall, dtype: torch.dtype | None = None) -> FastWeightCall:
    fresh: dict[str, Any] = {
        name: x.detach().to(dtype or x.dtype, copy=True).requires_grad_() for name, x in leaves(call).items()
    }
    return replace(call, **fresh)


def everything(call: FastWeightCall, serve: Callable[[FastWeightCall], FastWeightOutput]) -> dict[str, Tensor]:
    """Results, and the gradients of a fixed linear function of them."""
    result = serve(call)
    assert isinstance(result.state, Tensor)
    made = {"output": result.output, "state": result.state, "surprise": result.surprise}
    generator = torch.Generator(DEVICE).manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, device=DEVICE) for x in made.values()]
    loss = torch.stack([(x * w).sum() for x, w in zip(made.values(), weights, strict=True)]).sum()
    gradients = torch.autograd.grad(loss, list(leaves(call).values()))
    values = {name: x.detach() for name, x in made.items()}
    return values | {f"d_{name}": x for name, x in zip(leaves(call), gradients, strict=True)}


def worst_error(call: FastWeightCall, serve: Callable[[FastWeightCall], FastWeightOutput]) -> tuple[str, float]:
    """The quantity that is furthest from the float64 reference, and its relative error."""
    actual = everything(with_gradients(call), serve)
    exact = everything(with_gradients(call, torch.float64), reference.attention)
    errors = {name: float((actual[name].double() - x).norm() / x.norm().clamp_min(1e-30)) for name, x in exact.items()}
    # NaN is the worst of all.
    worst = max(errors, key=lambda name: float("inf") if errors[name] != errors[name] else errors[name])
    return worst, errors[worst]


def steps_in_place(call: FastWeightCall) -> FastWeightOutput:
    """A sequence as a fold of steps that write over one state."""
    state, outputs, surprises = call.initial_weights.clone(), [], []
    for t in range(call.query.shape[1]):
        names = ("query", "key", "value", "write_rate", "log_decay", "reset")
        token = {name: getattr(call, name)[:, t].contiguous() for name in names}
        made = triton_attention.step(replace(call, initial_weights=state, in_place=True, **token))
        outputs.append(made.output)
        surprises.append(made.surprise)
    return FastWeightOutput(torch.stack(outputs, 1), state, torch.stack(surprises, 1))


def check_sequences() -> Iterator[str]:
    """Rows of the table of errors. Raises `SystemExit` at the first that is too large."""
    per_head = torch.tensor([True, False, True], device=DEVICE)
    cases: list[tuple[str, FastWeightCall, float]] = [
        (f"D={width}", make_call(3, 100, 3, width), FLOAT32) for width in (8, *WIDTHS)
    ]
    cases += [
        ("erase per head", make_call(3, 100, 3, 48, erase=per_head), FLOAT32),
        ("a reset at every other step", make_call(3, 100, 3, 32, reset_rate=0.5), FLOAT32),
        ("keys alike, write rate 1.9", make_call(3, 100, 3, 64, alike=True, reset_rate=0.0), CORRELATED),
        ("bfloat16", make_call(3, 100, 3, 64, dtype=torch.bfloat16), BFLOAT16),
        ("70,000 lives", make_call(70_000, 2, 2, 8), FLOAT32),
    ]
    for label, call, allowed in cases:
        for algorithm in ALGORITHMS:
            if algorithm == "chunked" and call.query.shape[-1] > 64:
                continue
            name, error = worst_error(call, partial(triton_attention.run, algorithm=algorithm))
            yield _judged(f"{label}, {algorithm}", name, error, allowed)
    for width in WIDTHS:
        call = make_call(64, 50, 3, width)
        exact = reference.attention(with_gradients(call, torch.float64))
        with torch.no_grad():
            folded = steps_in_place(call)
        error = float((folded.output.double() - exact.output).norm() / exact.output.norm())
        yield _judged(f"D={width}, steps in place", "output", error, FLOAT32)


def _judged(label: str, name: str, error: float, allowed: float) -> str:
    if not error <= allowed:
        raise SystemExit(f"{label}: the relative error of {name} is {error:.1e}, and {allowed:.0e} is allowed")
    return f"| {label} | {name} | {error:.1e} | {allowed:.0e} |"


def milliseconds(function: Callable[[], object], repeats: int = 20) -> float:
    """Median over repeats, after a warm-up that compiles."""
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def time_step(lives: int = 4096, heads: int = 4, width: int = 64) -> list[str]:
    """The step in place beside a copy of the state: both read it once and write it once."""
    call = make_call(lives, 1, heads, width)
    names = ("query", "key", "value", "write_rate", "log_decay", "reset")
    token = replace(call, in_place=True, **{name: getattr(call, name)[:, 0].contiguous() for name in names})
    target = torch.empty_like(token.initial_weights)
    with torch.no_grad():
        copy = milliseconds(lambda: target.copy_(token.initial_weights))
        step = milliseconds(lambda: triton_attention.step(token))
    terabytes = 2 * target.numel() * target.element_size() / 1e12
    time, bar = (
        f"{step:.3f} ms, {1e3 * terabytes / step:.2f} TB/s",
        f"0.80 of a copy's {1e3 * terabytes / copy:.2f} TB/s",
    )
    return [f"| step, B={lives}, H={heads}, D={width} | {time} | {bar} | {copy / step:.2f} |"]


def forward_and_backward(call: FastWeightCall, algorithm: str) -> Callable[[], object]:
    given = with_gradients(call)
    inputs = list(leaves(given).values())
    gradients = torch.randn_like(given.value), torch.randn_like(given.initial_weights)

    def run() -> object:
        made = triton_attention.run(given, algorithm)
        assert isinstance(made.state, Tensor)
        return torch.autograd.grad((made.output, made.state), inputs, gradients)

    return run


def time_training(lives: int = 1024, steps: int = 128, heads: int = 4, width: int = 64) -> list[str]:
    """Forward and backward with resets, beside flash-linear-attention on the same data, lives cut at every reset."""
    call = make_call(lives, steps, heads, width)
    ours = {algorithm: milliseconds(forward_and_backward(call, algorithm)) for algorithm in ALGORITHMS}
    best = ours[triton_attention.algorithm(call)]
    what = f"gated delta, forward and backward, B={lives}, T={steps}, H={heads}, D={width}, resets 1/32"
    rows = [f"| {what}, float32, {name} | {time:.2f} ms | | |" for name, time in ours.items()]
    if importlib.util.find_spec("fla") is None:
        return [*rows, "| the same, flash-linear-attention | not measured: it is not installed | | |"]
    peer = milliseconds(peer_forward_and_backward(call))
    return [
        *rows,
        f"| the same, flash-linear-attention, bfloat16 | {peer:.2f} ms | slower than ours | {peer / best:.2f} |",
    ]


def peer_forward_and_backward(call: FastWeightCall) -> Callable[[], object]:
    """flash-linear-attention takes segments in the place of resets, and bfloat16 in the place of float32."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    assert call.reset is not None
    assert call.log_decay is not None
    lives, steps = call.reset.shape
    begins = call.reset.clone()
    begins[:, 0] = True
    starts = begins.flatten().nonzero()[:, 0]
    bounds = torch.cat([starts, starts.new_tensor([lives * steps])])
    states = call.initial_weights.mT[starts // steps] * ~call.reset.flatten()[starts, None, None, None]

    def packed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.flatten(0, 1)[None].to(dtype).contiguous().requires_grad_()

    tokens = [packed(tensor, torch.bfloat16) for tensor in (call.query, call.key, call.value)]
    gates = [packed(tensor, torch.float32) for tensor in (call.log_decay, call.write_rate)]
    initial = states.contiguous().requires_grad_()
    inputs = [*tokens, *gates, initial]

    def run() -> object:
        output, final = chunk_gated_delta_rule(
            *tokens, *gates, scale=1.0, initial_state=initial, output_final_state=True, cu_seqlens=bounds
        )
        return torch.autograd.grad(output.float().sum() + final.sum(), inputs)

    return run


def time_rule(lives: int = 256, heads: int = 4) -> Iterator[str]:
    """Which algorithm is faster where."""
    for width in (16, 32, 64):
        for steps in (32, 64, 128, 512):
            call = make_call(lives, steps, heads, width)
            times = {name: milliseconds(forward_and_backward(call, name), repeats=5) for name in ALGORITHMS}
            chosen = triton_attention.algorithm(call)
            best = min(times, key=lambda name: times[name])
            yield f"| {width} | {steps} | {times['recurrent']:.2f} | {times['chunked']:.2f} | {chosen} | {best} |"


def main() -> int:
    """Check, time, and write the tables."""
    if not torch.cuda.is_available():
        print("device_check needs a GPU, and torch sees none", file=sys.stderr)
        return 2
    if not triton_attention.installed():
        print("device_check needs the package triton, which is not installed", file=sys.stderr)
        return 2
    import triton

    lines = [f"# The Triton kernels on {torch.cuda.get_device_name()}", ""]
    lines += [f"torch {torch.__version__}, triton {triton.__version__}; made by benchmarks/device_check.py.", ""]
    lines += ["## Against the float64 reference: values and gradients", ""]
    lines += ["| case | furthest off | relative error | allowed |", "|---|---|---|---|", *check_sequences(), ""]
    lines += ["## Time: medians", "", "| what | time | bar | ratio |", "|---|---|---|---|"]
    lines += [*time_step(), *time_training(), ""]
    lines += ["## The rule that chooses the algorithm: forward and backward, ms", ""]
    lines += ["| D | T | recurrent | chunked | chosen | faster |", "|---|---|---|---|---|---|", *time_rule(), ""]
    RESULTS.write_text("\n".join(lines))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
