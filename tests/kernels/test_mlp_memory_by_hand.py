"""The network memory against numbers worked by hand, and against a public reference of TTT-linear."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.kernels import mlp_memory

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["reference", "chunked"])


def sequence(*steps: Any) -> Tensor:
    """[1, T, 1, ...] from what one head of one life sees at each step."""
    return torch.tensor(steps, dtype=torch.float64)[None, :, None]


@IMPLEMENTATIONS
def test_titans_two_layers_by_hand(implementation: str) -> None:
    """Widths of one, W1 = 1, W2 = 2, k = 1, v = 0 twice; rate 0.1, momentum 0.5, decay 0.8, chunks of two steps.

    gelu(1) = 0.841345, its slope there 0.841345 + 0.241971 = 1.083315.
    f(k) = 2 * 0.841345 = 1.682689, which is the error e.
    dL/dW2 = e * 0.841345 = 1.415722;  dL/dW1 = e * 2 * 1.083315 = 3.645766; times the rate: 0.1415722, 0.3645766.
    Step 1: M = -g: W1 = 0.8 - 0.3645766 = 0.4354234,             W2 = 1.6 - 0.1415722 = 1.4584278
    Step 2, the same g: M = 1.5 (-g): W1 = 0.8 * 0.4354234 - 0.5468649 = -0.1985262
                                      W2 = 0.8 * 1.4584278 - 0.2123583 =  0.9543839
    """
    one = torch.ones(1, 2, 1, dtype=torch.float64)
    weights = (torch.tensor([[[1.0]]], dtype=torch.float64), torch.tensor([[[2.0]]], dtype=torch.float64))
    result = mlp_memory(
        sequence([1.0], [1.0]), sequence([1.0], [1.0]), sequence([0.0], [0.0]), 0.1 * one, weights,
        math.log(0.8) * one, 0.5 * one, implementation=implementation, chunk=2,
    )  # fmt: skip
    found = [layer.item() for layer in (*result.state.weights, *result.state.momentum)]
    assert found == pytest.approx([-0.1985262, 0.9543839, -0.5468649, -0.2123583], abs=1e-6)
    assert result.surprise.flatten().tolist() == pytest.approx([1.682689, 1.682689], abs=1e-6)
    # gelu(0.4354234) = 0.4354234 * 0.668370 = 0.291024; gelu(-0.1985262) = -0.1985262 * 0.421316 = -0.0836423
    assert result.output.flatten().tolist() == pytest.approx([1.4584278 * 0.291024, 0.9543839 * -0.0836423], abs=2e-6)
    assert result.state.phase.item() == 0
    assert all(torch.equal(a, b) for a, b in zip(result.state.base, result.state.weights, strict=True))


@IMPLEMENTATIONS
def test_ttt_linear_by_hand(implementation: str) -> None:
    """W = 1, k = (1, 0, -1): mean 0, variance 2/3, so the norm n = k / sqrt(2/3) = 1.224745 k, and f(k) = k + n.

    With v = f(k) - (1, -2, 1) the error (1, -2, 1) is at a right angle to (1, 1, 1) and to n: nothing of it is lost in
    the norm, and the delta is 1.224745 (1, -2, 1). At a rate of 0.1, W k = k - 0.1 * 1.224745 * 2 (1, -2, 1) =
    (0.755051, 0.489898, -1.244949), of mean 0 and variance 2.36 / 3; divided by 0.886942 and added to k.
    """
    key, identity = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64), torch.eye(3, dtype=torch.float64)[None]
    value = key * (1 + math.sqrt(1.5)) - torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    norm = torch.ones(1, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    result = mlp_memory(
        key.view(1, 1, 1, 3), key.view(1, 1, 1, 3), value.view(1, 1, 1, 3),
        torch.full((1, 1, 1), 0.1, dtype=torch.float64), (identity,), norm=norm, implementation=implementation,
    )  # fmt: skip
    assert result.output.flatten().tolist() == pytest.approx([1.851297, 0.552345, -2.403642], abs=3e-6)
    assert result.surprise.item() == pytest.approx(math.sqrt(6), abs=3e-6)


@IMPLEMENTATIONS
def test_atlas_by_hand(implementation: str) -> None:
    """W = 0, 2 x 2; one pair k = (1, 0), v = (3, 4), so that g = -rate v k^T, of rank one with singular value 5 * rate.

    Divided by its norm the singular value is 1; one iteration makes 3.4445 - 4.7750 + 2.0315 = 0.701 of it, whatever
    the rate was. With update_rate 0.5 the answer to k is 0.5 * 0.701 * (0.6, 0.8) at the last step of the chunk, and
    nothing before; the decay of 0.5 finds nothing to take then, and a half of it at the next step.
    """
    half, key, value = torch.full((1, 3, 1), 0.5, dtype=torch.float64), [1.0, 0.0], [3.0, 4.0]
    rate = torch.tensor([0.1, 0.1, 0.0], dtype=torch.float64).view(1, 3, 1)
    result = mlp_memory(
        sequence(key, key, key), sequence(key, key, key), sequence(value, value, value), rate,
        (torch.zeros(1, 2, 2, dtype=torch.float64),), half.log(), implementation=implementation,
        chunk=2, newton_schulz=1, update_rate=half,
    )  # fmt: skip
    wanted = [[0.0, 0.0], [0.2103, 0.2804], [0.10515, 0.1402]]
    assert torch.allclose(result.output[0, :, 0], torch.tensor(wanted, dtype=torch.float64), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_ttt_linear_is_that_of_flash_linear_attention() -> None:
    """At a constant rate: theirs is of the row that reads (one rate a step, the paper's 1 / i left out), ours of the
    pair that is written. Their loss has 1 where the paper's has 2 for the gradient, as ours."""
    pytest.importorskip("fla", reason="flash-linear-attention is not installed (pip install fla-core einops)")
    theirs = importlib.import_module("fla.ops.ttt.naive").chunk_ttt_linear_ref
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    query, key, value = (normal(2, 24, 3, 6) for _ in range(3))
    weights, bias = normal(3, 6, 6) / 3, normal(3, 6) / 3
    gain, shift = 1 + normal(3, 6) / 4, normal(3, 6)
    ours = mlp_memory(
        query, key, value, torch.full((2, 24, 3), 0.05), (torch.cat([weights, bias[..., None]], -1),),
        norm=(gain, shift), chunk=8,
    )  # fmt: skip
    output, state, state_bias = theirs(
        query.clone(), key.clone(), value.clone(), gain, shift, 0.05, scale=1.0, mini_batch_size=8,
        initial_state=weights.mT.expand(2, -1, -1, -1), initial_state_bias=bias[:, None].expand(2, -1, -1, -1),
        output_final_state=True,
    )  # fmt: skip
    # The paper adds the norm of what is read to the query, they add it to what is read.
    normed = ours.output - query
    read = torch.nn.functional.layer_norm(output - normed, (6,), eps=1e-6) * gain + shift
    assert torch.allclose(read, normed, rtol=1e-3, atol=1e-4)
    (found,) = ours.state.weights
    assert torch.allclose(found[..., :-1].mT, state, rtol=1e-4, atol=1e-5)
    assert torch.allclose(found[..., -1], state_bias[:, :, 0], rtol=1e-4, atol=1e-5)
