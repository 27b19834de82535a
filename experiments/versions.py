"""What a process runs on."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

_PACKAGES = ("agents", "memory", "kernels", "envs", "experiments")
_SOURCES = (".py", ".c", ".h", ".yaml")


def versions() -> list[str]:
    """What this process runs on: Python, the packages whose version changes results, and this one's own code."""
    lines = [f"python {platform.python_version()} on {platform.system()} {platform.machine()}"]
    for package in ("lifelong", "torch", "torchrl", "tensordict", "gymnasium", "minigrid", "numpy", "hydra-core"):
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} not installed")
    return [*lines, f"code {code_hash()}"]


@cache
def code_hash() -> str:
    """12 hex digits over the package's own sources and configs, which change more often than its version does."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        root = Path(str(files(f"lifelong.{package}")))
        for path in sorted(path for path in root.rglob("*") if path.suffix in _SOURCES):
            digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
