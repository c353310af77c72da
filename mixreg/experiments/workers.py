"""Who carries out the runs of a sweep, and how one of them is carried out in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixreg._support.files import locked, write_bytes
from mixreg._support.freed_memory import keep_freed_memory
from mixreg.experiments.experiment import Kind
from mixreg.experiments.provenance import cores, provenance
from mixreg.experiments.store import Run

# How often a run whose worker died is given to another one.
ATTEMPTS = 3
# Files of a run: how far it is, and a lock.
PROGRESS, LOCK = "progress", ".run.lock"
# How often the driver asks how far runs are.
POLL_SECONDS = 1.0

Result = tuple[dict[str, Any], dict[str, Any]]
# What became of a run; None from time to time while all are under way.
Outcome = tuple[Run, Result | Exception] | None


class SweepError(RuntimeError):
    """Runs that failed; one sentence that names one of them."""


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Attributes:
        count: processes of this machine.
        ray_address: of a Ray cluster to use instead: "auto", "host:port", or "local" for one that is started here.
        cpus, gpus: that Ray sets aside for each run.
        threads: of each run; by default its share of the machine's cores, or `cpus` of a cluster.
    """

    count: int = 1
    ray_address: str | None = None
    cpus: int = 1
    gpus: float = 0.0
    threads: int | None = None

    @property
    def threads_per_run(self) -> int:
        """The same for every run of a sweep, however many are left: results depend on it in their last digits."""
        if self.threads is not None:
            return self.threads
        return max(1, self.cpus if self.ray_address is not None else cores() // self.count)


def carry_out(
    kind: Kind, settings: dict[str, Any], folder: str, threads: int, on_begin: Callable[[], None] = lambda: None
) -> Result:
    """One run, in a process of its own: its result and where it came from.

    Args:
        kind: carries it out.
        settings: of the run.
        folder: of the run.
        threads: that PyTorch computes with.
        on_begin: is called when nobody else is at it any more.
    """
    import torch

    torch.set_num_threads(threads)
    keep_freed_memory()
    place = Path(folder)
    with locked(place / LOCK):
        on_begin()
        begun = time.monotonic()
        result = kind(settings, place, lambda done: write_bytes(place / PROGRESS, f"{done:.4f}".encode()))
        return result, provenance(time.monotonic() - begun)


def portable(error: Exception) -> Exception:
    """An error that another process can read: itself, or its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def die_with_driver() -> None:
    """In a worker: interrupts are the driver's business, and without a driver there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = multiprocessing.parent_process()
    assert driver is not None

    def watch() -> None:
        driver.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
