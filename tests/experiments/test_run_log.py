"""The tables of a run that is resumed, and what its folder says it was made by."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifelong.experiments.errors import UserError
from lifelong.experiments.run_folder import append_versions, recorded_versions
from lifelong.experiments.run_log import CsvTable
from lifelong.experiments.versions import code_hash, versions


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "progress.csv"
    before = CsvTable(path, None)
    before.add(128, {"a": 1.0})
    before.add(256, {"a": 2.0})
    return path


def test_rows_after_the_checkpoint_are_dropped(table: Path) -> None:
    CsvTable(table, 128)
    assert table.read_text() == "frames,a\n128,1.0\n"


@pytest.mark.parametrize("damaged", [b"frames,a\n12x8,1.0\n", b"fram\n128\n", b"\xff\xfe\n", b""])
def test_a_damaged_table_is_one_line_and_stays_as_it_is(table: Path, damaged: bytes) -> None:
    table.write_bytes(damaged)
    with pytest.raises(UserError, match=r"progress.csv: cannot be read") as error:
        CsvTable(table, 256)
    assert "\n" not in str(error.value)
    assert table.read_bytes() == damaged


def test_a_table_that_is_gone_is_not_begun_anew(table: Path) -> None:
    table.unlink()
    with pytest.raises(UserError, match="missing, and the run is at 256 frames"):
        CsvTable(table, 256)
    assert not table.exists()
    CsvTable(table, 0)
    assert table.exists()


def test_versions_hold_a_hash_of_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert versions()[-1] == f"code {code_hash()}"
    assert len(code_hash()) == 12

    def code_of(text: str, name: str = "core.py") -> str:
        for package in ("agents", "memory", "kernels", "envs", "experiments"):
            (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / "memory" / name).write_text(text)
        code_hash.cache_clear()
        return code_hash()

    monkeypatch.setattr("lifelong.experiments.versions.files", lambda package: tmp_path / package.split(".")[1])
    first = code_of("a")
    assert code_of("b") != first
    assert code_of("a") == first
    assert code_of("not code", "notes.txt") == first
    code_hash.cache_clear()


def test_versions_are_recorded_where_they_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert recorded_versions(tmp_path) == [[]]
    (tmp_path / "versions.txt").write_text("torch 2.12.0\ncode 11aa\n")
    ran_on = [["torch 2.12.0", "code 11aa"], ["torch 2.12.0", "code 11aa"], ["torch 2.13.0", "code 22bb"]]
    for index, lines in enumerate([*ran_on, ran_on[-1], ran_on[0]]):
        monkeypatch.setattr("lifelong.experiments.run_folder.versions", lambda lines=lines: lines)
        append_versions(tmp_path, 1_000 * (index + 1))
    assert recorded_versions(tmp_path) == [ran_on[0], ran_on[2], ran_on[0]]
    assert (tmp_path / "versions.txt").read_text().splitlines()[:6] == [
        "torch 2.12.0",
        "code 11aa",
        "",
        "resumed at 3,000 frames on:",
        "torch 2.13.0",
        "code 22bb",
    ]
