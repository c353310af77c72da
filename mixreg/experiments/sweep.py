"""Many runs: on worker processes of this machine, or on a Ray cluster.

Finished runs are in the store and are not carried out again. A half-finished one has its own folder, from which it goes
on. Only the process that drives the sweep writes to the store. A worker that dies takes nothing with it but the time
since its run's last checkpoint: the run is given to another one, up to three times. A run that fails does not stop the
others.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixreg import __version__
from mixreg.experiments.store import Run, Store
from mixreg.files import write_bytes

ATTEMPTS = 3
# The file in which a run says how far it is, and how often the driver looks.
PROGRESS = "progress"
_LOOK_SECONDS = 1.0


class SweepError(RuntimeError):
    """Runs that failed; one sentence that names one of them."""


# Told about runs: how many are done (half-finished ones count in part), of how many, and the one that finished last.
Report = Callable[[float, int, Run | None], None]


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Attributes:
        count: processes of this machine.
        ray_address: of a Ray cluster to use instead: "auto", "host:port", or "local" for one that is started here.
        cpus, gpus: that Ray sets aside for each run.
    """

    count: int = 1
    ray_address: str | None = None
    cpus: int = 1
    gpus: float = 0.0


Result = tuple[dict[str, Any], dict[str, Any]]
# What became of a run; None for all: look how far the others are.
Outcome = tuple[Run, Result | Exception] | None


def carry_out(kind: str, settings: dict[str, Any], folder: str, threads: int) -> Result:
    """One run, in a process of its own: its result and where it came from."""
    import torch

    from mixreg.experiments.kinds import KINDS

    torch.set_num_threads(threads)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    result = KINDS[kind](settings, place, lambda done: write_bytes(place / PROGRESS, f"{done:.4f}".encode()))
    provenance = {
        "seconds": round(time.monotonic() - begun, 3),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mixreg": __version__,
    }
    return result, provenance


def sweep(
    runs: Sequence[Run],
    store: Store,
    folder: Path,
    workers: Workers = Workers(),  # noqa: B008 (it cannot be changed)
    report: Report = lambda done, total, last: None,
) -> None:
    """Carry out all runs that are not in the store.

    Args:
        runs: what to do; the same run may occur more than once.
        store: where results are kept.
        folder: where half-finished runs keep their checkpoints.
        workers: who does it.
        report: is told how far it is.
    """
    unique = {run.key: run for run in runs}
    known = store.get(unique.values())
    pending = {key: run for key, run in unique.items() if key not in known}
    report(len(unique) - len(pending), len(unique), None)
    if not pending:
        return
    engine = _local if workers.ray_address is None else _on_ray
    last, failures = None, []
    for outcome in engine(list(pending.values()), folder, workers):
        if outcome is not None:
            last, result = outcome
            del pending[last.key]
            if isinstance(result, Exception):
                failures.append((last, result))
            else:
                store.put(last, *result)
        started = sum(_fraction(folder / key) for key in pending)
        report(len(unique) - len(pending) + started, len(unique), last)
    if failures:
        run, error = failures[0]
        others = f"; {len(failures) - 1} others failed too" if len(failures) > 1 else ""
        raise SweepError(f"run {run.key} ({run.kind} {run.settings}) failed: {error}{others}") from error


def _fraction(folder: Path) -> float:
    """How far a run is, where its folder can be seen from here."""
    with contextlib.suppress(OSError, ValueError):
        return min(1.0, max(0.0, float((folder / PROGRESS).read_text())))
    return 0.0


def _local(pending: list[Run], folder: Path, workers: Workers) -> Iterator[Outcome]:
    threads = max(1, (os.cpu_count() or 1) // workers.count)
    left = {run.key: run for run in pending}
    attempts = dict.fromkeys(left, 0)
    while left:
        # Fresh processes: forked ones would share PyTorch's threads and locks.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers.count, len(left)), mp_context=context) as pool:
            tasks: dict[Future[Any], Run] = {}
            try:
                for run in left.values():
                    place = str(folder / run.key)
                    tasks[pool.submit(carry_out, run.kind, run.settings, place, threads)] = run
                while tasks:
                    done, _ = wait(tasks, _LOOK_SECONDS, return_when=FIRST_COMPLETED)
                    for task in done:
                        result = _result(task)
                        run = tasks.pop(task)
                        del left[run.key]
                        yield run, result
                    yield None
            except BrokenProcessPool as error:
                # Which run's worker died is not known: all that are left count as tried.
                for key in left:
                    attempts[key] += 1
                if max(attempts[key] for key in left) >= ATTEMPTS:
                    raise SweepError(f"worker processes died {ATTEMPTS} times; {len(left)} runs are left") from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _result(task: Future[Any]) -> Result | Exception:
    try:
        found: Result = task.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        return error
    return found


def _knock(address: str | None) -> None:
    """Ray itself waits for minutes before it says that nobody is there."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _on_ray(pending: list[Run], folder: Path, workers: Workers) -> Iterator[Outcome]:
    try:
        import ray
    except ImportError as error:
        raise SweepError("a Ray cluster needs Ray: pip install 'mixreg[ray]'") from error
    address = None if workers.ray_address == "local" else workers.ray_address
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise SweepError(f"no Ray cluster answers at {workers.ray_address!r}: {error}") from error
    try:
        # A dead worker's run is started again by Ray, and goes on from its checkpoint.
        remote = ray.remote(max_retries=ATTEMPTS, num_cpus=workers.cpus, num_gpus=workers.gpus)(carry_out)
        place = folder.absolute()
        tasks = {
            remote.remote(run.kind, run.settings, str(place / run.key), max(1, workers.cpus)): run for run in pending
        }
        while tasks:
            done, _ = ray.wait(list(tasks), num_returns=1, timeout=_LOOK_SECONDS)
            for task in done:
                run = tasks.pop(task)
                try:
                    yield run, ray.get(task)
                except ray.exceptions.RayError as error:
                    # What happened in the run, rather than Ray's account of it.
                    yield run, getattr(error, "cause", None) or error
            yield None
    finally:
        ray.shutdown()
