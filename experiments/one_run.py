"""One run of a comparison, or its evaluation, from wherever it is to its end.

The folder decides what is done, so the same call may be made again after any kill, on any machine that sees it.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from lifelong.experiments.checkpoint import list_checkpoints
from lifelong.experiments.cli import main
from lifelong.experiments.engine import Job
from lifelong.experiments.run_folder import CHECKPOINTS, RunBusy, locked
from lifelong.experiments.versions import code_hash

# A worker whose node died may live for a moment longer than the message of its death takes.
_PATIENCE_SECONDS = 60.0

code_hash()  # now, of what is imported: the sources may change before the last run is forked from here


def run_to_end(job: Job) -> int:
    """Train what the job says, or go on with it, or do nothing if it is over; or evaluate. Returns the exit code."""
    folder = job.folder
    _wait_until_free(folder)
    if job.verb == "evaluate":
        return main(["evaluate", str(folder), *job.words])
    if (folder / "summary.json").exists():
        return 0
    if (folder / CHECKPOINTS).is_dir() and list_checkpoints(folder / CHECKPOINTS):
        words = ["resume", str(folder)]
    else:
        if folder.exists():  # killed before its first checkpoint: nothing in it can be gone on with
            shutil.rmtree(folder)
        words = ["train", *job.words, f"out={folder}"]
    sys.argv = ["lifelong", *words]  # what the folder will say it was made by
    return main(words)


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
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def run(job: Job) -> int:
    """``run_to_end`` for as long as the process lives that asked for it. Returns the exit code."""
    _leave_with_parent()
    try:
        return run_to_end(job)
    except RunBusy as error:
        print(f"lifelong: {error}", file=sys.stderr)
        return 2
