"""The C sources are compiled once per machine, safely, and where that is impossible a reason is given."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifelong.kernels import compile as compiling
from lifelong.kernels import fast_weight_attention, native_library
from lifelong.kernels.native import available

from .inputs import make_inputs

needs_compiler = pytest.mark.skipif(not available(), reason="no usable C compiler")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lifelong"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text('#include "answer.h"\nint answer(void) { return ANSWER + BONUS; }\n')
    (tmp_path / "answer.h").write_text("#define ANSWER 42\n")
    return path


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Lets a test see the first load of a process, before and after which nothing is remembered."""
    native_library.load_library.cache_clear()
    native_library.loading_problem.cache_clear()
    yield
    native_library.load_library.cache_clear()
    native_library.loading_problem.cache_clear()


def build(source: Path, bonus: int = 0) -> Path:
    return compiling.compile_library(source, (source.with_name("answer.h"),), (f"BONUS={bonus}",))


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


@needs_compiler
def test_a_library_is_compiled_once(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build(source)
    assert library.parent == cache
    assert answer(library) == 42

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiling, "_compile", refuse)
    assert build(source) == library


@needs_compiler
def test_a_change_of_source_header_or_definition_makes_another_library(cache: Path, source: Path) -> None:
    first, second = build(source), build(source, bonus=1)
    source.with_name("answer.h").write_text("#define ANSWER 43\n")
    third = build(source)
    source.write_text(source.read_text() + "\n")
    fourth = build(source)
    assert len({first, second, third, fourth}) == 4
    assert [answer(path) for path in (first, second, third)] == [42, 43, 43]


@needs_compiler
def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_temporary_folder(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    library = build(source)
    assert library.parent.parent == tmp_path
    assert library.parent.stat().st_mode & 0o077 == 0
    assert answer(library) == 42


def test_no_place_to_write_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(compiling.CompileError, match="can be written"):
        compiling.cache_directory()


@needs_compiler
def test_a_failed_compilation_says_why_and_leaves_nothing(cache: Path, source: Path) -> None:
    source.write_text("int answer(void) { return unheard_of; }\n")
    with pytest.raises(compiling.CompileError, match=r"could not compile answer\.c: .*unheard_of"):
        build(source)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@needs_compiler
def test_many_processes_at_once_get_one_library(cache: Path, source: Path) -> None:
    # The module alone, without the package: three imports of torch would take most of the time.
    program = (
        "import ctypes, importlib.util, pathlib\n"
        f"spec = importlib.util.spec_from_file_location('compiling', {compiling.__file__!r})\n"
        "compiling = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(compiling)\n"
        f"source = pathlib.Path({str(source)!r})\n"
        "library = compiling.compile_library(source, (source.with_name('answer.h'),), ('BONUS=0',))\n"
        "assert ctypes.CDLL(str(library)).answer() == 42"
    )
    running = [subprocess.Popen([sys.executable, "-c", program], env=os.environ.copy()) for _ in range(6)]
    assert [process.wait(timeout=120) for process in running] == [0] * 6
    assert sorted(path.suffix for path in cache.iterdir()) == [".lock", ".so"]


@needs_compiler
@pytest.mark.parametrize("left", [b"", b"\x7fELF half a file"])
def test_a_library_that_does_not_load_is_compiled_again(cache: Path, source: Path, left: bytes) -> None:
    cache.mkdir(parents=True)
    library = build(source)
    library.write_bytes(left)
    assert answer(build(source)) == 42


@needs_compiler
def test_cc_may_hold_options(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{compiling.find_compiler()[0]} -pthread")
    assert answer(build(source)) == 42
    assert compiling.find_compiler()[1:] == ["-pthread"]


def test_a_compiler_named_by_cc_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(compiling.CompileError, match="CC, 'no-such-compiler', was not found"):
        compiling.find_compiler()


def test_a_compiler_that_does_not_run_is_named(
    cache: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'error: no licence' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(compiling.CompileError, match=r"broken-cc does not run: error: no licence"):
        build(source)


@pytest.mark.usefixtures("forgetful", "cache")
def test_without_a_compiler_auto_takes_another_implementation_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    inputs = make_inputs(1, 5, 1, 4, 4)
    with pytest.warns(RuntimeWarning, match=r"none of cc, gcc and clang is on the PATH") as caught:
        result = inputs.run("auto")
    assert len(caught) == 1
    assert (result.output - inputs.run("reference").output).abs().max() < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs.run("auto")
    with pytest.raises(ValueError, match=r'implementation="native" cannot serve this call: no C compiler was found'):
        fast_weight_attention(inputs.query, inputs.key, inputs.value, inputs.write_rate, implementation="native")
    assert not available()
