"""Many runs: on worker processes of this machine, or on a Ray cluster.

Finished runs are in the store and are not carried out again. A half-finished one has its own folder, from which it is
resumed. Only the process that drives a sweep writes to its store; where two sweeps want the same run, one waits for the
other. Workers die with their driver. A worker that dies by itself takes nothing with it but the time since its run's
last checkpoint: the run is given to another one, up to three times. A run that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mixreg import __version__
from mixreg._support.files import locked, write_bytes
from mixreg.experiments.experiment import Kind
from mixreg.experiments.store import Run, Store

ATTEMPTS = 3
# Files of a run: how far it is; that it is being carried out; and a lock.
PROGRESS, AT_WORK, LOCK = "progress", "at-work", ".run.lock"
# How often the driver asks how far runs are.
_POLL_SECONDS = 1.0


class SweepError(RuntimeError):
    """Runs that failed; one sentence that names one of them."""


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is: finished runs, the same with half-finished ones in part, all runs, the last finished one."""

    finished: int
    done: float
    total: int
    last: Run | None


OnProgress = Callable[[SweepProgress], None]


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
# What became of a run; None from time to time while all are under way.
Outcome = tuple[Run, Result | Exception] | None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def carry_out(kind: Kind, settings: dict[str, Any], folder: str, threads: int) -> Result:
    """One run, in a process of its own: its result and where it came from."""
    import torch

    torch.set_num_threads(threads)
    place = Path(folder)
    with locked(place / LOCK):
        write_bytes(place / AT_WORK, b"")
        begun = time.monotonic()
        result = kind(settings, place, lambda done: write_bytes(place / PROGRESS, f"{done:.4f}".encode()))
        (place / AT_WORK).unlink(missing_ok=True)
    provenance = {
        "seconds": round(time.monotonic() - begun, 3),
        "machine": platform.machine(),
        "system": platform.system(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "cores": cores(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scikit-learn": version("scikit-learn"),
        "mixreg": __version__,
    }
    return result, provenance


def sweep(
    runs: Sequence[Run],
    store: Store,
    folder: Path,
    kinds: Mapping[str, Kind],
    workers: Workers = Workers(),  # noqa: B008 (it cannot be changed)
    on_progress: OnProgress = lambda progress: None,
) -> None:
    """Carry out all runs that are not in the store.

    Args:
        runs: what to do; the same run may occur more than once.
        store: where results are kept.
        folder: where half-finished runs keep their checkpoints.
        kinds: the functions that carry out runs, by kind.
        workers: who does it.
        on_progress: is told how far it is.
    """
    unique = {run.key: run for run in runs}
    known = store.get(unique.values())
    pending = {key: run for key, run in unique.items() if key not in known}
    for run in pending.values():
        if run.kind not in kinds:
            raise ValueError(f"nothing is known to carry out runs of the kind {run.kind!r}: name it in `kinds`")
    last: Run | None = None

    def tell() -> None:
        finished = len(unique) - len(pending)
        done = finished + sum(_fraction(folder / key) for key in pending)
        on_progress(SweepProgress(finished, done, len(unique), last))

    tell()
    if not pending:
        return
    engine = _local if workers.ray_address is None else _on_ray
    failures: list[tuple[Run, Exception]] = []
    for outcome in engine(list(pending.values()), folder, kinds, workers):
        if outcome is not None:
            last, result = outcome
            del pending[last.key]
            try:
                if isinstance(result, Exception):
                    raise result
                store.put(last, *result)
            except Exception as error:
                failures.append((last, error))
        tell()
    if failures:
        run, cause = failures[0]
        others = f"; {len(failures) - 1} others failed too" if len(failures) > 1 else ""
        raise SweepError(f"run {run.key} ({run.kind} {run.settings}) failed: {cause}{others}") from cause


def _fraction(folder: Path) -> float:
    """How far a run is, where its folder can be seen from here."""
    with contextlib.suppress(OSError, ValueError):
        return min(1.0, max(0.0, float((folder / PROGRESS).read_text())))
    return 0.0


def _local(pending: list[Run], folder: Path, kinds: Mapping[str, Kind], workers: Workers) -> Iterator[Outcome]:
    left = {run.key: run for run in pending}
    deaths = dict.fromkeys(left, 0)
    for key in left:
        (folder / key / AT_WORK).unlink(missing_ok=True)
    while left:
        count = min(workers.count, len(left))
        try:
            yield from _one_pool(left, folder, kinds, count)
        except BrokenProcessPool:
            # Those that were at work are the ones to blame; which of them is not known.
            for key in [key for key in left if (folder / key / AT_WORK).exists()]:
                (folder / key / AT_WORK).unlink(missing_ok=True)
                deaths[key] += 1
                if deaths[key] >= ATTEMPTS:
                    yield left.pop(key), SweepError(f"its worker process died {ATTEMPTS} times")


def _one_pool(left: dict[str, Run], folder: Path, kinds: Mapping[str, Kind], count: int) -> Iterator[Outcome]:
    """Carry out what is left, until a worker dies; finished runs are taken out of `left`."""
    threads = max(1, cores() // count)
    # Fresh processes: forked ones would share PyTorch's threads and locks.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_die_with_driver)
    try:
        tasks = {
            pool.submit(carry_out, kinds[run.kind], run.settings, str(folder / run.key), threads): run
            for run in left.values()
        }
        while tasks:
            done, _ = wait(tasks, _POLL_SECONDS, return_when=FIRST_COMPLETED)
            for task in done:
                result = _result(task)
                run = tasks.pop(task)
                del left[run.key]
                yield run, result
            yield None
        pool.shutdown()
    except BaseException:
        # Whatever it is, nobody waits for runs that nobody will ask about.
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _die_with_driver() -> None:
    """In a worker: interrupts are the driver's business, and without a driver there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = multiprocessing.parent_process()
    assert driver is not None

    def watch() -> None:
        driver.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def _on_ray(pending: list[Run], folder: Path, kinds: Mapping[str, Kind], workers: Workers) -> Iterator[Outcome]:
    try:
        import ray
    except ImportError as error:
        raise SweepError("a Ray cluster needs Ray: pip install 'mixreg[ray]'") from error
    address = None if workers.ray_address == "local" else workers.ray_address
    # Data is looked for where the driver looks for it.
    kept = {key: os.environ[key] for key in ("MIXREG_DATA",) if os.environ.get(key)}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": kept})
    except (OSError, ValueError, RuntimeError) as error:
        raise SweepError(f"no Ray cluster answers at {workers.ray_address!r}: {error}") from error
    try:
        # A dead worker's run is started again by Ray, and resumed from its checkpoint.
        remote = ray.remote(max_retries=ATTEMPTS, num_cpus=workers.cpus, num_gpus=workers.gpus)(carry_out)
        place = folder.absolute()
        tasks = {
            remote.remote(kinds[run.kind], run.settings, str(place / run.key), max(1, workers.cpus)): run
            for run in pending
        }
        while tasks:
            done, _ = ray.wait(list(tasks), num_returns=1, timeout=_POLL_SECONDS)
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
