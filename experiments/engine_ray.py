"""Runs of a comparison as tasks of a Ray cluster (optional package: ``pip install ray``).

The run folders must lie where every node sees them (a shared file system, or one machine). A task that is lost with
its node is started again elsewhere by Ray, and goes on from the run's last checkpoint: nothing but the frames since
then is computed twice.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from lifelong.experiments.engine import Ended, Job, fault_of
from lifelong.experiments.errors import RunFailed, UserError

_CONNECT_SECONDS = 5


class RayEngine:
    """Tasks on a cluster: an existing one at ``address`` (``"auto"``: the one of this machine), or one started here.

    Raises:
        UserError: ray is not installed, or no cluster answers at the address.
    """

    def __init__(self, slots: int | None, threads: int, gpus: float, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("engine=ray: needs the package ray; install it with: pip install ray") from error
        self._ray = ray
        if address is not None and address != "auto":
            _refuse_dead_address(address)
        try:
            if not ray.is_initialized():
                # The tasks' output goes to the runs' own logs.
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"ray_address={address}: no Ray cluster answers there ({reason})") from error
        # The cluster queues what it cannot run yet, but a queue of ours can be changed: never give it more than fits.
        total = ray.cluster_resources()
        fits = int(total.get("CPU", 1)) // threads
        if gpus:
            fits = min(fits, int(total.get("GPU", 0) / gpus))
        if fits < 1:
            raise UserError(f"engine=ray: no node can take a run of {threads} threads and {gpus} GPUs; it has {total}")
        self.slots = fits if slots is None else slots
        # A process for each run: torch's settings and a core's plugins stay its own.
        self._task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=-1, max_calls=1)(_task)
        self._running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        reference = self._task.remote(str(job.folder.absolute()), list(job.words), job.threads)
        self._running[reference] = job

    def ended(self) -> list[Ended]:
        ray = self._ray
        result: list[Ended] = []
        if not self._running:
            return result
        done, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        for reference in done:
            job = self._running.pop(reference)
            try:
                code = ray.get(reference)
                result.append(Ended(job, None if code == 0 else fault_of(job, code)))
            except ray.exceptions.RayError as error:
                result.append(Ended(job, " ".join(str(error).split())[:300]))
        return result

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)  # raises KeyboardInterrupt in the task
        self._ray.wait(list(self._running), num_returns=len(self._running), timeout=60) if self._running else None
        self._ray.shutdown()


def _task(folder: str, words: list[str], threads: int) -> int:
    """One run inside a worker process."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    from lifelong.experiments.one_run import run_to_end

    log = Path(folder).with_suffix(".log")
    with log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        try:
            return run_to_end(Path(folder), words)
        except (UserError, RunFailed) as error:
            print(f"lifelong: {error}", file=sys.stderr)
            return 2


def _refuse_dead_address(address: str) -> None:
    """Ray waits for minutes for a cluster that is not there; a socket knows at once.

    Raises:
        UserError: nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"ray_address={address}: must be host:port, ray://host:port, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(f"ray_address={address}: nothing answers there ({error.strerror or error})") from error
