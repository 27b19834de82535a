"""Runs of a comparison as tasks of a Ray cluster (optional package: ``pip install ray``).

The run folders must lie where every node sees them (a shared file system, or one machine). A task that is lost with
its worker or its node is started again, and goes on from the run's last checkpoint: nothing but the frames since then
is computed twice.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from lifelong.experiments.engine import Ended, Job, fault_of
from lifelong.experiments.errors import RunFailed, UserError

_CONNECT_SECONDS = 5
_RETRIES = 5  # of a run whose worker or node was lost; a run that kills its worker each time must come to an end
# What an HTTP/2 client says first (RFC 9113), with empty settings; a server answers with its own: a frame of type 4.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


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
        # Retries are ours: Ray would count only some of the ways in which a worker dies.
        self._task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0, max_calls=1)(_task)
        self._running: dict[Any, Job] = {}
        self._lost: Counter[Job] = Counter()

    def start(self, job: Job) -> None:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        reference = self._task.remote(dataclasses.replace(job, folder=job.folder.absolute()))
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
            except ray.exceptions.RayTaskError as error:  # raised by the run itself, and would be again
                result.append(Ended(job, " ".join(str(error).split())[:300]))
            except ray.exceptions.RayError as error:
                self._lost[job] += 1
                if self._lost[job] <= _RETRIES:
                    self.start(job)
                else:
                    reason = " ".join(str(error).split())[:300]
                    result.append(Ended(job, f"its worker was lost {self._lost[job]} times; {reason}"))
        return result

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)  # raises KeyboardInterrupt in the task
        self._ray.wait(list(self._running), num_returns=len(self._running), timeout=60) if self._running else None
        self._ray.shutdown()


def _task(job: Job) -> int:
    """One run inside a worker process."""
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    from lifelong.experiments.one_run import run_to_end

    with job.log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        try:
            return run_to_end(job)
        except (UserError, RunFailed) as error:
            print(f"lifelong: {error}", file=sys.stderr)
            return 2


def _refuse_dead_address(address: str) -> None:
    """Ray waits for minutes for a cluster that is not there; a socket knows at once, and so does a greeting: Ray speaks
    gRPC, which is HTTP/2.

    Raises:
        UserError: nothing listens there, or not Ray.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"ray_address={address}: must be host:port, ray://host:port, or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return  # it would not understand the greeting
            connection.sendall(_GREETING)
            with connection.makefile("rb") as answers:
                frame = answers.read(4)
    except TimeoutError as error:
        raise UserError(
            f"ray_address={address}: no answer within {_CONNECT_SECONDS} seconds; not a Ray cluster"
        ) from error
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"ray_address={address}: nothing answers there ({reason})") from error
    if frame[3:] != b"\x04":
        raise UserError(f"ray_address={address}: what answers there is not a Ray cluster")
