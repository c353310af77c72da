"""Runs on a Ray cluster.

Ray's client ends the process it runs in when its cluster is gone for good. So it runs in a process of its own, which
tells this one what becomes of the runs; if it dies, this one still has something to say.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import socket
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mixreg.experiments.experiment import Kind
from mixreg.experiments.store import Run
from mixreg.experiments.workers import (
    ATTEMPTS,
    POLL_SECONDS,
    Outcome,
    SweepError,
    Workers,
    carry_out,
    die_with_driver,
    portable,
)

# What the client says: that it has reached the cluster, what became of a run, why it stops, that all are done.
_REACHED, _OUTCOME, _STOPPED, _DONE = "reached", "outcome", "stopped", "done"

# How long it may take to leave.
_PATIENCE_SECONDS = 10.0


def on_ray(pending: list[Run], folder: Path, kinds: Mapping[str, Kind], workers: Workers) -> Iterator[Outcome]:
    """What becomes of all runs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    client = context.Process(target=_client, args=(there, pending, folder.absolute(), dict(kinds), workers))
    client.start()
    there.close()
    gone = f"the process that speaks to the Ray cluster at {workers.ray_address!r} died before it reached it"
    try:
        while True:
            if not here.poll(POLL_SECONDS):
                yield None
                continue
            try:
                message, *content = here.recv()
            except (EOFError, OSError):
                raise SweepError(gone) from None
            if message == _DONE:
                return
            if message == _STOPPED:
                raise SweepError(content[0])
            if message == _OUTCOME:
                index, result = content
                yield pending[index], result
            else:
                gone = f"the Ray cluster at {workers.ray_address!r} is gone: its head was killed or cannot be reached"
    finally:
        client.join(POLL_SECONDS)
        client.terminate()
        client.join(_PATIENCE_SECONDS)
        client.kill()
        client.join()
        here.close()


def _client(there: Connection, pending: list[Run], folder: Path, kinds: dict[str, Kind], workers: Workers) -> None:
    """In a process of its own: hand all runs to Ray, and tell what becomes of them."""
    die_with_driver()
    try:
        for message in _messages(pending, folder, kinds, workers):
            there.send(message)
    except SweepError as error:
        there.send((_STOPPED, str(error)))
    except Exception as error:
        there.send((_STOPPED, f"the Ray cluster at {workers.ray_address!r} failed: {type(error).__name__}: {error}"))
    there.close()


def _messages(pending: list[Run], folder: Path, kinds: dict[str, Kind], workers: Workers) -> Iterator[tuple[Any, ...]]:
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
    yield (_REACHED,)
    # A dead worker's run is started again by Ray, and resumed from its checkpoint.
    remote = ray.remote(max_retries=ATTEMPTS, num_cpus=workers.cpus, num_gpus=workers.gpus)(carry_out)
    tasks = {
        remote.remote(kinds[run.kind], run.settings, str(folder / run.key), workers.threads_per_run): index
        for index, run in enumerate(pending)
    }
    while tasks:
        done, _ = ray.wait(list(tasks), num_returns=1, timeout=POLL_SECONDS)
        for task in done:
            index = tasks.pop(task)
            try:
                yield _OUTCOME, index, ray.get(task)
            except ray.exceptions.RayError as error:
                # What happened in the run, rather than Ray's account of it.
                yield _OUTCOME, index, portable(getattr(error, "cause", None) or error)
    yield (_DONE,)
    with contextlib.suppress(Exception):
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Ray itself waits for minutes before it says that nobody is there."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()
