"""Many runs: on worker processes of this machine, or on a Ray cluster.

Finished runs are in the store and are not carried out again. A half-finished one has its own folder, from which it is
resumed. Only the process that drives a sweep writes to its store; where two sweeps want the same run, one waits for the
other. Workers die with their driver. A worker that dies by itself takes nothing with it but the time since its run's
last checkpoint: the run is given to another one, up to three times. A run that fails does not stop the others.

Every run has the same number of threads, whichever runs are left: what is carried out alone, or resumed, has the result
that it has among others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixreg.experiments.experiment import Kind
from mixreg.experiments.local_workers import on_this_machine
from mixreg.experiments.ray_workers import on_ray
from mixreg.experiments.store import Run, Store
from mixreg.experiments.workers import PROGRESS, SweepError, Workers

__all__ = ["OnProgress", "SweepError", "SweepProgress", "Workers", "sweep"]


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is: finished runs, the same with half-finished ones in part, all runs, the last finished one."""

    finished: int
    done: float
    total: int
    last: Run | None


OnProgress = Callable[[SweepProgress], None]


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
    failures: list[tuple[Run, Exception]] = []

    def tell() -> None:
        finished = len(unique) - len(pending) - len(failures)
        done = finished + sum(_fraction(folder / key) for key in pending)
        on_progress(SweepProgress(finished, done, len(unique), last))

    tell()
    if not pending:
        return
    engine = on_this_machine if workers.ray_address is None else on_ray
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
