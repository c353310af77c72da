"""Many runs: on worker processes of this machine, or on a Ray cluster.

Finished runs are in the store and are not carried out again. A half-finished one has its own folder, from which it goes
on. Only the process that drives the sweep writes to the store. A worker that dies takes nothing with it but the time
since its run's last checkpoint: the run is given to another one, up to three times.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from mixreg import __version__
from mixreg.experiments.store import Run, Store

ATTEMPTS = 3


class SweepError(RuntimeError):
    """A run that failed; one sentence that names it."""


# Told about runs: how many are finished, of how many, and the one that finished last.
Report = Callable[[int, int, Run | None], None]


def carry_out(kind: str, settings: dict[str, Any], folder: str, threads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run, in a process of its own: its result and where it came from."""
    import torch

    from mixreg.experiments.kinds import KINDS

    torch.set_num_threads(threads)
    Path(folder).mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    result = KINDS[kind](settings, Path(folder))
    provenance = {
        "seconds": round(time.monotonic() - begun, 3),
        "machine": platform.machine(),
        "system": platform.system(),
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
    workers: int = 1,
    report: Report = lambda finished, total, last: None,
    ray_address: str | None = None,
) -> None:
    """Carry out all runs that are not in the store.

    Args:
        runs: what to do; the same run may occur more than once.
        store: where results are kept.
        folder: where half-finished runs keep their checkpoints.
        workers: processes of this machine.
        report: is told how far it is.
        ray_address: of a Ray cluster to use instead, or "local" for one on this machine.
    """
    unique = {run.key: run for run in runs}
    known = store.get(unique.values())
    pending = [run for key, run in unique.items() if key not in known]
    finished = len(unique) - len(pending)
    report(finished, len(unique), None)
    if not pending:
        return
    engine = _local(pending, folder, workers) if ray_address is None else _on_ray(pending, folder, ray_address)
    for run, (result, provenance) in engine:
        store.put(run, result, provenance)
        finished += 1
        report(finished, len(unique), run)


Outcome = tuple[Run, tuple[dict[str, Any], dict[str, Any]]]


def _local(pending: list[Run], folder: Path, workers: int) -> Iterator[Outcome]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    left = {run.key: run for run in pending}
    attempts = dict.fromkeys(left, 0)
    while left:
        # Fresh processes: forked ones would share PyTorch's threads and locks.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(left)), mp_context=context) as pool:
            tasks: dict[Future[Any], Run] = {}
            try:
                for run in left.values():
                    place = str(folder / run.key)
                    tasks[pool.submit(carry_out, run.kind, run.settings, place, threads)] = run
                while tasks:
                    done, _ = wait(tasks, return_when=FIRST_COMPLETED)
                    for task in done:
                        run = tasks.pop(task)
                        outcome = _result(run, task)
                        del left[run.key]
                        yield run, outcome
            except BrokenProcessPool as error:
                # Which run's worker died is not known: all that are left count as tried.
                for key in left:
                    attempts[key] += 1
                if max(attempts[key] for key in left) >= ATTEMPTS:
                    raise SweepError(f"worker processes died {ATTEMPTS} times; {len(left)} runs are left") from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _result(run: Run, task: Future[Any]) -> Any:
    try:
        return task.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        raise SweepError(f"run {run.key} ({run.kind} {run.settings}) failed: {error}") from error


def _on_ray(pending: list[Run], folder: Path, address: str) -> Iterator[Outcome]:
    try:
        import ray
    except ImportError as error:
        raise SweepError("a Ray cluster needs Ray: pip install 'mixreg[ray]'") from error
    ray.init(address=None if address == "local" else address, ignore_reinit_error=True, log_to_driver=False)
    try:
        remote = ray.remote(max_retries=ATTEMPTS, num_cpus=1)(carry_out)
        tasks = {remote.remote(run.kind, run.settings, str(folder / run.key), 1): run for run in pending}
        while tasks:
            done, _ = ray.wait(list(tasks), num_returns=1)
            run = tasks.pop(done[0])
            try:
                yield run, ray.get(done[0])
            except ray.exceptions.RayError as error:
                raise SweepError(f"run {run.key} ({run.kind} {run.settings}) failed: {error}") from error
    finally:
        ray.shutdown()
