"""`lifelong bench kernels` measures right numbers only, and knows its parts."""

from __future__ import annotations

import pytest
import torch

from lifelong.experiments import bench_kernels
from lifelong.experiments.bench_kernels import Row, main
from lifelong.experiments.errors import UserError


def test_errors_against_float64_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["error", "rounds=1"]) == 0
    printed = capsys.readouterr().out
    assert "chunked: gradients against float64" in printed
    assert "native: gradients against float64" in printed
    assert "MISSED" not in printed


def test_wrong_numbers_end_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_kernels, "_ERROR_BAR", 1e-12)
    assert main(["step", "rounds=1"]) == 1
    assert "GRUCell" not in capsys.readouterr().out


def test_an_unknown_part_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"trainning: not a part of the benchmark.*did you mean 'training'"):
        main(["trainning"])
    with pytest.raises(UserError, match="rounds=0: not a part"):
        main(["rounds=0"])


def test_a_row_says_whether_its_bar_is_met() -> None:
    assert str(Row("", "", "", 0.9, 1.0)).endswith("met")
    assert str(Row("", "", "", 1.1, 1.0)).endswith("MISSED")
    assert str(Row("", "", "", 1.1, 1.0, at_most=False)).endswith("met")


def test_every_part_measures_what_it_says() -> None:
    shape = (2, 8, 1, 16)
    for work in (
        bench_kernels.training(bench_kernels.Inputs.make(*shape), "chunked"),
        bench_kernels.recurrent(torch.nn.LSTM, 2, 8, 16),
        bench_kernels.softmax_attention(*shape),
        bench_kernels.acting(2, 1, 16),
        bench_kernels.gru_cell(2, 16),
    ):
        assert work() is not None
        assert bench_kernels.medians([work], 1)[0] > 0
