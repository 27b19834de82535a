"""Compile a C file of this package once per machine and user, on first use, with the compiler that the system has.

The library lands in `$XDG_CACHE_HOME/lifelong` or `~/.cache/lifelong`, or in a private folder of the temporary
directory if that cannot be written, under a name that is a hash of everything that could change it: the sources, the
flags, the compiler and the processor (a home directory may be shared by unlike machines). A new file is written beside
its place and moved there in one step, so that a reader never sees half of it; of many processes that start at once, one
compiles and the others wait for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Products and sums are fused where the source says so and nowhere else, so that every path rounds alike.
# No -ffast-math: linked into a shared library by GCC before 13 it makes the whole process flush denormals to zero.
OPTIMISATION = (
    "-O3",
    "-ffp-contract=off",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-fno-strict-aliasing",
)
FLAGS = ("-std=gnu11", "-fPIC", "-shared", "-pthread", *OPTIMISATION)
# In order of preference; a compiler that knows none of them for this processor builds for the baseline.
PROCESSOR_FLAGS = (("-march=native",), ("-mcpu=native",), ())
COMPILE_TIMEOUT_SECONDS = 300


class CompileError(RuntimeError):
    """No usable library could be built; the message says why and is meant for the user."""


def find_compiler() -> list[str]:
    """The path, and the options, of `$CC`, or of the first of cc, gcc and clang that exists."""
    named = os.environ.get("CC", "").strip()
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise CompileError(f"the environment variable CC, {named!r}, cannot be read: {error}") from error
    for name, *options in (words,) if words else (["cc"], ["gcc"], ["clang"]):
        path = shutil.which(name)
        if path is not None:
            return [path, *options]
    if named:
        raise CompileError(f"the C compiler named by the environment variable CC, {named!r}, was not found")
    raise CompileError("no C compiler was found: none of cc, gcc and clang is on the PATH")


def cache_directory() -> Path:
    """The first folder that can be written: the user's cache, else a private folder of the temporary directory."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    private = Path(tempfile.gettempdir()) / f"lifelong-{user}"
    for directory in (Path(cache_home) / "lifelong", private):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = directory.stat().st_uid
        except OSError:
            continue
        # What lies here is loaded as code: in a folder that somebody else made, it could be anything.
        if os.access(directory, os.W_OK | os.X_OK) and owner in (user, 0):
            return directory
    raise CompileError(f"neither {Path(cache_home) / 'lifelong'} nor {private} can be written")


def compile_library(source: Path, headers: tuple[Path, ...] = (), defines: tuple[str, ...] = ()) -> Path:
    """The shared library made from `source`, compiled now unless the cache has it.

    source: the C file; headers: what it includes, so that a change in them is noticed; defines: `"NAME=value"` each.
    Raises `CompileError`.
    """
    compiler = find_compiler()
    version = _run([*compiler, "--version"])
    if version.returncode != 0:
        raise CompileError(f"the C compiler {shlex.join(compiler)} does not run: {_last_line(version.stderr)}")
    flags = (*FLAGS, *(f"-D{define}" for define in defines))
    digest = hashlib.sha256()
    for part in (*flags, *map(str, PROCESSOR_FLAGS), shlex.join(compiler), version.stdout, _processor()):
        digest.update(part.encode() + b"\0")
    for path in (source, *headers):
        digest.update(path.read_bytes())
    directory = cache_directory()
    library = directory / f"{source.stem}-{digest.hexdigest()[:20]}.so"
    if _whole(library):
        return library
    with _one_at_a_time(library.with_suffix(".lock")):
        if not _whole(library):
            _compile(compiler, source, flags, library)
    return library


def _compile(compiler: list[str], source: Path, flags: tuple[str, ...], library: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=library.stem, suffix=".tmp", dir=library.parent)
    os.close(handle)
    try:
        for processor_flags in PROCESSOR_FLAGS:
            made = _run([*compiler, *flags, *processor_flags, str(source), "-o", name, "-lm"])
            if made.returncode == 0:
                os.chmod(name, 0o700)
                os.replace(name, library)
                return
        raise CompileError(
            f"the C compiler {shlex.join(compiler)} could not compile {source.name}: {_last_line(made.stderr)}"
        )
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _whole(library: Path) -> bool:
    """Whether the file is there and loads: a full disk or a crash may have left a part of it."""
    if not library.exists():
        return False
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"the C compiler {command[0]} does not run: {error}") from error


def _last_line(text: str) -> str:
    """The line of a compiler's output that says what went wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "it said nothing")


def _processor() -> str:
    """What -march=native depends on."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        wanted = ("model name", "flags", "Features", "CPU part")
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0].splitlines()
        parts += [line for line in lines if line.startswith(wanted)]
    return "\n".join(parts)


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold an advisory lock where the platform and file system have one; elsewhere each process compiles for itself."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
