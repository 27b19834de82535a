"""One run of a comparison, from wherever it is to its end.

    python -m lifelong.experiments.one_run RUN [key=value ...]

The folder decides what is done, so the same call may be made again after any kill, on any machine that sees it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from lifelong.experiments.checkpoint import list_checkpoints
from lifelong.experiments.cli import main
from lifelong.experiments.run_folder import CHECKPOINTS, RunBusy, locked

# A worker whose node died may live for a moment longer than the message of its death takes.
_PATIENCE_SECONDS = 60.0


def run_to_end(folder: Path, words: list[str]) -> int:
    """Train what ``words`` say in ``folder``, or go on with it, or do nothing if it is over. Returns the exit code."""
    _wait_until_free(folder)
    if (folder / "summary.json").exists():
        return 0
    if (folder / CHECKPOINTS).is_dir() and list_checkpoints(folder / CHECKPOINTS):
        return main(["resume", str(folder)])
    if folder.exists():  # killed before its first checkpoint: nothing in it can be gone on with
        shutil.rmtree(folder)
    return main(["train", *words, f"out={folder}"])


def _wait_until_free(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while folder.exists():
        try:
            with locked(folder):
                return
        except RunBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _leave_with_parent() -> None:
    """Stop well when the comparison that began this run is gone: it will be begun again with the comparison."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _leave_with_parent()
    try:
        sys.exit(run_to_end(Path(sys.argv[1]), sys.argv[2:]))
    except RunBusy as error:
        print(f"lifelong: {error}", file=sys.stderr)
        sys.exit(2)
